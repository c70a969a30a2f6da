/**
 * A newer job in place of an older one: before the older has started, and while somebody works on it.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type { ConformanceCase } from '../../shared/conformance.ts'
import { isFinished } from '../operation.ts'
import type { StoreHarness } from './harness.ts'
import { ACT, again, assertFenced, jobOf, LEASE_MS, recordOf, releaseOf, stepOf, withJobs } from './job-setup.ts'

const HOUR_MS = 3_600_000
const BY = 'nightly@2026-11-30T02:30:00.000Z'

/** The same key with another payload. */
function newer(job: ReturnType<typeof jobOf>): ReturnType<typeof jobOf> {
  const { value, mode } = fingerprint({ amount: 2 })
  return { ...again(job), fingerprint: { value, mode, keyId: null }, payload: '{"amount":2}', version: 2 }
}

const rollback = new Error('rolled back by the case')

export const jobReplaceCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'SC52: a job that nobody has claimed gets the newer content, at once or when the older one was due',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find, happened }) => {
        const job = jobOf()
        assert.equal(await jobs.replace(newer(job), 0), 'missing')
        assert.equal(await jobs.enqueue(job, HOUR_MS), 'stored')
        const kept = newer(job)
        assert.equal(await jobs.replace(kept, null), 'replaced')
        const found = await find(job.id)
        const { token, payload, version, fence, claims } = found
        assert.deepEqual([token, payload, version, fence, claims], [kept.token, kept.payload, 2, 0n, 0])
        assert.deepEqual([...found.fingerprint.value], [...kept.fingerprint.value])
        assert(found.dueInMs !== null && found.dueInMs > HOUR_MS / 2)
        assert.equal(await jobs.replace(again(kept), 0), 'replaced')
        assert.equal((await find(job.id)).dueInMs, 0)
        assert.deepEqual(await happened(job.id), ['replaced', 'replaced'])
      }),
  },
  {
    name: 'SC52: a job that was claimed, given back, finished, or is another kind’s is not replaced',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, find }) => {
        const job = jobOf()
        const lease = await claim(job)
        assert.equal(await jobs.replace(newer(job), 0), 'started')
        assert.equal(await jobs.release(lease, releaseOf()), 'stored')
        assert.equal(await jobs.replace(newer(job), 0), 'started')
        assert.equal((await find(job.id)).payload, job.payload)
        const done = jobOf()
        assert.equal(await jobs.complete(await claim(done), recordOf(done, done.token)), 'stored')
        assert.equal(await jobs.replace(newer(done), 0), 'started')
        const waiting = jobOf()
        assert.equal(await jobs.enqueue(waiting, 0), 'stored')
        assert.equal(await jobs.replace({ ...newer(waiting), kind: 'another' }, 0), 'started')
        assert.equal((await find(waiting.id)).payload, waiting.payload)
      }),
  },
  {
    name: 'SC52: of workers that claim and callers that replace at the same time, either the newer content runs or it is refused',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find, claimDue }) => {
        for (let round = 0; round < 10; round += 1) {
          const job = jobOf()
          assert.equal(await jobs.enqueue(job, 0), 'stored')
          const late = newer(job)
          const [, answer] = await Promise.all([claimDue(1), jobs.replace({ ...late, version: 1 }, 0)])
          const { payload, fence } = await find(job.id)
          assert.equal(payload, answer === 'replaced' ? late.payload : job.payload)
          if (answer === 'started') assert.equal(fence, 1n)
          await claimDue(1)
          assert.equal((await find(job.id)).fence, 1n)
        }
      }),
  },
  {
    name: 'SC52: a job is replaced in a transaction if and only if that commits',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, find }) => {
        const job = jobOf()
        assert.equal(await jobs.enqueue(job, HOUR_MS), 'stored')
        const late = newer(job)
        const work = opened.transaction(async (tx) => {
          assert.equal(await jobs.replaceIn(tx, late, 0), 'replaced')
          assert.equal(await jobs.replace(newer(job), 0), 'busy')
          throw rollback
        })
        await assert.rejects(work, rollback)
        assert.equal((await find(job.id)).payload, job.payload)
        await opened.transaction(async (tx) => assert.equal(await jobs.replaceIn(tx, late, 0), 'replaced'))
        assert.equal((await find(job.id)).payload, late.payload)
        const own = jobOf()
        await opened.transaction(async (tx) => {
          assert.equal(await jobs.enqueueIn(tx, own, 0), 'stored')
          assert.equal(await jobs.replaceIn(tx, newer(own), 0), 'replaced')
        })
        assert.equal((await find(own.id)).payload, newer(own).payload)
        const idle = await opened.idleHandle()
        await assert.rejects(jobs.replaceIn(idle.tx, late, 0), { code: 'NOT_A_TRANSACTION' })
        await assert.rejects(jobs.endIn(idle.tx, recordOf(job, late.token), BY), { code: 'NOT_A_TRANSACTION' })
        await idle.close()
      }),
  },
  {
    name: 'SC52, SC47, I5: an operation that is ended has its outcome, and its owner is fenced and stores nothing',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { opened, jobs, happened } = bench
        const job = jobOf()
        const lease = await bench.claimWithEffect({}, job)
        const answered = { to: 'done', result: '"ok"', resultVersion: 1 } as const
        assert.equal(await jobs.changeEffect(lease, 'charge', answered), 'stored')
        const record = recordOf(job, again(job).token, { state: 'rejected', outcome: '{"code":"REPLACED"}' })
        await assert.rejects(
          opened.transaction(async (tx) => {
            assert.equal(await jobs.endIn(tx, record, BY), 'ended')
            throw rollback
          }),
          rollback,
        )
        assert.equal(await jobs.writeStep(lease, stepOf('goes on', { position: 1, type: 'memo' })), 'stored')
        await opened.transaction(async (tx) => assert.equal(await jobs.endIn(tx, record, BY), 'ended'))
        const found = await opened.store.operations.lookup(job.id)
        assert(found !== undefined && isFinished(found))
        assert.deepEqual([found.state, found.outcome], ['rejected', record.outcome])
        assert.deepEqual([...found.fingerprint.value], [...job.fingerprint.value])
        await assertFenced(bench, lease, job)
        assert.deepEqual(await happened(job.id), ['replaced'])
        await opened.transaction(async (tx) => assert.equal(await jobs.endIn(tx, record, BY), 'decided'))
        await opened.transaction(async (tx) => {
          const none = jobOf()
          assert.equal(await jobs.endIn(tx, recordOf(none, none.token), BY), 'missing')
        })
      }),
  },
  {
    name: 'SC52, I11: an operation that is parked, or whose effect may have happened, is kept and goes on',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, claim, claimWithEffect, find }) => {
        const ends = (job: ReturnType<typeof jobOf>) =>
          opened.transaction((tx) => jobs.endIn(tx, recordOf(job, again(job).token, { state: 'rejected' }), BY))
        const job = jobOf()
        const lease = await claimWithEffect({}, job)
        assert.equal(await ends(job), 'kept')
        assert.deepEqual(await jobs.renew([{ lease, leaseMs: LEASE_MS }]), ['renewed'])
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        assert.equal(await jobs.release(lease, releaseOf({ state: 'unknown', dueInMs: null })), 'stored')
        assert.equal(await ends(job), 'kept')
        const proven = { state: 'notApplied' } as const
        assert.equal(await jobs.resolveEffect({ id: job.id, name: 'charge' }, proven, ACT), 'resolved')
        assert.equal(await ends(job), 'ended')
        const parked = jobOf()
        assert.equal(await jobs.release(await claim(parked), releaseOf({ state: 'parked', dueInMs: null })), 'stored')
        assert.equal(await ends(parked), 'kept')
        assert.equal((await find(parked.id)).state, 'parked')
      }),
  },
]
