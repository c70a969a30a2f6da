/** Plans of leased operations: no statement reads a table of ours from end to end, and a claim computes its rows once. */
import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { PgStatement } from '../../src/stores/postgres/handle.ts'
import { jobOperatorStatements } from '../../src/stores/postgres/job-operator.ts'
import { jobStatements } from '../../src/stores/postgres/job-statements.ts'
import { stepStatements } from '../../src/stores/postgres/job-step-statements.ts'
import { EFFECT, type JobsDatabase, newJob, newStep, openJobs, recordOf } from './jobs.ts'

let database: JobsDatabase
const FINISHED = 60_000
const UNFINISHED = 5_000
const schema = '"effectively_once"'
const sql = { ...jobStatements(schema), ...stepStatements(schema), ...jobOperatorStatements(schema) }

beforeAll(async () => {
  database = await openJobs()
  const { admin } = database
  await admin.query(
    `insert into effectively_once.operation (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, outcome, expires_at)
     select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '[]', 1, '1', now() + interval '1 day'
     from generate_series(1, $1)`,
    [FINISHED],
  )
  await admin.query(
    `insert into effectively_once.operation (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, expires_at,
       fence, lease_until, due_at, claims, failures, kind, kind_version)
     select gen_random_uuid(), gen_random_uuid(), (array['processing', 'unknown', 'parked'])[1 + n % 3]::effectively_once.operation_state,
       'canonical', '\\x00', '[]', 0, 'infinity', 1, now() - interval '1 second', now() - n * interval '1 second', 1, 0, 'k' || n % 20, 1
     from generate_series(1, $1) n`,
    [UNFINISHED],
  )
  await admin.query(
    `insert into effectively_once.step (operation_id, name, position, type, state, result_version, result, fence, delivery, request,
       request_hash, provider_key, key_generation, attempts, looks, first_attempt_at, last_attempt_at)
     select id, 'charge', 0, 'effect', 'done', 1, '1', 1, 'keyed', '{}', 'h', id::text, 0, 1, 0, now(), now() from effectively_once.operation`,
  )
  await admin.query(
    `insert into effectively_once.job_event (operation_id, fence, event) select id, 1, 'failed' from effectively_once.operation`,
  )
  await admin.query('analyze')
})

afterAll(() => database.close())

const lease = { id: randomUUID(), token: randomUUID(), fence: 1n }
const job = newJob({ kind: 'k1', payload: '{}' })
const insert = { job, leaseMs: 1_000, delayMs: 0 }
const completion = { lease, record: recordOf(job) }
const stepWrite = { lease, step: newStep('s', { type: 'effect', effect: EFFECT }) }
const renewal = { lease, leaseMs: 1_000 }
const act = { actor: 'a', reason: 'r' }
const kinds = [1, 2, 3].map((n) => ({ kind: `k${n}`, version: 1, leaseMs: 1_000, claimsMax: 3 }))
const many = <T>(one: T, count: number): T[] => Array.from({ length: count }, () => one)

const STATEMENTS: readonly (readonly [string, PgStatement])[] = [
  ['insert', sql.insert(many(insert, 100))],
  ['insertNew', sql.insertNew(many(insert, 100))],
  ['insertOne', sql.insertOne(insert)],
  ['completeOne', sql.completeOne(completion)],
  ['writeStep', sql.writeStep(stepWrite)],
  ['held', sql.held([renewal])],
  ['takeOver', sql.takeOver({ id: lease.id, fence: 1n, token: randomUUID(), leaseMs: 1_000, claimsMax: 3 })],
  ['claimDue', sql.claimDue(kinds, 10)],
  ['release', sql.release(lease, { state: 'processing', dueInMs: 1, failed: true, reason: 'r' })],
  ['changeEffect to attempt', sql.changeEffect(lease, 's', { to: 'attempt', keyAgeMaxMs: 1 })],
  ['changeEffect to newKey', sql.changeEffect(lease, 's', { to: 'newKey', providerKey: 'k' })],
  ['changeEffect to looked', sql.changeEffect(lease, 's', { to: 'looked', looks: 1 })],
  ['changeEffect to unknown', sql.changeEffect(lease, 's', { to: 'unknown' })],
  ['changeEffect to done', sql.changeEffect(lease, 's', { to: 'done', result: null, resultVersion: 1 })],
  ['find', sql.find([lease.id])],
  ['find of 500', sql.find(many(lease.id, 500))],
  ['steps', sql.steps(lease.id)],
  ['list', sql.list({ states: ['processing', 'unknown', 'parked'], limit: 50 })],
  ['list after', sql.list({ states: ['parked'], limit: 50, after: lease.id })],
  ['history', sql.history(lease.id)],
  ['storeStep', sql.storeStep(lease, stepWrite.step)],
  ['removeExpired', sql.removeExpired(lease.id)],
]

test.each(STATEMENTS)('%s reads no table of ours from end to end', async (_name, statement) => {
  for (const generic of [false, true]) {
    const plan = await planOf(statement, [
      `set plan_cache_mode = ${generic ? 'force_generic_plan' : 'force_custom_plan'}`,
    ])
    expect(plan).not.toMatch(/Seq Scan on (operation|step|job_event)/)
  }
})

/** Statements that are one call of a function of ours; what the function reads is counted. */
const CALLS: readonly (readonly [string, () => PgStatement])[] = [
  ['gate', () => sql.gate(lease, 1_000)],
  ['seal', () => sql.seal(lease, undefined)],
  ['enqueueIn', () => sql.enqueueIn({ job: newJob({ kind: 'k1' }), leaseMs: null, delayMs: 0 }, '1')],
  ['complete of 100', () => sql.complete(many(completion, 100))],
  ['writeSteps of 100', () => sql.writeSteps(many(stepWrite, 100))],
  ['renew of 100', () => sql.renew(many(renewal, 100))],
  ['resolveEffect by name', () => sql.resolveEffect({ id: lease.id, name: 's' }, { state: 'notApplied' }, act)],
  ['resolveEffect by key', () => sql.resolveEffect({ providerKey: 'k' }, { state: 'notApplied' }, act)],
  ['resolveOperation', () => sql.resolveOperation(recordOf(newJob()), act)],
  ['redrive', () => sql.redrive(lease.id, act)],
]

test.each(CALLS)('%s reads no table of ours from end to end inside its function', async (name, make) => {
  const client = await database.admin.connect()
  try {
    const before = await scans(client)
    await client.query(name === 'gate' ? 'begin deferrable' : 'begin')
    await client.query(make()).catch((error: { code?: string }) => expect(error.code).toBe('EO008'))
    await client.query('rollback')
    expect(await scans(client)).toBe(before)
  } finally {
    client.release(true)
  }
})

test('plans of groups that were made while the table was small read nothing from end to end when it has grown', async () => {
  const fresh = await openJobs()
  const client = await fresh.admin.connect()
  try {
    await client.query('alter table effectively_once.operation set (autovacuum_enabled = false)')
    const owned = Array.from({ length: 20 }, () => newJob())
    await client.query(sql.insert(owned.map((job) => ({ job, leaseMs: 60_000, delayMs: 0 }))))
    const leases = owned.map(({ id, token }) => ({ id, token, fence: 1n }))
    const groups = [
      sql.renew(leases.map((one) => ({ lease: one, leaseMs: 60_000 }))),
      sql.writeSteps(leases.map((one) => ({ lease: one, step: newStep('s') }))),
      sql.complete(leases.map((one) => ({ lease: { ...one, fence: 2n }, record: recordOf(job) }))),
    ]
    // A plan for all values is made when five for single ones were no better.
    for (let times = 0; times < 8; times++) for (const group of groups) await client.query(group)
    await client.query(
      `insert into effectively_once.operation (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, expires_at)
       select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '[]', 1, now() + interval '1 day' from generate_series(1, 2000)`,
    )
    const before = await scans(client)
    for (const group of groups) await client.query(group)
    expect(await scans(client)).toBe(before)
  } finally {
    client.release(true)
    await fresh.close()
  }
})

test('every statement of the modules has its plan looked at here', () => {
  const byName = (one: string, other: string) => one.localeCompare(other)
  const seen = new Set([...STATEMENTS, ...CALLS].map(([name]) => name.split(' ')[0] ?? ''))
  expect([...seen].sort(byName)).toEqual(Object.keys(sql).sort(byName))
})

test.each([
  ['nested loops', ['set enable_hashjoin = off', 'set enable_mergejoin = off']],
  ['hash joins', ['set enable_nestloop = off', 'set enable_mergejoin = off']],
  ['merge joins', ['set enable_nestloop = off', 'set enable_hashjoin = off']],
] as const)('B30: with %s a claim of 7 changes exactly the 7 rows that it returns', async (_name, settings) => {
  const client = await database.admin.connect()
  try {
    await client.query('begin')
    for (const setting of settings) await client.query(setting)
    const before = await changes(client)
    const { rows } = await client.query(sql.claimDue(kinds, 7))
    expect(new Set(rows.map((row) => row.id)).size).toBe(7)
    expect((await changes(client)) - before).toBe(7)
    const { rows: claimed } = await client.query(
      `select count(*)::int as n from effectively_once.operation where lease_until > clock_timestamp() and state = 'processing'`,
    )
    expect(claimed[0].n).toBe(7)
    await client.query('rollback')
    const plan = await planOf(sql.claimDue(kinds, 7), settings)
    // One node locks, below the part that is computed once.
    expect(plan.match(/LockRows/g)).toHaveLength(1)
    expect(plan).toMatch(/CTE due\n.*\n?.*LockRows/)
  } finally {
    client.release(true)
  }
})

test('a claim does not walk over due jobs of other kinds', async () => {
  const client = await database.admin.connect()
  try {
    await client.query('begin')
    const { text, values = [] } = sql.claimDue([{ kind: 'no such kind', version: 1, leaseMs: 1, claimsMax: 1 }], 5)
    const { rows } = await client.query<{ 'QUERY PLAN': unknown }>(`explain (analyze, format json) ${text}`, values)
    const plan = JSON.stringify(rows[0]?.['QUERY PLAN'])
    expect(plan).toContain('operation_due')
    expect(plan).not.toMatch(/"Rows Removed by Filter": ?[1-9]/)
    await client.query('rollback')
  } finally {
    client.release(true)
  }
})

async function planOf(statement: PgStatement, settings: readonly string[]): Promise<string> {
  const client = await database.admin.connect()
  try {
    for (const setting of settings) await client.query(setting)
    const { rows } = await client.query({ text: `explain ${statement.text}`, values: statement.values ?? [] })
    return rows.map((row) => row['QUERY PLAN']).join('\n')
  } finally {
    client.release(true)
  }
}

/** Sequential scans of our tables so far, as this session has reported them. */
async function scans(client: pg.PoolClient): Promise<string> {
  await client.query('select pg_stat_force_next_flush()')
  const { rows } = await client.query(
    `select sum(seq_scan) as n from pg_stat_user_tables where schemaname = 'effectively_once' and relname in ('operation', 'step', 'job_event')`,
  )
  return String(rows[0]?.n)
}

/** Rows of the table that this transaction has changed. */
async function changes(client: pg.PoolClient): Promise<number> {
  const { rows } = await client.query(
    `select n_tup_upd::int as n from pg_stat_xact_user_tables where schemaname = 'effectively_once' and relname = 'operation'`,
  )
  return rows[0].n
}
