/** Leased operations on PostgreSQL: what an open transaction and an expired record do to a claim. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type JobsDatabase, newJob, newStep, openJobs } from './jobs.ts'

let database: JobsDatabase

beforeAll(async () => {
  database = await openJobs()
})

afterAll(() => database.close())

test('B27: while a transaction has an uncommitted job, others are told to ask again, and nobody waits for it', async () => {
  const jobs = database.jobs()
  const job = newJob({ kind: 'invoice' })
  const neighbour = newJob()
  const client = await database.admin.connect()
  await client.query('begin')
  expect(await jobs.enqueueIn(client, job, 0)).toBe('stored')
  expect(await jobs.enqueueIn(client, job, 0)).toBe('exists')
  const answers = await Promise.all([jobs.claim(job, 1_000), jobs.claim(neighbour, 1_000), jobs.enqueue(job, 0)])
  expect(answers).toEqual([{ kind: 'busy' }, { kind: 'claimed', fence: 1n }, 'busy'])
  await client.query('rollback')
  client.release()
  expect(await jobs.enqueue(job, 0)).toBe('stored')
  expect(await jobs.claim(job, 1_000)).toEqual({ kind: 'exists' })
})

test('a record whose time is over makes room for a claim, in the middle of others', async () => {
  const jobs = database.jobs()
  const all = Array.from({ length: 5 }, () => newJob())
  await database.admin.query(
    `insert into effectively_once.operation
       (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, expires_at)
     select unnest($1::uuid[]), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '[]', 1, now() - interval '1 second'`,
    [[all[1]?.id, all[3]?.id]],
  )
  const answers = await Promise.all(all.map((job) => jobs.claim(job, 1_000)))
  expect(answers).toEqual(all.map(() => ({ kind: 'claimed', fence: 1n })))
})

test.each(['commit', 'rollback'])('B110: a step whose work ended its transaction by %s is not stored', async (end) => {
  const jobs = database.jobs()
  const job = newJob()
  expect(await jobs.claim(job, 60_000)).toEqual({ kind: 'claimed', fence: 1n })
  const opened = await jobs.openStep({ id: job.id, token: job.token, fence: 1n }, { idleTimeoutMs: 10_000 })
  await opened.tx.query('insert into business (name) values ($1)', [end])
  await opened.tx.query(end)
  await opened.tx.query('begin')
  expect(await opened.finish(newStep('ended', { type: 'transaction' }), [])).toBe('ended')
  expect(await jobs.steps(job.id)).toEqual([])
})
