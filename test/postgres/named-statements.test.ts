/**
 * A pooler in transaction mode does not keep named statements with the client: the server has one of that name
 * already (42P05) or does not know it (26000). Ours then do without names, whoever finds out first.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { inboxStatements } from '../../src/stores/postgres/inbox-statements.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type Guard, openGuard, POOLS } from '../operation/guard.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

test.each(POOLS)(
  '%s pool: statements under way at once that meet a name of somebody else are all answered',
  async (_name, config) => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 8, ...config })
    const names = ['inbox_lookup', 'lookup', 'outbox_pending', 'outbox_lanes']
    pool.on('connect', (client) => {
      // Queued before the pool hands the client out, as a server session from somebody else would have them.
      for (const name of names) void client.query(`prepare eo_effectively_once_${name} as select 1`)
    })
    const { inbox, operations, outbox } = postgres(pool)
    const mark = { id: randomUUID(), consumer: 'c', source: '', messageId: 'm', fingerprint: new Uint8Array(32) }
    const answers = await Promise.all([
      ...Array.from({ length: 4 }, () => inbox.lookup([mark])),
      ...Array.from({ length: 4 }, () => operations.lookup(randomUUID())),
      ...Array.from({ length: 4 }, () => outbox.lanes().then((lanes) => lanes.length)),
    ])
    expect(answers).toEqual([...Array(4).fill(['new']), ...Array(4).fill(undefined), ...Array(4).fill(1)])
    await pool.end()
  },
)

test('names of statements fit the 63 bytes that the server compares, in a schema with the longest name too', () => {
  const sql = inboxStatements(`"${'s'.repeat(63)}"`)
  const claim = { id: randomUUID(), owner: randomUUID(), attempts: 1 }
  const names = [
    sql.seal('1', claim),
    sql.seal('1', undefined),
    sql.ifNewer(randomUUID(), 'c', 'e', 1n),
    sql.lookup([]),
  ].map((statement) => statement.name ?? '')
  expect(names.map((name) => name.slice(0, 63))).toEqual(names)
  expect(new Set(names).size).toBe(names.length)
})
