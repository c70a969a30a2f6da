/** Plans: what is due is found through an index, whether much of the table is due or nothing of it. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { PgStatement } from '../../src/stores/postgres/handle.ts'
import { PURGE_BEGIN, retentionStatements } from '../../src/stores/postgres/retention.ts'
import { type Guard, openGuard } from '../operation/guard.ts'

const ROWS = 100_000
const sql = retentionStatements('"effectively_once"')
const batch = { graceMs: 60_000, limit: 1_000 }
let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
  await guard.admin.query(
    `insert into effectively_once.operation
       (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, outcome, expires_at,
        response, response_expires_at)
     select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '["x"]', 1, '1',
       now() + n * interval '1 second' + interval '1 hour', '\\x00', now() + n * interval '1 second'
     from generate_series(1, $1::int) n`,
    [ROWS],
  )
  await guard.admin.query(
    `insert into effectively_once.inbox (id, consumer, source, message_id, fingerprint, expires_at)
     select gen_random_uuid(), 'c', '', n::text, '\\x00', now() + n * interval '1 second' from generate_series(1, $1::int) n`,
    [ROWS],
  )
  await guard.admin.query(
    `insert into effectively_once.outbox_history
       (lane, seq, id, topic, payload, encoding, content_type, headers, created_at, published_at)
     select 0, n, gen_random_uuid(), 't', repeat('x', 200), 'text', 'text/plain', '{}', now(), now() + n * interval '1 second'
     from generate_series(1, $1::int) n`,
    [ROWS],
  )
  await guard.admin.query(
    'vacuum analyze effectively_once.operation, effectively_once.inbox, effectively_once.outbox_history',
  )
})

afterAll(() => guard.close())

/** Plan and what was read: run, and rolled back. */
async function ran({ text, values = [] }: PgStatement, passedMs: number): Promise<{ plan: string; pages: number }> {
  const client = await guard.admin.connect()
  try {
    // The clock of the statements moves, and not the rows: those would be rewritten in another order.
    const moved = text.replaceAll(
      'pg_catalog.clock_timestamp()',
      `(pg_catalog.clock_timestamp() + interval '${passedMs} milliseconds')`,
    )
    await client.query(PURGE_BEGIN)
    const { rows } = await client.query({ text: `explain (analyze, buffers, timing off) ${moved}`, values })
    const plan = rows.map((row) => String(row['QUERY PLAN'])).join('\n')
    const [, hit = '0', read = '0'] = /Buffers: shared hit=(\d+)(?: read=(\d+))?/.exec(plan) ?? []
    return { plan, pages: Number(hit) + Number(read) }
  } finally {
    await client.query('rollback')
    client.release(true)
  }
}

const STATEMENTS: readonly (readonly [name: string, index: string, statement: PgStatement])[] = [
  ['operations', 'operation_expiry', sql.operations(batch)],
  ['operationsOverdue', 'operation_expiry', sql.operationsOverdue(batch.graceMs)],
  ['marks', 'inbox_expires_at', sql.marks(batch)],
  ['marksOverdue', 'inbox_expires_at', sql.marksOverdue(batch.graceMs)],
  ['history', 'outbox_history_published', sql.history(batch)],
  ['historyOverdue', 'outbox_history_published', sql.historyOverdue(batch.graceMs)],
]

describe(`at ${ROWS} rows`, () => {
  test.each(STATEMENTS)('R40: %s reads a few pages when nothing is due', async (_name, index, statement) => {
    const { plan, pages } = await ran(statement, 0)
    expect(plan).toMatch(new RegExp(index))
    expect(plan).not.toMatch(/Seq Scan on (operation|inbox|outbox_history)/)
    expect(pages).toBeLessThan(300)
  })

  test.each(STATEMENTS.filter(([, index]) => index !== 'outbox_history_published'))(
    'R40: %s reads what it takes when all is due',
    async (_name, index, statement) => {
      const { plan } = await ran(statement, 10 * ROWS * 1_000)
      expect(plan).toMatch(new RegExp(index))
      expect(plan).not.toMatch(/Seq Scan on (operation|inbox|outbox_history)/)
      expect(plan).not.toMatch(/Sort/)
    },
  )
})

test('every statement of the module has its plan looked at here', () => {
  expect(STATEMENTS.map(([name]) => name).sort()).toEqual(Object.keys(sql).sort())
})
