/** Leased operations when answers are lost, a row is bad, names of statements are taken, or the pool has nothing left. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Lease, NewJob } from '../../src/store/job.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { POOLS } from '../operation/guard.ts'
import { pgbouncerMissing, startPgBouncer } from '../services/pgbouncer.ts'
import { EFFECT, type JobsDatabase, newJob, newStep, openJobs, recordOf } from './jobs.ts'

let database: JobsDatabase

beforeAll(async () => {
  database = await openJobs()
})

afterAll(() => database.close())

const leaseOf = ({ id, token }: NewJob, fence = 1n): Lease => ({ id, token, fence })
const NUL = 'a\0b'

describe.each(POOLS)('%s pool', (_name, config) => {
  test('C15: a value that the server refuses fails its own caller only, in every group', async () => {
    const jobs = database.jobs(config)
    const all = Array.from({ length: 9 }, (_, n) => newJob(n === 4 ? { payload: NUL, kind: 'k' } : {}))
    const claims = await Promise.allSettled(all.map((job) => jobs.claim(job, 60_000)))
    expect(claims.map(({ status }) => status)).toEqual(all.map((_, n) => (n === 4 ? 'rejected' : 'fulfilled')))
    const good = all.filter((_, n) => n !== 4)

    const steps = await Promise.allSettled(
      good.map((job, n) =>
        jobs.writeStep(leaseOf(job, n === 6 ? 9n : 1n), newStep('a', n === 2 ? { result: NUL } : {})),
      ),
    )
    expect(steps.map((step) => (step.status === 'fulfilled' ? step.value : 'error'))).toEqual(
      good.map((_, n) => (n === 2 ? 'error' : n === 6 ? 'fenced' : 'stored')),
    )

    const strange = { state: 'strange' as 'succeeded' }
    const ends = await Promise.allSettled(
      good.map((job, n) => jobs.complete(leaseOf(job, n === 3 ? 9n : 1n), recordOf(job, n === 5 ? strange : {}))),
    )
    expect(ends.map((end) => (end.status === 'fulfilled' ? end.value : 'error'))).toEqual(
      good.map((_, n) => (n === 5 ? 'error' : n === 3 ? 'fenced' : 'stored')),
    )
  })

  test('SC8: a lost answer is told as such, and asking again says what was found', async () => {
    const proxy = await tcpProxy({ target: { port: Number(new URL(database.url).port) } })
    const jobs = database.jobs({ ...config, connectionString: proxy.through(database.url) })
    const job = newJob({ kind: `lost ${_name}` })
    /** Statements are known by their names, which go with each use. */
    const lose = async <T>(mark: string, act: () => Promise<T>): Promise<T> => {
      const fault = proxy.swallow(mark)
      const answer = await act()
      await fault.met
      fault.disarm()
      return answer
    }
    expect(await lose('job_insert', () => jobs.claim(job, 60_000))).toEqual({ kind: 'unresolved' })
    expect(await jobs.find(job.id)).toMatchObject({ token: job.token, fence: 1n })
    const lease = leaseOf(job)
    const effect = newStep('charge', { type: 'effect', state: 'intended', result: null, effect: EFFECT })
    expect(await lose('job_write_step', () => jobs.writeStep(lease, effect))).toBe('unresolved')
    expect(await jobs.writeStep(lease, effect)).toBe('exists')
    const done = { to: 'done', result: '1', resultVersion: 1 } as const
    expect(await lose('job_effect_decided', () => jobs.changeEffect(lease, 'charge', done))).toBe('unresolved')
    expect(await jobs.changeEffect(lease, 'charge', done)).toBe('decided')
    const back = { state: 'processing', dueInMs: 0, failed: false, reason: 'stop' } as const
    expect(await lose('job_release', () => jobs.release(lease, back))).toBe('unresolved')
    expect(await jobs.release(lease, back)).toBe('fenced')
    const next = { id: job.id, fence: 1n, token: randomUUID(), leaseMs: 60_000, claimsMax: 3 }
    expect(await lose('job_take_over', () => jobs.takeOver(next))).toEqual({ kind: 'unresolved' })
    expect(await jobs.find(job.id)).toMatchObject({ token: next.token, fence: 2n })
    const taken = { id: job.id, token: next.token, fence: 2n }
    expect(await lose('job_complete', () => jobs.complete(taken, recordOf(job)))).toBe('unresolved')
    expect(await jobs.complete(taken, recordOf(job))).toBe('fenced')
    expect(await jobs.find(job.id)).toBeUndefined()
    const error = await lose('job_find', () => jobs.find(job.id).catch((reason: unknown) => reason))
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await jobs.pool.end()
    await proxy.close()
  })
})

test('R11: leases are renewed while every connection of the pool is at work, also after the kept one has died', async () => {
  const jobs = database.jobs({ max: 4 })
  const job = newJob()
  await jobs.claim(job, 60_000)
  const renewal = { lease: leaseOf(job), leaseMs: 60_000 }
  expect(await jobs.renew([renewal])).toEqual(['renewed'])
  const busy = await Promise.all(Array.from({ length: 3 }, () => jobs.pool.connect()))
  const waiting = jobs.pool.connect()
  expect(jobs.pool.waitingCount).toBe(1)
  expect(await jobs.renew([renewal])).toEqual(['renewed'])

  await Promise.all(busy.map((client) => client.query('select 1')))
  const pids = busy.map((client) => Reflect.get(client, 'processID') as number)
  await database.admin.query(
    `select pg_terminate_backend(pid) from pg_stat_activity where query like '%job.renew%' and pid <> pg_backend_pid() and pid <> all($1)`,
    [pids],
  )
  for (const client of busy.slice(0, 2)) client.release()
  ;(await waiting).release()
  expect(await jobs.renew([renewal])).toEqual(['renewed'])
  busy[2]?.release()
  // The application's end of its pool waits for nothing of ours for long.
  await jobs.pool.end()
})

test('a pool of two keeps none of them for renewals', async () => {
  const jobs = database.jobs({ max: 2 })
  const job = newJob()
  await jobs.claim(job, 60_000)
  expect(await jobs.renew([{ lease: leaseOf(job), leaseMs: 60_000 }])).toEqual(['renewed'])
  expect(jobs.pool.idleCount).toBe(jobs.pool.totalCount)
})

test('a renewal does not wait for a step that is committing, and tells it from a lost lease', async () => {
  const jobs = database.jobs()
  const [job, other] = [newJob(), newJob()]
  await Promise.all([jobs.claim(job, 60_000), jobs.claim(other, 60_000)])
  const client = await database.admin.connect()
  await client.query('begin')
  await client.query('select from effectively_once.operation where id = $1 for share', [job.id])
  const leases = [leaseOf(job), leaseOf(other), leaseOf(newJob())].map((lease) => ({ lease, leaseMs: 60_000 }))
  expect(await jobs.renew(leases)).toEqual(['locked', 'renewed', 'lost'])
  await client.query('commit')
  client.release()
  expect(await jobs.renew(leases)).toEqual(['renewed', 'renewed', 'lost'])
})

describe.skipIf(pgbouncerMissing !== undefined)('behind PgBouncer in transaction mode', () => {
  test.each(POOLS)('%s pool: a whole life under concurrency, with and without names', async (_name, config) => {
    const bouncer = await startPgBouncer(database.url, { poolSize: 4 })
    for (const prepare of [true, false]) {
      const connectionString = bouncer.through(database.url)
      const jobs = database.jobs({ ...config, connectionString }, { prepare })
      const kind = `bounced ${_name} ${prepare}`
      const all = Array.from({ length: 40 }, () => newJob({ kind, payload: '{}' }))
      expect(new Set(await Promise.all(all.map((job) => jobs.enqueue(job, 0))))).toEqual(new Set(['stored']))
      const { claimed } = await jobs.claimDue([{ kind, version: 1, leaseMs: 60_000, claimsMax: 3 }], 100)
      expect(new Set(claimed.map(({ id }) => id))).toEqual(new Set(all.map(({ id }) => id)))
      const ends = await Promise.all(
        claimed.map(async ({ lease }, n) => {
          expect(await jobs.renew([{ lease, leaseMs: 60_000 }])).toEqual(['renewed'])
          expect(await jobs.writeStep(lease, newStep('memo'))).toBe('stored')
          const step = await jobs.openStep(lease, { idleTimeoutMs: 10_000 })
          await step.tx.query('insert into business (name) values ($1)', [`${kind} ${n}`])
          expect(await step.finish(newStep('write', { type: 'transaction' }), [])).toBe('stored')
          return await jobs.complete(lease, recordOf(newJob({ id: lease.id })))
        }),
      )
      expect(new Set(ends)).toEqual(new Set(['stored']))
      await jobs.pool.end()
    }
    const { rows } = await database.admin.query<{ n: number }>(
      'select count(distinct name)::int as n from business where name like $1',
      [`bounced ${_name}%`],
    )
    expect(rows[0]?.n).toBe(80)
    await bouncer.stop()
  })
})

test('names of statements that somebody else has taken are done without', async () => {
  const pool = new pg.Pool({ connectionString: database.url, max: 4, pipeline: true })
  pool.on('connect', (client) => {
    for (const name of ['insert_1', 'insert', 'complete_1', 'find']) {
      void client.query(`prepare eo_effectively_once_job_${name} as select 1`)
    }
  })
  const { Connections } = await import('../../src/stores/postgres/connections.ts')
  const { PostgresJobs } = await import('../../src/stores/postgres/jobs.ts')
  const connections = new Connections<pg.PoolClient>(pool, { limit: 4, acquireTimeoutMs: 5_000, waitersMax: 10 })
  const settings = { schema: '"effectively_once"', answerTimeoutMs: 5_000, prepare: true }
  const jobs = new PostgresJobs(pool, 4, connections, settings)
  const all = Array.from({ length: 4 }, () => newJob())
  const life = async (job: NewJob) => [
    (await jobs.claim(job, 60_000)).kind,
    (await jobs.find(job.id))?.state,
    await jobs.complete(leaseOf(job), recordOf(job)),
  ]
  expect(await Promise.all(all.map(life))).toEqual(all.map(() => ['claimed', 'processing', 'stored']))
  await pool.end()
})
