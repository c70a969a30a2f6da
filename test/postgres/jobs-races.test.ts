/** Leased operations under real concurrency: one owner, no deadlock, no step beside a takeover. */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Lease, NewJob } from '../../src/store/job.ts'
import { until } from '../operation/guard.ts'
import { type JobsDatabase, newJob, newStep, openJobs, recordOf } from './jobs.ts'

let database: JobsDatabase

beforeAll(async () => {
  database = await openJobs()
})

afterAll(() => database.close())

const leaseOf = ({ id, token }: NewJob, fence = 1n): Lease => ({ id, token, fence })

/** Deadlocks that the server has found in this database. */
async function deadlocks(): Promise<number> {
  const { rows } = await database.admin.query<{ deadlocks: string }>(
    'select deadlocks from pg_stat_database where datname = current_database()',
  )
  return Number(rows[0]?.deadlocks)
}

test('SC3: of 32 contenders in two processes for each of 20 ended leases exactly one is the owner', async () => {
  const all = Array.from({ length: 20 }, () => newJob())
  const jobs = database.jobs()
  await Promise.all(all.map((job) => jobs.enqueue(job, 0)))
  const ids = all.map(({ id }) => id)
  const answers = await Promise.all([contend(ids), contend(ids)])
  for (const id of ids) {
    const claimed = answers.flatMap((answer) => answer[id] ?? []).filter((kind) => kind === 'claimed')
    expect(claimed).toHaveLength(1)
    expect((await jobs.find(id))?.fence).toBe(1n)
  }
})

/** 16 contenders for each id in a process of their own; what each was answered. */
async function contend(ids: readonly string[]): Promise<Record<string, string[]>> {
  const program = fileURLToPath(new URL('../processes/job-contenders.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', program, database.url, ...ids], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const chunks: Buffer[] = []
  child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
  const code = await new Promise((resolve) => child.on('close', resolve))
  expect(code).toBe(0)
  return JSON.parse(Buffer.concat(chunks).toString()) as Record<string, string[]>
}

test('renewals, completions, claims, hand-backs and step commits of the same operations at once never deadlock', async () => {
  const before = await deadlocks()
  const kind = 'busy'
  const stores = [database.jobs({ max: 8 }), database.jobs({ max: 8, pipeline: false })]
  const [one] = stores
  if (one === undefined) throw new Error('no store')
  const all = Array.from({ length: 60 }, () => newJob({ kind }))
  await Promise.all(all.map((job) => one.enqueue(job, 0)))
  const held = new Map<string, Lease>()
  const answers = new Set<string>()
  let finished = 0
  const life = async (jobs: (typeof stores)[number]) => {
    for (let round = 0; round < 400 && finished < all.length; round++) {
      const { claimed } = await jobs.claimDue([{ kind, version: 1, leaseMs: 60_000, claimsMax: 1_000 }], 7)
      for (const { lease } of claimed) held.set(lease.id, lease)
      // Everybody does everything to every lease, also to those of others: at most one of each kind can be right.
      const mine = [...held.values()].sort(() => (round % 2 === 0 ? 1 : -1))
      const renewals = mine.map((lease) => ({ lease, leaseMs: 60_000 }))
      const [renewed, ...others] = await Promise.all([
        jobs.renew(renewals),
        ...mine.slice(0, 5).map(async (lease, n) => {
          const step = await jobs.openStep(lease, { idleTimeoutMs: 10_000 })
          await step.tx.query('insert into business (name) values ($1)', [`${lease.id} ${round}`]).catch(() => {})
          return await step
            .finish(newStep(`${round} ${n} ${randomUUID()}`, { type: 'transaction' }), [])
            .catch(() => 'fenced')
        }),
        ...mine.map((lease) => jobs.writeStep(lease, newStep(`memo ${round} ${randomUUID()}`))),
        ...mine
          .filter((_, n) => (n + round) % 3 === 0)
          .map((lease) => jobs.release(lease, { state: 'processing', dueInMs: 0, failed: false, reason: 'again' })),
        ...mine
          .filter((_, n) => (n + round) % 3 === 1)
          .map(async (lease) => {
            const answer = await jobs.complete(lease, recordOf(newJob({ id: lease.id })))
            if (answer === 'stored') {
              finished += 1
              held.delete(lease.id)
            }
            return answer
          }),
      ])
      for (const answer of [...renewed, ...others]) answers.add(String(answer))
    }
  }
  await Promise.all(stores.map(life))
  expect(finished).toBe(all.length)
  expect([...answers].filter((answer) => answer === 'retry' || answer === 'unresolved')).toEqual([])
  await database.admin.query('select pg_stat_force_next_flush()')
  expect(await deadlocks()).toBe(before)
})

test('I5: a step that is committing when its lease ends is not taken over before, and the next owner finds it', async () => {
  const { admin } = database
  const jobs = database.jobs()
  // A deferred constraint of the application, which takes as long as somebody holds a lock.
  await admin.query('create table slow (name text)')
  await admin.query(
    `create function wait() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock(42); return new; end'`,
  )
  await admin.query(
    'create constraint trigger slow after insert on slow deferrable initially deferred for each row execute function wait()',
  )
  const holder = await admin.connect()
  await holder.query('select pg_advisory_lock(42)')

  const job = newJob()
  await jobs.claim(job, 700)
  const step = await jobs.openStep(leaseOf(job), { idleTimeoutMs: 10_000 })
  await step.tx.query('insert into slow values ($1)', ['x'])
  const finished = step.finish(newStep('slow', { type: 'transaction' }), [])
  await until(async () => (await waiting()) === 1 && (await jobs.find(job.id))?.leaseLeftMs === null)

  const next = { id: job.id, fence: 1n, token: randomUUID(), leaseMs: 60_000, claimsMax: 3 }
  expect(await jobs.takeOver(next)).toEqual({ kind: 'busy' })
  await holder.query('select pg_advisory_unlock(42)')
  holder.release()
  expect(await finished).toBe('stored')
  expect(await jobs.takeOver(next)).toMatchObject({ kind: 'claimed', fence: 2n })
  expect((await jobs.steps(job.id)).map(({ name }) => name)).toEqual(['slow'])
  expect(await jobs.writeStep(leaseOf(job), newStep('late'))).toBe('fenced')
})

/** Commits that wait for the lock of the slow constraint. */
async function waiting(): Promise<number> {
  const { rows } = await database.admin.query<{ n: number }>(
    `select count(*)::int as n from pg_locks where locktype = 'advisory' and objid = 42 and not granted`,
  )
  return rows[0]?.n ?? 0
}
