/** Plans: every statement on the operation table that looks for a record finds it by the primary key. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { fingerprint } from '../../src/fingerprint/fingerprint.ts'
import type { PgStatement } from '../../src/stores/postgres/handle.ts'
import { operationStatements } from '../../src/stores/postgres/statements.ts'
import { type Guard, openGuard } from './guard.ts'

let guard: Guard
const ROWS = 100_000
const id = '00000000-0000-4000-8000-000000000007'
const attempt = { id, scope: '["x"]', token: randomUUID(), fingerprint: fingerprint(null) }
const record = {
  ...attempt,
  fingerprint: { value: attempt.fingerprint.value, mode: attempt.fingerprint.mode, keyId: null },
  state: 'succeeded' as const,
  outcomeVersion: 1,
  outcome: '1',
  retentionMs: 60_000,
}
const sql = operationStatements('"effectively_once"')

beforeAll(async () => {
  guard = await openGuard()
  await guard.admin.query(
    `insert into effectively_once.operation
       (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, outcome, expires_at)
     select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '["x"]', 1, '1', now() + interval '1 day'
     from generate_series(1, $1)`,
    [ROWS],
  )
  await guard.admin.query('analyze effectively_once.operation')
})

afterAll(() => guard.close())

async function planOf(statement: PgStatement, generic: boolean): Promise<string> {
  const client = await guard.admin.connect()
  try {
    await client.query(`set plan_cache_mode = ${generic ? 'force_generic_plan' : 'force_custom_plan'}`)
    const { rows } = await client.query({ text: `explain ${statement.text}`, values: statement.values ?? [] })
    return rows.map((row) => row['QUERY PLAN']).join('\n')
  } finally {
    client.release(true)
  }
}

const LOOKING: readonly (readonly [string, PgStatement])[] = [
  ['lookup of one', sql.lookup([id])],
  ['lookup of 500', sql.lookup(Array.from({ length: 500 }, () => randomUUID()))],
  ['token', sql.token(id)],
  ['removeExpired', sql.removeExpired(id)],
]

test.each(LOOKING)(`%s uses the primary key at ${ROWS} rows`, async (_name, statement) => {
  for (const generic of [false, true]) {
    const plan = await planOf(statement, generic)
    expect(plan).toMatch(/operation_pkey/)
    expect(plan).not.toMatch(/Seq Scan/)
  }
})

const WRITING: readonly (readonly [string, PgStatement])[] = [
  ['gate', sql.gate(attempt, 30_000)],
  ['open', sql.open(30_000)],
  ['claim', sql.claim(attempt)],
  ['lockBoth', sql.lockBoth(attempt)],
  ['record', sql.record(record)],
  ['recordIf', sql.recordIf(record, '1')],
  ['record with a response', sql.record({ ...record, response: Buffer.of(1), responseRetentionMs: 1 })],
  ['recordIf with a response', sql.recordIf({ ...record, response: Buffer.of(1), responseRetentionMs: 1 }, '1')],
  ['running', sql.running(id)],
  ['single', sql.single(record, { text: 'select 1 as n' }, 1_000)],
]

test.each(WRITING)('%s reads no table of ours', async (_name, statement) => {
  expect(await planOf(statement, false)).not.toMatch(/Scan on operation/)
})

test('the look-up inside the gate and the claim uses the primary key', async () => {
  const client = await guard.admin.connect()
  try {
    const before = await scans(client)
    await client.query('begin deferrable')
    await client.query(sql.gate(attempt, 30_000))
    await client.query('rollback')
    await client.query('begin')
    await client.query(sql.claim(attempt))
    await client.query('rollback')
    expect(await scans(client)).toBe(before)
  } finally {
    client.release(true)
  }
})

/** Sequential scans of the table so far, as this session has reported them. */
async function scans(client: { query(text: string): Promise<{ rows: { seq_scan: string }[] }> }): Promise<string> {
  await client.query('select pg_stat_force_next_flush()')
  const { rows } = await client.query(
    `select seq_scan from pg_stat_user_tables where schemaname = 'effectively_once' and relname = 'operation'`,
  )
  return String(rows[0]?.seq_scan)
}

test('every statement of the module has its plan looked at here', () => {
  const seen = new Set([...LOOKING, ...WRITING].map(([name]) => name.split(' ')[0]))
  expect(Object.keys(sql).sort((a, b) => a.localeCompare(b))).toEqual(
    [...seen].sort((a = '', b = '') => a.localeCompare(b)),
  )
})
