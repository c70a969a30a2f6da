/**
 * Jobs that wait: stored without an owner, due at their time, claimed by workers, given back, parked at a limit.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { StoreHarness } from './harness.ts'
import {
  ACT,
  again,
  assertFenced,
  CLAIMS_MAX,
  jobOf,
  KIND,
  LEASE_MS,
  present,
  recordOf,
  releaseOf,
  withJobs,
} from './job-setup.ts'

const HOUR_MS = 3_600_000

export const jobDueCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'SC49: an enqueued job exists once, has no owner, and is claimed by taking it over',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find, takeOver, happened }) => {
        const job = jobOf()
        assert.equal(await jobs.enqueue(job, 0), 'stored')
        assert.equal(await jobs.enqueue(job, 0), 'exists')
        assert.equal(await jobs.enqueue(again(job), HOUR_MS), 'exists')
        assert.deepEqual(await jobs.claim(again(job), LEASE_MS), { kind: 'exists' })
        const { state, leaseLeftMs, dueInMs, claims, fence, token } = await find(job.id)
        assert.deepEqual(
          { state, leaseLeftMs, dueInMs, claims, token },
          { state: 'processing', leaseLeftMs: null, dueInMs: 0, claims: 0, token: job.token },
        )
        const lease = await takeOver(job.id)
        assert(typeof lease === 'object' && lease.fence > fence)
        assert.equal((await find(job.id)).claims, 1)
        // The first claim of all is in the row itself.
        assert.deepEqual(await happened(job.id), [])
      }),
  },
  {
    name: 'SC50: of 32 callers that enqueue one job at once exactly one has stored it',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find }) => {
        const job = jobOf()
        const callers = Array.from({ length: 32 }, () => again(job))
        const answers = await Promise.all(callers.map((caller) => jobs.enqueue(caller, 0)))
        assert.equal(answers.filter((answer) => answer === 'stored').length, 1)
        assert.equal(answers.filter((answer) => answer === 'exists' || answer === 'busy').length, 31)
        assert.equal((await find(job.id)).token, callers[answers.indexOf('stored')]?.token)
      }),
  },
  {
    name: 'B27: a job that is enqueued in a transaction exists if and only if the transaction commits',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, find, claimDue }) => {
        const [kept, lost] = [jobOf(), jobOf()]
        await opened.transaction(async (tx) => {
          await opened.write(tx, 'order')
          assert.equal(await jobs.enqueueIn(tx, kept, 0), 'stored')
          assert.equal(await jobs.find(kept.id), undefined)
          assert.equal((await claimDue()).length, 0)
        })
        await assert.rejects(
          opened.transaction(async (tx) => {
            assert.equal(await jobs.enqueueIn(tx, lost, 0), 'stored')
            throw new Error('rolled back by the case')
          }),
          /rolled back by the case/,
        )
        assert.equal((await find(kept.id)).token, kept.token)
        assert.equal(await jobs.find(lost.id), undefined)
        assert.deepEqual(
          (await claimDue()).map(({ id }) => id),
          [kept.id],
        )
        assert.equal(await jobs.enqueue(lost, 0), 'stored')
      }),
  },
  {
    name: 'B27: while a job is uncommitted nobody is told that it exists, and afterwards it is there exactly once',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, find }) => {
        for (const commits of [true, false]) {
          const job = jobOf()
          const work = opened.transaction(async (tx) => {
            assert.equal(await jobs.enqueueIn(tx, job, 0), 'stored')
            assert.equal(await opened.transaction((other) => jobs.enqueueIn(other, again(job), 0)), 'busy')
            const attempt = { ...again(job), fingerprint: fingerprint({ amount: 1 }) }
            const { verdict } = await opened.transaction((other) => opened.store.operations.claimIn(other, attempt))
            assert.notEqual(verdict, 'claimed')
            assert.equal(await jobs.enqueue(again(job), 0), 'busy')
            assert.deepEqual(await jobs.claim(again(job), LEASE_MS), { kind: 'busy' })
            if (!commits) throw new Error('rolled back by the case')
          })
          await (commits ? work : assert.rejects(work, /rolled back by the case/))
          assert.equal(await jobs.enqueue(again(job), 0), commits ? 'exists' : 'stored')
          const { token } = await find(job.id)
          assert.equal(token === job.token, commits)
          assert.equal(await opened.transaction((tx) => jobs.enqueueIn(tx, again(job), 0)), 'exists')
        }
      }),
  },
  {
    name: 'B27: a job that is enqueued twice in one transaction is one job',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, find }) => {
        const job = jobOf()
        await opened.transaction(async (tx) => {
          assert.equal(await jobs.enqueueIn(tx, job, 0), 'stored')
          assert.equal(await jobs.enqueueIn(tx, again(job), HOUR_MS), 'exists')
        })
        const { token, dueInMs } = await find(job.id)
        assert.deepEqual([token, dueInMs], [job.token, 0])
      }),
  },
  {
    name: 'a job is not due before its delay, and workers are told when it will be',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, find }) => {
        assert.deepEqual(await jobs.claimDue([KIND], 10), { claimed: [], parked: [], nextDueInMs: null })
        const job = jobOf()
        assert.equal(await jobs.enqueue(job, HOUR_MS), 'stored')
        const { claimed, nextDueInMs } = await jobs.claimDue([KIND], 10)
        assert.equal(claimed.length, 0)
        assert(nextDueInMs !== null && nextDueInMs > HOUR_MS / 2 && nextDueInMs <= HOUR_MS)
        const { dueInMs } = await find(job.id)
        assert(dueInMs !== null && dueInMs > HOUR_MS / 2 && dueInMs <= HOUR_MS)
        await opened.advance(HOUR_MS)
        assert.equal((await find(job.id)).dueInMs, 0)
        const due = await jobs.claimDue([KIND], 10)
        assert.deepEqual(
          due.claimed.map(({ id, payload, leaseMs }) => ({ id, payload, leaseMs })),
          [{ id: job.id, payload: job.payload, leaseMs: LEASE_MS }],
        )
      }),
  },
  {
    name: 'a job that a worker has claimed is found with the lease that the worker was given, which works',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find, runStep }) => {
        const job = jobOf()
        await jobs.enqueue(job, 0)
        const [due] = (await jobs.claimDue([{ ...KIND, leaseMs: 2 * LEASE_MS }], 10)).claimed
        const { lease, fence, token, claims, state } = present(due)
        const found = await find(job.id)
        assert.deepEqual([found.token, found.fence, found.claims], [lease.token, lease.fence, 1])
        assert.deepEqual([fence, token, claims, state], [lease.fence, lease.token, 1, 'processing'])
        assert.notEqual(lease.token, job.token)
        assert(found.leaseLeftMs !== null && found.leaseLeftMs > LEASE_MS)
        assert.equal(await runStep(lease, 'book'), 'stored')
        assert.equal(await jobs.complete(lease, recordOf(job, lease.token)), 'stored')
      }),
  },
  {
    name: 'the oldest due jobs are claimed first, and what is left is due now',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs }) => {
        const delays = [30_000, 10_000, 20_000]
        const ids = delays.map(() => jobOf())
        for (const [index, job] of ids.entries()) await jobs.enqueue(job, delays[index] ?? 0)
        await opened.advance(HOUR_MS)
        const { claimed, nextDueInMs } = await jobs.claimDue([KIND], 2)
        assert.deepEqual(
          claimed.map(({ id }) => id),
          [ids[1]?.id, ids[2]?.id],
        )
        assert.equal(nextDueInMs, 0)
      }),
  },
  {
    name: 'B30: exactly the jobs that are returned were claimed, and no job is claimed twice',
    run: (harness) =>
      withJobs(harness, async ({ jobs, find }) => {
        const all = Array.from({ length: 60 }, () => jobOf())
        await Promise.all(all.map((job) => jobs.enqueue(job, 0)))
        const answers = await Promise.all(Array.from({ length: 8 }, () => jobs.claimDue([KIND], 3)))
        assert(answers.every(({ claimed }) => claimed.length <= 3))
        const leases = answers.flatMap(({ claimed }) => claimed.map(({ lease }) => lease))
        assert.equal(new Set(leases.map(({ id }) => id)).size, leases.length)
        assert(leases.length > 0)
        const renewed = await jobs.renew(leases.map((lease) => ({ lease, leaseMs: LEASE_MS })))
        assert(renewed.every((answer) => answer === 'renewed'))
        const rest = all.filter(({ id }) => !leases.some((lease) => lease.id === id))
        for (const { id } of rest) {
          const { leaseLeftMs, claims, dueInMs } = await find(id)
          assert.deepEqual({ leaseLeftMs, claims, dueInMs }, { leaseLeftMs: null, claims: 0, dueInMs: 0 })
        }
        const { claimed } = await jobs.claimDue([KIND], 100)
        assert.deepEqual(new Set(claimed.map(({ id }) => id)), new Set(rest.map(({ id }) => id)))
      }),
  },
  {
    name: 'SC33: a worker claims only kinds and versions that it knows, each for its own lease',
    run: (harness) =>
      withJobs(harness, async ({ jobs }) => {
        const [one, newer, other] = [jobOf(), jobOf({ version: 2 }), jobOf({ kind: 'mail.send' })]
        const closure = jobOf({ kind: null, payload: null })
        for (const job of [one, newer, other, closure]) await jobs.enqueue(job, 0)
        const claim = async (...kinds: (typeof KIND)[]) =>
          (await jobs.claimDue(kinds, 10)).claimed.map(({ id, leaseMs }) => ({ id, leaseMs }))
        assert.deepEqual(await claim({ ...KIND, version: 3 }, { ...KIND, kind: 'invoice' }), [])
        assert.deepEqual(await claim(), [])
        assert.deepEqual(await claim(KIND), [{ id: one.id, leaseMs: LEASE_MS }])
        const rest = await claim(
          { ...KIND, version: 2, leaseMs: 5_000 },
          { ...KIND, kind: 'mail.send', leaseMs: 7_000 },
        )
        assert.deepEqual(
          new Map(rest.map(({ id, leaseMs }) => [id, leaseMs])),
          new Map([
            [newer.id, 5_000],
            [other.id, 7_000],
          ]),
        )
      }),
  },
  {
    name: 'I12: a worker takes over what a silent owner left, once its lease is over and not before',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const lease = await bench.claimWithEffect()
        const { claimed, nextDueInMs } = await bench.jobs.claimDue([KIND], 10)
        assert.equal(claimed.length, 0)
        assert(nextDueInMs !== null && nextDueInMs > 0 && nextDueInMs <= LEASE_MS)
        await bench.opened.advance(LEASE_MS / 2)
        assert.deepEqual(await bench.jobs.renew([{ lease, leaseMs: LEASE_MS }]), ['renewed'])
        await bench.opened.advance(LEASE_MS / 2 + 1)
        assert.equal((await bench.claimDue()).length, 0)
        await bench.expire()
        const [next] = await bench.claimDue()
        assert.equal(next?.id, lease.id)
        assert(present(next).fence > lease.fence)
        assert.deepEqual(await bench.happened(lease.id), ['takenOver'])
        await assertFenced(bench, lease)
      }),
  },
  {
    name: 'I12: a closure is nobody’s work but that of a caller: workers never claim it',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, expire, successor, claimDue, find }) => {
        const job = jobOf({ kind: null, payload: null })
        const lease = await claim(job)
        assert.equal(await jobs.release(lease, releaseOf({ dueInMs: 0 })), 'stored')
        assert.equal((await find(job.id)).dueInMs, null)
        await successor(job.id)
        await expire()
        await opened.advance(HOUR_MS)
        assert.deepEqual(await claimDue(), [])
        assert.equal((await find(job.id)).dueInMs, null)
        await successor(job.id)
      }),
  },
  {
    name: 'B32: an operation that is given back is due after its backoff, and the claim does not count',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, claim, find, claimDue, happened }) => {
        const lease = await claim()
        assert.equal(await jobs.release(lease, releaseOf({ dueInMs: HOUR_MS, reason: 'the worker stops' })), 'stored')
        const { state, leaseLeftMs, dueInMs, claims, failures, reason } = await find(lease.id)
        assert.deepEqual(
          { state, leaseLeftMs, claims, failures, reason },
          { state: 'processing', leaseLeftMs: null, claims: 0, failures: 0, reason: 'the worker stops' },
        )
        assert(dueInMs !== null && dueInMs > HOUR_MS / 2 && dueInMs <= HOUR_MS)
        assert.deepEqual(await claimDue(), [])
        await opened.advance(HOUR_MS)
        assert.equal((await claimDue()).length, 1)
        const events = await jobs.history(lease.id)
        assert.deepEqual([events[0]?.event, events[0]?.detail], ['released', 'the worker stops'])
        assert.deepEqual(await happened(lease.id), ['released', 'takenOver'])
      }),
  },
  {
    name: 'B32: what is given back needs no end of a lease, and a caller may take it before it is due',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, takeOver }) => {
        for (const state of ['processing', 'unknown'] as const) {
          const lease = await claim()
          assert.equal(await jobs.release(lease, releaseOf({ state, dueInMs: HOUR_MS })), 'stored')
          const next = await takeOver(lease.id)
          assert(typeof next === 'object' && next.fence > lease.fence)
        }
      }),
  },
  {
    name: 'failures are counted by who reports them, claims by who makes them',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, expire, successor, find }) => {
        const lease = await claim()
        await expire()
        const second = await successor(lease.id)
        assert.equal((await find(lease.id)).claims, 2)
        const failed = releaseOf({ failed: true, reason: 'TimeoutError' })
        assert.equal(await jobs.release(second, failed), 'stored')
        const { claims, failures, reason } = await find(lease.id)
        assert.deepEqual({ claims, failures, reason }, { claims: 1, failures: 1, reason: 'TimeoutError' })
        assert.equal(await jobs.release(await successor(lease.id), failed), 'stored')
        const later = await find(lease.id)
        assert.deepEqual([later.claims, later.failures], [1, 2])
      }),
  },
  {
    name: 'I11: an unknown operation is due for reconcile at its time, or waits for a person alone',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, find, claimDue, happened }) => {
        const [asked, waiting] = [await claimWithEffect(), await claimWithEffect()]
        for (const lease of [asked, waiting]) {
          assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
          const dueInMs = lease === asked ? 0 : null
          assert.equal(await jobs.release(lease, releaseOf({ state: 'unknown', dueInMs })), 'stored')
          assert.equal((await find(lease.id)).state, 'unknown')
          assert.deepEqual(await happened(lease.id), ['unknown'])
        }
        assert.equal((await find(waiting.id)).dueInMs, null)
        assert.deepEqual(
          (await claimDue()).map(({ id }) => id),
          [asked.id],
        )
        const { state } = await find(asked.id)
        assert.equal(state, 'processing')
        assert.equal((await jobs.steps(asked.id))[0]?.state, 'unknown')
      }),
  },
  {
    name: 'I11, I12: what is given back as unknown after a proof came during the ownership is due at once',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, find, claimDue, takeOver }) => {
        const paid = { state: 'done', result: '"paid"', resultVersion: 1 } as const
        const gaveUp = releaseOf({ state: 'unknown', dueInMs: null })
        const lease = await claimWithEffect()
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        assert.equal(await jobs.resolveEffect({ id: lease.id, name: 'charge' }, paid, ACT), 'resolved')
        assert.equal(await jobs.release(lease, gaveUp), 'stored')
        const { state, dueInMs, claims } = await find(lease.id)
        assert.deepEqual({ state, dueInMs, claims }, { state: 'processing', dueInMs: 0, claims: 0 })
        const [next] = await claimDue()
        // The proof came during an earlier ownership: this owner has seen it.
        assert.equal(await jobs.release(present(next), gaveUp), 'stored')
        assert.deepEqual([(await find(lease.id)).state, await claimDue()], ['unknown', []])
        const closure = await claimWithEffect({}, jobOf({ kind: null, payload: null }))
        assert.equal(await jobs.resolveEffect({ id: closure.id, name: 'charge' }, paid, ACT), 'resolved')
        assert.equal(await jobs.release(closure, gaveUp), 'stored')
        assert.equal((await find(closure.id)).state, 'processing')
        assert.equal(typeof (await takeOver(closure.id)), 'object')
      }),
  },
  {
    name: 'I15: an operation that has killed its owners is parked instead of claimed again, by a caller',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ opened, jobs, claim, expire, takeOver, find, claimDue, happened }) => {
        const { id } = await claim()
        for (let owners = 1; owners < CLAIMS_MAX; owners += 1) {
          await expire()
          assert.equal(typeof (await takeOver(id)), 'object')
        }
        assert.equal((await find(id)).claims, CLAIMS_MAX)
        await expire()
        const { fence } = await find(id)
        const asked = { id, fence, leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
        const answers = await Promise.all(
          Array.from({ length: 8 }, () => jobs.takeOver({ ...asked, token: randomUUID() })),
        )
        assert(answers.some(({ kind }) => kind === 'parked'))
        assert(answers.every(({ kind }) => kind !== 'claimed'))
        const { state, claims, reason, leaseLeftMs, dueInMs } = await find(id)
        assert.deepEqual(
          { state, claims, leaseLeftMs, dueInMs },
          { state: 'parked', claims: CLAIMS_MAX, leaseLeftMs: null, dueInMs: null },
        )
        assert.notEqual(reason, null)
        await opened.advance(HOUR_MS)
        assert.notEqual(typeof (await takeOver(id)), 'object')
        assert.deepEqual(await claimDue(), [])
        assert.equal((await opened.store.operations.lookup(id))?.state, 'parked')
        assert.deepEqual(await happened(id), ['takenOver', 'takenOver', 'parked'])
      }),
  },
  {
    name: 'I15: a worker parks what has killed its owners, and is told so; others are claimed',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, expire, find, claimDue, happened }) => {
        const [deadly, sound] = [jobOf(), jobOf()]
        assert.equal(await jobs.enqueue(deadly, 0), 'stored')
        for (let owners = 0; owners < CLAIMS_MAX; owners += 1) {
          assert.equal((await claimDue()).length, 1)
          await expire()
        }
        assert.equal(await jobs.enqueue(sound, 0), 'stored')
        const { claimed, parked } = await jobs.claimDue([KIND], 10)
        assert.deepEqual(
          [claimed.map(({ id }) => id), parked.map(({ id, state, claims }) => ({ id, state, claims }))],
          [[sound.id], [{ id: deadly.id, state: 'parked', claims: CLAIMS_MAX }]],
        )
        assert.equal((await find(deadly.id)).state, 'parked')
        assert.equal((await happened(deadly.id)).at(-1), 'parked')
        assert.deepEqual((await jobs.claimDue([KIND], 10)).parked, [])
      }),
  },
  {
    name: 'I15: owners that report their end never lead to parking by claims',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, successor, takeOver, find }) => {
        let lease = await claim()
        for (let owners = 0; owners < 2 * CLAIMS_MAX; owners += 1) {
          assert.equal(await jobs.release(lease, releaseOf()), 'stored')
          lease = await successor(lease.id)
        }
        assert.equal((await find(lease.id)).claims, 1)
        assert.equal(await jobs.release(lease, releaseOf()), 'stored')
        assert.equal(typeof (await takeOver(lease.id)), 'object')
      }),
  },
  {
    name: 'an owner parks what has failed too often, with its reason, and no worker takes it',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, find, takeOver, claimDue }) => {
        const lease = await claim()
        const parking = releaseOf({ state: 'parked', dueInMs: null, failed: true, reason: 'STEP_CHANGED' })
        assert.equal(await jobs.release(lease, parking), 'stored')
        const { state, failures, reason, dueInMs } = await find(lease.id)
        assert.deepEqual([state, failures, reason, dueInMs], ['parked', 1, 'STEP_CHANGED', null])
        assert.notEqual(typeof (await takeOver(lease.id)), 'object')
        assert.deepEqual(await claimDue(), [])
        assert.equal((await opened.store.operations.lookup(lease.id))?.state, 'parked')
        const events = await jobs.history(lease.id)
        assert.deepEqual([events.at(-1)?.event, events.at(-1)?.detail], ['parked', 'STEP_CHANGED'])
        assert.equal(events.at(-1)?.fence, lease.fence)
      }),
  },
]
