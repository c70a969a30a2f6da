/** A request handler that claims its key in a transaction of its own: whoever dies behind the claim leaves it for ever. */
import { createServer } from 'node:http'
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  setUp: `
    create table claims (key text primary key, answer text);
    create table orders (id int generated always as identity, key text)`,
  start({ databaseUrl }) {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    const handle = async (key: string): Promise<[number, string]> => {
      const claim = await pool.query('insert into claims (key) values ($1) on conflict do nothing', [key])
      if (claim.rowCount === 0) {
        const { rows } = await pool.query('select answer from claims where key = $1', [key])
        return rows[0].answer === null ? [409, 'in progress'] : [201, rows[0].answer]
      }
      const { rows } = await pool.query(
        'with made as (insert into orders (key) values ($1) returning id) ' +
          'update claims set answer = made.id::text from made where key = $1 returning answer',
        [key],
      )
      return [201, rows[0].answer]
    }
    return createServer((request, response) => {
      handle(String(request.headers['idempotency-key'])).then(
        ([status, text]) => response.writeHead(status).end(text),
        () => response.writeHead(500).end(),
      )
    })
  },
  deliver: { path: '/orders', headers: { 'idempotency-key': 'k-1' } },
  effects: 'select count(*) from orders',
  settleMs: 1_500,
}

export default file
