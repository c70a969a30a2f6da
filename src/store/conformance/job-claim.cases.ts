/**
 * Who owns a leased operation: the first claim, the end of a lease, takeover, and what a former owner can still do.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type { ConformanceCase } from '../../shared/conformance.ts'
import { type Attempt, isFinished } from '../operation.ts'
import type { StoreHarness } from './harness.ts'
import {
  again,
  assertFenced,
  CLAIMS_MAX,
  DAY_MS,
  effectOf,
  type JobBench,
  jobOf,
  LEASE_MS,
  recordOf,
  releaseOf,
  stepOf,
  still,
  withJobs,
} from './job-setup.ts'

const CALLERS = 32

/** Claims, and once more when an expired record was in the way. */
async function claimFresh({ jobs }: JobBench, job = jobOf()): Promise<bigint> {
  const first = await jobs.claim(job, LEASE_MS)
  if (first.kind === 'exists') assert.equal(await jobs.find(job.id), undefined)
  const last = first.kind === 'claimed' ? first : await jobs.claim(job, LEASE_MS)
  assert(last.kind === 'claimed')
  return last.fence
}

/** An attempt by transaction on the same operation. */
function attemptOn(id: string, payload: unknown = { amount: 1 }): Attempt {
  return { id, scope: '["conformance"]', token: randomUUID(), fingerprint: fingerprint(payload) }
}

async function withShiftedClock(ms: number, run: () => Promise<void>): Promise<void> {
  const now = Date.now
  Date.now = () => now() + ms
  try {
    await run()
  } finally {
    Date.now = now
  }
}

export const jobClaimCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'SC50, I1: of 32 callers that claim one operation at once exactly one has it, with fence 1',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find }) => {
        const job = jobOf()
        const callers = Array.from({ length: CALLERS }, () => again(job))
        const answers = await Promise.all(callers.map((caller) => jobs.claim(caller, LEASE_MS)))
        assert.deepEqual(
          answers.filter(({ kind }) => kind === 'claimed'),
          [{ kind: 'claimed', fence: 1n }],
        )
        // The others may have met the claim before it was committed.
        assert.equal(answers.filter(({ kind }) => kind === 'exists' || kind === 'busy').length, CALLERS - 1)
        const winner = callers[answers.findIndex(({ kind }) => kind === 'claimed')]
        const { token, fence, claims } = await find(job.id)
        assert.deepEqual({ token, fence, claims }, { token: winner?.token, fence: 1n, claims: 1 })
      }),
  },
  {
    name: 'R11: many different operations that are claimed at once are all claimed, each by its own caller',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find }) => {
        const callers = Array.from({ length: CALLERS }, () => jobOf({ payload: `"${randomUUID()}"` }))
        const answers = await Promise.all(callers.map((job) => jobs.claim(job, LEASE_MS)))
        assert(answers.every(({ kind }) => kind === 'claimed'))
        for (const job of callers) {
          const { token, payload } = await find(job.id)
          assert.deepEqual({ token, payload }, { token: job.token, payload: job.payload })
        }
      }),
  },
  {
    name: 'R11: an operation is found as it was claimed, on a lease of the store’s clock',
    run: (harness) =>
      withJobs(harness, async ({ claim, find }) => {
        const job = jobOf({ payload: '{"text":"\\u0000 é","n":1e400}' })
        await claim(job)
        const found = await find(job.id)
        assert.deepEqual([...found.fingerprint.value], [...job.fingerprint.value])
        assert.deepEqual(
          { ...still(found), fingerprint: null },
          { ...job, fingerprint: null, state: 'processing', fence: 1n, claims: 1, failures: 0, reason: null },
        )
        const { leaseLeftMs, dueInMs, ageMs } = found
        assert(leaseLeftMs !== null && leaseLeftMs > 0 && leaseLeftMs <= LEASE_MS)
        assert(dueInMs !== null && dueInMs > 0 && dueInMs <= LEASE_MS)
        assert(ageMs >= 0 && ageMs < LEASE_MS)
        const closure = jobOf({ kind: null, payload: null })
        await claim(closure)
        const { kind, payload, dueInMs: never } = await find(closure.id)
        assert.deepEqual({ kind, payload, never }, { kind: null, payload: null, never: null })
      }),
  },
  {
    name: 'SC8: a caller whose answer was lost claims again, is told `exists`, and finds its own token there',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, find }) => {
        const job = jobOf()
        await claim(job)
        assert.deepEqual(await jobs.claim(job, LEASE_MS), { kind: 'exists' })
        const { token, fence, claims } = await find(job.id)
        assert.deepEqual({ token, fence, claims }, { token: job.token, fence: 1n, claims: 1 })
      }),
  },
  {
    name: 'I1: a key with a live outcome cannot be claimed, enqueued or taken over, whichever way the outcome came',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, claim }) => {
        const leased = jobOf()
        assert.equal(await jobs.complete(await claim(leased), recordOf(leased, leased.token)), 'stored')
        const attempt = attemptOn(randomUUID())
        const operation = await opened.store.operations.open(attempt, { gated: true, idleTimeoutMs: 30_000 })
        const { id, token } = attempt
        assert.equal(await operation.finish(recordOf(jobOf({ id }), token), []), 'stored')
        for (const job of [again(leased), jobOf({ id })]) {
          assert.deepEqual(await jobs.claim(job, LEASE_MS), { kind: 'exists' })
          assert.equal(await jobs.enqueue(job, 0), 'exists')
          assert.equal(await opened.transaction((tx) => jobs.enqueueIn(tx, job, 0)), 'exists')
          const late = { id: job.id, fence: 1n, token: randomUUID(), leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
          assert.deepEqual(await jobs.takeOver(late), { kind: 'busy' })
          assert.equal(await jobs.find(job.id), undefined)
        }
      }),
  },
  {
    name: 'I4: a transaction on a leased key is refused before its first statement, and look-ups tell what holds it',
    run: (harness) =>
      withJobs(harness, async ({ opened, claim }) => {
        const job = jobOf()
        await claim(job)
        const { operations } = opened.store
        for (const payload of [{ amount: 1 }, { amount: 2 }]) {
          const open = await operations.open(attemptOn(job.id, payload), { gated: true, idleTimeoutMs: 30_000 })
          assert.equal(await open.decide(), 'recorded')
          await open.rollback()
        }
        const found = await operations.lookup(job.id)
        assert(found !== undefined && !isFinished(found))
        const { state, token, scope, leaseLeftMs } = found
        assert.deepEqual({ state, token, scope }, { state: 'processing', token: job.token, scope: job.scope })
        assert.deepEqual([...found.fingerprint.value], [...job.fingerprint.value])
        assert(leaseLeftMs !== null && leaseLeftMs > 0 && leaseLeftMs <= LEASE_MS)
        await opened.transaction(async (tx) => {
          assert.equal((await operations.claimIn(tx, attemptOn(job.id))).verdict, 'recorded')
          assert.equal((await operations.lookupIn(tx, job.id))?.state, 'processing')
        })
      }),
  },
  {
    name: 'I1: a claim under a key on which a transaction works is busy, until the transaction has ended',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, claim }) => {
        for (const end of ['finish', 'rollback'] as const) {
          const attempt = attemptOn(randomUUID())
          const operation = await opened.store.operations.open(attempt, { gated: true, idleTimeoutMs: 30_000 })
          await opened.write(operation.tx, attempt.id)
          const job = jobOf({ id: attempt.id })
          assert.deepEqual(await jobs.claim(job, LEASE_MS), { kind: 'busy' })
          assert.equal(await jobs.enqueue(again(job), 0), 'busy')
          if (end === 'finish') {
            assert.equal(await operation.finish(recordOf(job, attempt.token), []), 'stored')
            assert.deepEqual(await jobs.claim(job, LEASE_MS), { kind: 'exists' })
          } else {
            await operation.rollback()
            await claim(job)
          }
        }
      }),
  },
  {
    name: 'I1: when an ungated transaction and a claim meet on one key, the constraint lets exactly one have it',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs }) => {
        for (let round = 0; round < 5; round += 1) {
          const attempt = attemptOn(randomUUID())
          const operation = await opened.store.operations.open(attempt, { gated: false, idleTimeoutMs: 30_000 })
          await opened.write(operation.tx, attempt.id)
          const job = jobOf({ id: attempt.id })
          const [claimed, finished] = await Promise.all([
            jobs.claim(job, LEASE_MS),
            operation.finish(recordOf(job, attempt.token), []),
          ])
          const isLeased = claimed.kind === 'claimed'
          assert.equal(finished, isLeased ? 'lost' : 'stored')
          assert.equal(await opened.count(attempt.id), isLeased ? 0 : 1)
          const token = isLeased ? job.token : attempt.token
          assert.equal((await opened.store.operations.lookup(attempt.id))?.token, token)
        }
      }),
  },
  {
    name: 'SC20: an operation whose outcome has expired is claimed anew, and meets no step of its former life',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, opened, claimWithEffect } = bench
        const job = jobOf()
        const lease = await claimWithEffect({}, job)
        assert.equal(await bench.runStep(lease, 'book'), 'stored')
        assert.equal(await jobs.complete(lease, recordOf(job, lease.token)), 'stored')
        assert.equal((await jobs.steps(job.id)).length, 2)
        await opened.advance(DAY_MS + 1)
        const next = again(job)
        const fence = await claimFresh(bench, next)
        assert.deepEqual([...(await jobs.steps(job.id))], [])
        assert.deepEqual([...(await jobs.history(job.id))], [])
        assert.equal(await bench.runStep({ id: next.id, token: next.token, fence }, 'book'), 'stored')
        assert.equal(await opened.count('book'), 2)
      }),
  },
  {
    name: 'I13: an operation without an outcome never expires, and neither do its steps',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, find }) => {
        const { id } = await claimWithEffect()
        await opened.advance(10_000 * DAY_MS)
        assert.equal((await find(id)).state, 'processing')
        assert.equal((await opened.store.operations.lookup(id))?.state, 'processing')
        assert.equal((await jobs.steps(id)).length, 1)
        assert.deepEqual(await jobs.claim(jobOf({ id }), LEASE_MS), { kind: 'exists' })
      }),
  },
  {
    name: 'SC3: a live lease cannot be taken over',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ claim, takeOver, find, opened }) => {
        const lease = await claim()
        assert.equal(await takeOver(lease.id), 'busy')
        await opened.advance(LEASE_MS / 2)
        assert.equal(await takeOver(lease.id), 'busy')
        const { token, fence } = await find(lease.id)
        assert.deepEqual({ token, fence }, { token: lease.token, fence: lease.fence })
      }),
  },
  {
    name: 'SC3: of 32 callers exactly one takes an expired lease over, and its fence is greater',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, expire, find }) => {
        const lease = await claim()
        await expire()
        assert.equal((await find(lease.id)).leaseLeftMs, null)
        const tokens = Array.from({ length: CALLERS }, () => randomUUID())
        const { id, fence } = lease
        const asked = { id, fence, leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
        const answers = await Promise.all(tokens.map((token) => jobs.takeOver({ ...asked, token })))
        const claimed = answers.flatMap((answer) => (answer.kind === 'claimed' ? [answer] : []))
        assert.equal(claimed.length, 1)
        assert.equal(answers.filter(({ kind }) => kind === 'busy').length, CALLERS - 1)
        const winner = tokens[answers.findIndex(({ kind }) => kind === 'claimed')]
        const found = await find(id)
        assert(found.fence > fence)
        assert.deepEqual(
          { token: found.token, fence: found.fence, claims: found.claims },
          { token: winner, fence: claimed[0]?.fence, claims: claimed[0]?.claims },
        )
        assert(found.leaseLeftMs !== null && found.leaseLeftMs > 0)
      }),
  },
  {
    name: 'SC3: a caller that saw an older fence takes nothing over, also when the lease is over again',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, expire, successor, find }) => {
        const { id, fence } = await claim()
        await expire()
        const next = await successor(id)
        await expire()
        const late = { id, fence, token: randomUUID(), leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
        assert.deepEqual(await jobs.takeOver(late), { kind: 'busy' })
        assert.equal((await find(id)).fence, next.fence)
      }),
  },
  {
    name: 'SC3: an operation that does not exist cannot be taken over',
    run: (harness) =>
      withJobs(harness, async ({ jobs }) => {
        const none = { id: randomUUID(), fence: 1n, token: randomUUID(), leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
        assert.deepEqual(await jobs.takeOver(none), { kind: 'busy' })
      }),
  },
  {
    name: 'SC3, SC5, SC47, B23: after takeover nothing that the former owner does has an effect, and it is told',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const job = jobOf()
        const lease = await bench.claimWithEffect({}, job)
        await bench.expire()
        const next = await bench.successor(lease.id)
        await assertFenced(bench, lease, job)
        assert.deepEqual(await bench.jobs.renew([{ lease: next, leaseMs: LEASE_MS }]), ['renewed'])
        assert.equal(await bench.jobs.complete(next, recordOf(job, next.token)), 'stored')
        await assertFenced(bench, lease, job)
        const record = await bench.opened.store.operations.lookup(lease.id)
        assert(record !== undefined && isFinished(record))
        assert.deepEqual([record.token, record.outcome], [next.token, '"done"'])
      }),
  },
  {
    name: 'SC7, I5: an owner whose lease is over is refused even while it has no successor',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const lease = await bench.claimWithEffect()
        await bench.expire()
        await assertFenced(bench, lease)
        assert.equal(typeof (await bench.takeOver(lease.id)), 'object')
      }),
  },
  {
    name: 'B23, T12: token and fence are both compared: neither alone is an ownership',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const lease = await bench.claimWithEffect()
        await assertFenced(bench, { ...lease, token: randomUUID() })
        await assertFenced(bench, { ...lease, fence: lease.fence + 1n })
        await assertFenced(bench, { ...lease, fence: lease.fence - 1n })
        await bench.expire()
        const next = await bench.successor(lease.id)
        await assertFenced(bench, { ...lease, fence: next.fence })
        await assertFenced(bench, { ...next, fence: lease.fence })
        assert.deepEqual(await bench.jobs.renew([{ lease: next, leaseMs: LEASE_MS }]), ['renewed'])
      }),
  },
  {
    name: 'I5: an owner that gave its operation back is an owner no more',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        for (const state of ['processing', 'unknown', 'parked'] as const) {
          const lease = await bench.claimWithEffect()
          assert.equal(await bench.jobs.release(lease, releaseOf({ state, dueInMs: null })), 'stored')
          await assertFenced(bench, lease)
        }
      }),
  },
  {
    name: 'SC6, R12: renewals keep an owner alone past several lease lengths; each lease has its own answer, in order',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, opened, takeOver }) => {
        const [slow, gone] = [await claim(), await claim()]
        const closure = await claim(jobOf({ kind: null, payload: null }))
        for (let round = 0; round < 3; round += 1) {
          await opened.advance(LEASE_MS * 0.6)
          const forged = { ...slow, token: randomUUID() }
          const leases = [forged, slow, closure].map((lease) => ({ lease, leaseMs: LEASE_MS }))
          assert.deepEqual(await jobs.renew(leases), ['lost', 'renewed', 'renewed'])
        }
        assert.deepEqual(await Promise.all([slow, closure].map(({ id }) => takeOver(id))), ['busy', 'busy'])
        assert.equal(typeof (await takeOver(gone.id)), 'object')
        assert.deepEqual(await jobs.renew([]), [])
      }),
  },
  {
    name: 'SC6, R12: more leases than one statement takes are renewed, each for its own time',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, find }) => {
        const all = Array.from({ length: 1_200 }, () => jobOf())
        const answers = await Promise.all(all.map((job) => jobs.claim(job, LEASE_MS)))
        assert(answers.every(({ kind }) => kind === 'claimed'))
        const leases = all.map(({ id, token }, index) => ({
          lease: { id, token, fence: 1n },
          leaseMs: LEASE_MS * (1 + (index % 2)),
        }))
        assert.deepEqual(new Set(await jobs.renew(leases)), new Set(['renewed']))
        await opened.advance(LEASE_MS + 1)
        const [short, long] = [await find(String(all[1_100]?.id)), await find(String(all[1_101]?.id))]
        assert.deepEqual([short.leaseLeftMs === null, long.leaseLeftMs === null], [true, false])
      }),
  },
  {
    name: 'SC57, SC9, I14: leases are counted by the store’s clock, whatever the clocks of the processes say',
    needs: 'own-clock',
    run: (harness) =>
      withJobs(harness, async ({ claim, expire, takeOver, jobs }) => {
        for (const ms of [300_000, -300_000]) {
          const lease = await claim()
          await withShiftedClock(ms, async () => {
            assert.equal(await takeOver(lease.id), 'busy')
            assert.deepEqual(await jobs.renew([{ lease, leaseMs: LEASE_MS }]), ['renewed'])
            assert.equal(await jobs.writeStep(lease, stepOf('memo', { type: 'memo' })), 'stored')
          })
          await expire()
          await withShiftedClock(-ms, async () => {
            assert.deepEqual(await jobs.renew([{ lease, leaseMs: LEASE_MS }]), ['lost'])
            assert.equal(await jobs.writeStep(lease, effectOf('late')), 'fenced')
            assert.equal(typeof (await takeOver(lease.id)), 'object')
          })
        }
      }),
  },
  {
    name: 'I1: an outcome is stored once; a second completion is refused and the first outcome is found',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, opened }) => {
        const job = jobOf()
        const lease = await claim(job)
        const response = Uint8Array.from([0, 255, 7])
        const record = recordOf(job, lease.token, { outcome: '{"a":1}', response, responseRetentionMs: DAY_MS / 2 })
        assert.equal(await jobs.complete(lease, record), 'stored')
        assert.equal(await jobs.complete(lease, recordOf(job, lease.token, { outcome: '"second"' })), 'fenced')
        const found = await opened.store.operations.lookup(job.id)
        assert(found !== undefined && isFinished(found))
        assert.deepEqual(
          [found.state, found.token, found.outcome, found.scope, Buffer.from(found.response ?? [])],
          ['succeeded', job.token, '{"a":1}', job.scope, Buffer.from(response)],
        )
        assert.equal(await jobs.find(job.id), undefined)
        const refused = jobOf()
        const rejected = recordOf(refused, refused.token, { state: 'rejected', outcome: '{"code":"LIMIT"}' })
        assert.equal(await jobs.complete(await claim(refused), rejected), 'stored')
        assert.equal((await opened.store.operations.lookup(refused.id))?.state, 'rejected')
      }),
  },
]
