/**
 * Two routes that answer 409 for good: /sold-out has decided so and says it to everybody, /orders says it to whoever
 * repeats what was done.
 */
import { createServer } from 'node:http'
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const INSERT = 'insert into decisions (key) values ($1) on conflict do nothing'

export function conflicting(path: '/sold-out' | '/orders'): DrillFile {
  return {
    setUp: 'create table decisions (key text primary key)',
    start({ databaseUrl }) {
      const pool = new pg.Pool({ connectionString: databaseUrl })
      pool.on('error', () => {})
      return createServer((request, response) => {
        pool.query(INSERT, [request.headers['idempotency-key']]).then(
          ({ rowCount }) => {
            if (request.url === '/sold-out') response.writeHead(409).end('sold out')
            else if (rowCount === 1) response.writeHead(201).end('ordered')
            else response.writeHead(409).end('there is such an order')
          },
          () => response.writeHead(503).end(),
        )
      })
    },
    deliver: { path, headers: { 'idempotency-key': 'k-1' } },
    effects: 'select count(*) from decisions',
    settleMs: 1_000,
  }
}
