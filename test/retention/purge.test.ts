/** once.purge on a real database: what it keeps, what it leaves to others, and what happens while it runs. */
import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createOnce, isOnceError, type Once, type PurgeReport } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { PURGE_BEGIN, retentionStatements } from '../../src/stores/postgres/retention.ts'
import { type Guard, insertOrder, openGuard, until } from '../operation/guard.ts'

const HOUR_MS = 3_600_000
let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})
afterAll(() => guard.close())
beforeEach(async () => {
  await guard.admin.query(
    'truncate effectively_once.operation, effectively_once.step, effectively_once.job_event, effectively_once.inbox, effectively_once.inbox_waiting, ' +
      'effectively_once.inbox_quarantine, effectively_once.outbox, effectively_once.outbox_parked, ' +
      'effectively_once.outbox_quarantine, effectively_once.outbox_history, effectively_once.audit, orders',
  )
})

const operationOn = (key: string) => ({ scope: ['acme', 'orders'], key, payload: 1 })

const order = (key: string, from = once) => {
  const insert = async ({ tx }: { readonly tx: pg.PoolClient }) => (await insertOrder(tx, key)).rows[0]?.id
  return from.transaction(operationOn(key), insert, { whenInProgress: 'wait' })
}

/** Ends the retention of all records that are there. */
const expire = () =>
  guard.admin.query(`update effectively_once.operation set expires_at = clock_timestamp() - interval '1 hour'`)

async function recordCount(): Promise<number> {
  return (await guard.admin.query('select from effectively_once.operation')).rowCount ?? 0
}

const sum = (reports: readonly PurgeReport[]): number => reports.reduce((all, { records }) => all + records, 0)

describe('a late retry and a purge at once', () => {
  test('R48, SC20, I1: retries of expired keys during two purges run once each and keep their new records', async () => {
    const keys = Array.from({ length: 400 }, (_, at) => `late-${at}`)
    await Promise.all(keys.map((key) => order(key)))
    await expire()
    const retries = guard.once()
    const [purged, outcomes] = await Promise.all([
      Promise.all([once.purge({ batchRows: 3, restMs: 0 }), guard.once().purge({ batchRows: 7, restMs: 0 })]),
      Promise.all(keys.flatMap((key) => [order(key, retries), order(key, retries)])),
    ])
    expect(outcomes.filter(({ replayed }) => !replayed)).toHaveLength(keys.length)
    // Each old record was removed by a purge or by the gate of its retry, and no new one by anybody.
    expect(await recordCount()).toBe(keys.length)
    expect(sum(purged)).toBeLessThanOrEqual(keys.length)
    for (const key of keys) expect(await guard.count(key)).toBe(2)
    expect((await Promise.all(keys.map((key) => order(key)))).every(({ replayed }) => replayed)).toBe(true)
    expect(await once.purge()).toMatchObject({ records: 0, complete: true, lagMs: { operations: 0 } })
  })

  test('SC20: a retry that meets an uncommitted batch runs when it is committed, and when it is rolled back', async () => {
    for (const end of ['commit', 'rollback'] as const) {
      await guard.admin.query('truncate effectively_once.operation cascade')
      const key = `meets-${end}`
      await order(key)
      await expire()
      const purging = await guard.admin.connect()
      try {
        await purging.query(PURGE_BEGIN)
        const sql = retentionStatements('"effectively_once"').operations({ graceMs: 0, limit: 10 })
        expect((await purging.query(sql)).rows[0]).toMatchObject({ removed: 1 })
        const retry = order(key)
        await until(async () => {
          const { rows } = await guard.admin.query(
            `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          )
          return rows.length === 1
        })
        await purging.query(end)
        expect(await retry).toMatchObject({ replayed: false })
      } finally {
        purging.release()
      }
      expect(await guard.count(key)).toBe(2)
      expect(await order(key)).toMatchObject({ replayed: true })
    }
  })

  test('R48: an attempt that has replaced an expired record commits behind a purge that came in between', async () => {
    await order('held')
    await expire()
    const outcome = await once.transaction(operationOn('held'), async ({ tx }) => {
      await insertOrder(tx, 'held')
      expect(await guard.once().purge()).toMatchObject({ records: 0, complete: true })
    })
    expect(outcome).toMatchObject({ replayed: false })
    expect(await order('held')).toMatchObject({ replayed: true })
  })
})

test('SC39, B98, I13: three purges during load remove what is expired, nothing else, and nobody fails', async () => {
  await guard.admin.query(
    `insert into effectively_once.operation
       (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, outcome, expires_at,
        response, response_expires_at)
     select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '["old"]', 1, '1',
       clock_timestamp() + (case when n % 3 = 0 then 1 else -1 end) * interval '1 hour',
       case when n % 2 = 0 then '\\x01'::bytea end, case when n % 2 = 0 then clock_timestamp() - interval '1 hour' end
     from generate_series(1, 30000) n`,
  )
  let stop = false
  const written: string[] = []
  const load = Array.from({ length: 8 }, async (_, caller) => {
    for (let at = 0; !stop; at++) {
      const key = `load-${caller}-${at}`
      expect(await order(key)).toMatchObject({ replayed: false })
      written.push(key)
    }
  })
  const purges = [guard.once(), guard.once(), guard.once({}, {}, {})]
  const reports = await Promise.all(purges.map((one) => one.purge({ batchRows: 500, restMs: 1 })))
  stop = true
  await Promise.all(load)
  expect(reports.every(({ complete }) => complete)).toBe(true)
  // What one of them skipped, because another held it, was that one's to remove.
  expect(sum(reports)).toBe(20_000)
  expect(reports.reduce((all, { responses }) => all + responses, 0)).toBe(5_000)
  const { rows } = await guard.admin.query(
    `select count(*)::int as n, count(response)::int as responses from effectively_once.operation where scope = '["old"]'`,
  )
  expect(rows[0]).toEqual({ n: 10_000, responses: 0 })
  expect(written.length).toBeGreaterThan(0)
  expect(await recordCount()).toBe(10_000 + written.length)
  expect((await Promise.all(written.slice(-50).map((key) => order(key)))).every(({ replayed }) => replayed)).toBe(true)
})

test('I13, B100: however old, what is unfinished, pending, parked, waiting or quarantined stays, and so do its marks', async () => {
  const { admin } = guard
  const old = `now() - interval '10 years'`
  const message = `0, n, gen_random_uuid(), 't', '{}', 'text', 'application/json', '{}', ${old}`
  const columns = 'lane, seq, id, topic, payload, encoding, content_type, headers, created_at'
  const into = (table: string, more: string, values: string) =>
    admin.query(
      `insert into effectively_once.${table} (${columns}${more}) overriding system value select ${message}${values} from generate_series(1, 2) n`,
    )
  await into('outbox', '', '')
  await into('outbox_parked', ', parked_at, reason, next_at', `, ${old}, 'refused', ${old}`)
  await into('outbox_quarantine', ', quarantined_at, reason', `, ${old}, 'invalid'`)
  await into('outbox_history', ', published_at', `, ${old}`)
  const id = (n: number) => `00000000-0000-4000-8000-00000000000${n}`
  await admin.query(
    `insert into effectively_once.inbox (id, consumer, source, message_id, fingerprint, handled_at, expires_at)
     select ('00000000-0000-4000-8000-00000000000' || n)::uuid, 'c', '', n::text, '\\x00', ${old}, ${old}
     from generate_series(1, 3) n`,
  )
  await admin.query(
    `insert into effectively_once.inbox_waiting
       (id, consumer, source, message_id, fingerprint, reason, due_at, queue, topic, transport, body, created_at)
     values ('${id(1)}', 'c', '', '1', '\\x00', 'no-handler', ${old}, 'q', 't', '{}', '\\x00', ${old})`,
  )
  await admin.query(
    `insert into effectively_once.inbox_quarantine
       (mark_id, consumer, source, message_id, fingerprint, reason, queue, topic, transport, body, received_at, quarantined_at)
     values ('${id(2)}', 'c', '', '2', '\\x00', 'refused', 'q', 't', '{}', '\\x00', ${old}, ${old})`,
  )
  // Leased operations that are not finished never expire; should one, its state keeps it all the same.
  await admin.query(
    `insert into effectively_once.operation
       (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, created_at, expires_at)
     select gen_random_uuid(), gen_random_uuid(), state, 'canonical', '\\x00', '["x"]', 1, ${old}, expires_at
     from unnest(array['processing', 'unknown', 'parked']::effectively_once.operation_state[]) state,
       unnest(array['infinity', ${old}]::timestamptz[]) expires_at`,
  )
  const report = await once.purge()
  expect(report).toMatchObject({ records: 0, marks: 1, history: 0, complete: true, lagMs: { marks: 0, history: 0 } })
  const rowsOf = async (table: string) => (await admin.query(`select from effectively_once.${table}`)).rowCount
  const tables = ['outbox', 'outbox_parked', 'outbox_quarantine', 'outbox_history', 'inbox', 'inbox_waiting']
  expect(await Promise.all([...tables, 'inbox_quarantine'].map(rowsOf))).toEqual([2, 2, 2, 2, 2, 1, 1])
  expect(await recordCount()).toBe(6)
  expect(report.lagMs.operations).toBe(0)
  // Published messages go when it is asked for, and no others.
  expect(await once.purge({ historyMs: HOUR_MS })).toMatchObject({ history: 2, complete: true })
  expect(await Promise.all([...tables, 'inbox_quarantine'].map(rowsOf))).toEqual([2, 2, 2, 0, 2, 1, 1])
})

test('R40: a purge that is stopped tells what it did and how old the oldest row is that it left', async () => {
  await Promise.all(Array.from({ length: 10 }, (_, at) => order(`stopped-${at}`)))
  await expire()
  const store = guard.once()
  const before = new AbortController()
  before.abort()
  const nothing = await store.purge({ signal: before.signal })
  expect(nothing).toMatchObject({ records: 0, complete: false })
  expect(nothing.lagMs.operations).toBeGreaterThan(HOUR_MS / 2)
  expect(await recordCount()).toBe(10)
  expect(await store.purge({ batchRows: 4 })).toMatchObject({ records: 10, complete: true, lagMs: { operations: 0 } })
})

test('R40: the signal ends a purge between two batches', async () => {
  const store = memory()
  const stop = new AbortController()
  const batches: number[] = []
  const purge = store.operations.purge.bind(store.operations)
  store.operations.purge = (batch) => {
    batches.push(batch.limit)
    stop.abort()
    return purge(batch)
  }
  const inMemory = createOnce({ store })
  for (let at = 0; at < 5; at++) {
    await inMemory.transaction({ scope: 'x', key: `k${at}`, payload: 1 }, () => null, { retentionMs: 1 })
  }
  store.database.advance(HOUR_MS)
  const report = await inMemory.purge({ batchRows: 2, signal: stop.signal })
  expect(report).toMatchObject({ records: 2, complete: false })
  expect(batches).toEqual([2])
})

test('R40: the role’s isolation level does not make purges fail each other', async () => {
  await Promise.all(Array.from({ length: 60 }, (_, at) => order(`serial-${at}`)))
  await expire()
  const serializable = { options: '-c default_transaction_isolation=serializable' }
  const reports = await Promise.all(
    Array.from({ length: 4 }, () => guard.once(serializable).purge({ batchRows: 2, restMs: 0 })),
  )
  expect(sum(reports)).toBe(60)
})

test('purge refuses a store without our tables, and options that are wrong', async () => {
  await expect(guard.once({}, { schema: 'absent' }).purge()).rejects.toSatisfy((error) =>
    isOnceError(error, 'SCHEMA_MISSING'),
  )
  for (const options of [
    { batchRows: 0 },
    { batchRows: 4_001 },
    { timeMs: 0 },
    { historyMs: -1 },
    { every: randomUUID() },
  ]) {
    await expect(once.purge(options as never)).rejects.toThrow(TypeError)
  }
})
