/**
 * What people and webhooks do to leased operations, and what they are shown. Acts that change something are audited.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import { type Lease, LOOKS_PROVEN } from '../job.ts'
import { isFinished } from '../operation.ts'
import type { StoreHarness } from './harness.ts'
import {
  ACT,
  CLAIMS_MAX,
  effectOf,
  type JobBench,
  jobOf,
  LEASE_MS,
  present,
  recordOf,
  releaseOf,
  withJobs,
} from './job-setup.ts'

const HOUR_MS = 3_600_000
const PAID = { state: 'done', result: '{"id":"ch_1"}', resultVersion: 2 } as const
const NOT_APPLIED = { state: 'notApplied' } as const

/** An operation that waits for a person, because an effect may or may not have happened. */
async function unknownJob(bench: JobBench, providerKey: string = randomUUID()): Promise<Lease> {
  const lease = await bench.claimWithEffect({ providerKey })
  assert.equal(await bench.jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
  assert.equal(await bench.jobs.release(lease, releaseOf({ state: 'unknown', dueInMs: null })), 'stored')
  return lease
}

async function parkedJob(bench: JobBench): Promise<Lease> {
  const lease = await bench.claim()
  const parking = releaseOf({ state: 'parked', dueInMs: null, failed: true })
  assert.equal(await bench.jobs.release(lease, parking), 'stored')
  return lease
}

/** The acts so far are these, each on a subject that names the operation, by ACT. */
async function assertAudited(
  { opened }: JobBench,
  acts: readonly (readonly [act: string, id: string])[],
): Promise<void> {
  const rows = await opened.audited()
  assert.deepEqual(
    rows.map(({ act, actor, reason }) => ({ act, actor, reason })),
    acts.map(([act]) => ({ act, ...ACT })),
  )
  for (const [index, [, id]] of acts.entries())
    assert(rows[index]?.subject.includes(id), 'the subject names the operation')
}

export const jobOperatorCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'I11, I16: a proven answer is attached to an unknown effect, by name or by key; the operation is due, audited',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, step, find, claimDue } = bench
        const [named, keyed] = [await unknownJob(bench), await unknownJob(bench, 'key of the provider')]
        assert.equal(await jobs.resolveEffect({ id: named.id, name: 'charge' }, PAID, ACT), 'resolved')
        const refused = { state: 'refused', result: '{"code":"declined"}', resultVersion: 1 } as const
        assert.equal(await jobs.resolveEffect({ providerKey: 'key of the provider' }, refused, ACT), 'resolved')
        const [one, other] = [await step(named.id, 'charge'), await step(keyed.id, 'charge')]
        assert.deepEqual([one.state, one.result, one.resultVersion], [PAID.state, PAID.result, PAID.resultVersion])
        assert.deepEqual([one.effect?.unknownAgeMs, one.effect?.attempts], [null, 1])
        assert.deepEqual([other.state, other.result], [refused.state, refused.result])
        assert.equal((await find(named.id)).dueInMs, 0)
        assert.deepEqual(new Set((await claimDue()).map(({ id }) => id)), new Set([named.id, keyed.id]))
        await assertAudited(bench, [
          ['effect.resolve', named.id],
          ['effect.resolve', keyed.id],
        ])
        assert.equal((await bench.happened(named.id)).includes('resolved'), true)
      }),
  },
  {
    name: 'I11: an effect keeps its first answer; who comes later is told, and nothing is audited',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, step } = bench
        const { id } = await unknownJob(bench, 'key of the provider')
        assert.equal(await jobs.resolveEffect({ id, name: 'charge' }, PAID, ACT), 'resolved')
        for (const proof of [{ ...PAID, result: '"other"' }, { ...PAID, state: 'refused' }, NOT_APPLIED] as const) {
          assert.equal(await jobs.resolveEffect({ providerKey: 'key of the provider' }, proof, ACT), 'decided')
          assert.equal(await jobs.resolveEffect({ id, name: 'charge' }, proof, ACT), 'decided')
        }
        const { state, result } = await step(id, 'charge')
        assert.deepEqual([state, result], [PAID.state, PAID.result])
        await assertAudited(bench, [['effect.resolve', id]])
      }),
  },
  {
    name: 'I11: of many who resolve one effect at once exactly one is heard',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, step } = bench
        const { id } = await unknownJob(bench)
        const proofs = Array.from({ length: 8 }, (_, index) => ({ ...PAID, result: `"${index}"` }))
        const answers = await Promise.all(proofs.map((proof) => jobs.resolveEffect({ id, name: 'charge' }, proof, ACT)))
        assert.equal(answers.filter((answer) => answer === 'resolved').length, 1)
        assert.equal(answers.filter((answer) => answer === 'decided').length, 7)
        assert.equal((await step(id, 'charge')).result, `"${answers.indexOf('resolved')}"`)
        await assertAudited(bench, [['effect.resolve', id]])
      }),
  },
  {
    name: 'I11: with a proof that nothing happened the effect may be attempted again, with the same key',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, step, claimDue } = bench
        const { id } = await unknownJob(bench, 'key of the provider')
        assert.equal(await jobs.resolveEffect({ id, name: 'charge' }, NOT_APPLIED, ACT), 'resolved')
        const resolved = await step(id, 'charge')
        assert.deepEqual([resolved.state, resolved.effect?.looks], ['intended', LOOKS_PROVEN])
        assert.deepEqual([resolved.effect?.unknownAgeMs, resolved.effect?.providerKey], [null, 'key of the provider'])
        const lease = present((await claimDue())[0])
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'attempt', keyAgeMaxMs: null }), 'stored')
        assert.equal((await step(id, 'charge')).effect?.looks, 0)
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'done', result: '1', resultVersion: 1 }), 'stored')
        assert.deepEqual([(await step(id, 'charge')).state, (await step(id, 'charge')).result], ['done', '1'])
        await assertAudited(bench, [['effect.resolve', id]])
      }),
  },
  {
    name: 'I11: nobody can prove that a call which an owner has under way never happens',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, step, expire, claimWithEffect } = bench
        const lease = await claimWithEffect()
        const charge = { id: lease.id, name: 'charge' }
        assert.equal(await jobs.resolveEffect(charge, NOT_APPLIED, ACT), 'busy')
        assert.deepEqual([(await step(lease.id, 'charge')).state, await bench.opened.audited()], ['intended', []])
        await expire()
        assert.equal(await jobs.resolveEffect(charge, NOT_APPLIED, ACT), 'resolved')
      }),
  },
  {
    name: 'I11: a webhook may be faster than the end of a dead owner’s lease, and the successor finds the answer',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, expire, claimDue, claimWithEffect, find } = bench
        const { id } = await claimWithEffect({ providerKey: 'key of the provider' })
        assert.equal(await jobs.resolveEffect({ providerKey: 'key of the provider' }, PAID, ACT), 'resolved')
        // The owner may well be alive: its lease is what it was.
        assert.notEqual((await find(id)).leaseLeftMs, null)
        assert.deepEqual(await claimDue(), [])
        await expire()
        assert.equal((await claimDue()).length, 1)
        assert.deepEqual([(await jobs.steps(id))[0]?.state, (await jobs.steps(id))[0]?.result], ['done', PAID.result])
      }),
  },
  {
    name: 'an effect that does not exist is not found, and nothing is audited',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claimWithEffect } = bench
        const { id } = await claimWithEffect()
        const none = [{ id, name: 'refund' }, { id: randomUUID(), name: 'charge' }, { providerKey: 'none' }]
        for (const effect of none) assert.equal(await jobs.resolveEffect(effect, PAID, ACT), 'notFound')
        await assertAudited(bench, [])
      }),
  },
  {
    name: 'I11, I16: a person gives an operation that nobody holds its outcome, audited, and everybody gets it',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, opened } = bench
        const silent = await bench.claim()
        await bench.expire()
        const [unknown, parked] = [await unknownJob(bench), await parkedJob(bench)]
        const record = recordOf(jobOf({ id: unknown.id }), randomUUID(), { outcome: '"by hand"' })
        assert.equal(await jobs.resolveOperation(record, ACT), 'resolved')
        const other = recordOf(jobOf({ id: parked.id }), randomUUID(), { state: 'rejected', outcome: '"no"' })
        assert.equal(await jobs.resolveOperation(other, ACT), 'resolved')
        const found = await opened.store.operations.lookup(unknown.id)
        assert(found !== undefined && isFinished(found))
        assert.deepEqual([found.state, found.token, found.outcome], ['succeeded', record.token, '"by hand"'])
        assert.equal((await opened.store.operations.lookup(parked.id))?.state, 'rejected')
        const third = recordOf(jobOf({ id: silent.id }), randomUUID())
        assert.equal(await jobs.resolveOperation(third, ACT), 'resolved')
        assert.equal(await jobs.complete(silent, recordOf(jobOf({ id: silent.id }), silent.token)), 'fenced')
        assert.equal((await opened.store.operations.lookup(silent.id))?.token, third.token)
        assert.deepEqual([await jobs.find(unknown.id), await jobs.find(parked.id)], [undefined, undefined])
        await assertAudited(bench, [
          ['operation.resolve', unknown.id],
          ['operation.resolve', parked.id],
          ['operation.resolve', silent.id],
        ])
        assert.equal((await bench.happened(unknown.id)).at(-1), 'resolved')
        assert.equal(await jobs.resolveOperation({ ...record, token: randomUUID() }, ACT), 'decided')
        assert.equal(await jobs.redrive(unknown.id, ACT), 'notFound')
      }),
  },
  {
    name: 'I11: an operation that was proven never applied says so to every later look-up',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, opened } = bench
        const { id } = await unknownJob(bench)
        const parts = { state: 'rejected', notApplied: true, outcome: null } as const
        assert.equal(await jobs.resolveOperation(recordOf(jobOf({ id }), randomUUID(), parts), ACT), 'resolved')
        const found = await opened.store.operations.lookup(id)
        assert(found !== undefined && isFinished(found))
        assert.deepEqual([found.state, found.notApplied, found.outcome], ['rejected', true, null])
        assert.deepEqual(await jobs.claim(jobOf({ id }), LEASE_MS), { kind: 'exists' })
      }),
  },
  {
    name: 'an operation that an owner works on is given no outcome by hand and is not redriven',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claim, find } = bench
        const lease = await claim()
        const record = recordOf(jobOf({ id: lease.id }), randomUUID())
        assert.equal(await jobs.resolveOperation(record, ACT), 'busy')
        assert.equal(await jobs.redrive(lease.id, ACT), 'busy')
        assert.equal((await find(lease.id)).state, 'processing')
        assert.deepEqual(await jobs.renew([{ lease, leaseMs: LEASE_MS }]), ['renewed'])
        const none = recordOf(jobOf(), randomUUID())
        assert.equal(await jobs.resolveOperation(none, ACT), 'notFound')
        assert.equal(await jobs.redrive(none.id, ACT), 'notFound')
        await assertAudited(bench, [])
      }),
  },
  {
    name: 'SC54, I15, I16: only an audited redrive gives a parked operation a fresh budget; its steps stay done',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claimDue, expire, find, runStep } = bench
        const first = await bench.claim()
        assert.equal(await runStep(first, 'book'), 'stored')
        for (let owners = 1; owners < CLAIMS_MAX; owners += 1) {
          await expire()
          assert.equal((await claimDue()).length, 1)
        }
        await expire()
        assert.equal(
          (await jobs.claimDue([{ kind: 'invoice.create', version: 1, leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }], 1))
            .parked.length,
          1,
        )
        assert.equal(await jobs.redrive(first.id, ACT), 'redriven')
        const { state, claims, failures, dueInMs, leaseLeftMs } = await find(first.id)
        assert.deepEqual(
          { state, claims, failures, dueInMs, leaseLeftMs },
          { state: 'processing', claims: 0, failures: 0, dueInMs: 0, leaseLeftMs: null },
        )
        await assertAudited(bench, [['operation.redrive', first.id]])
        for (let owners = 0; owners < CLAIMS_MAX; owners += 1) {
          const lease = present((await claimDue())[0])
          assert(lease.fence > first.fence)
          assert.equal(await runStep(lease, 'book'), 'exists')
          await expire()
        }
        assert.equal((await claimDue()).length, 0)
        assert.equal((await find(first.id)).state, 'parked')
        const events = await bench.happened(first.id)
        assert.deepEqual(
          events.filter((event) => event !== 'takenOver'),
          ['parked', 'redriven', 'parked'],
        )
      }),
  },
  {
    name: 'SC54: an unknown operation is redriven too, and failures are forgotten with claims',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claimDue, find, takeOver } = bench
        const [unknown, parked] = [await unknownJob(bench), await parkedJob(bench)]
        assert.equal((await find(parked.id)).failures, 1)
        assert.equal(await jobs.redrive(unknown.id, ACT), 'redriven')
        assert.equal(await jobs.redrive(parked.id, ACT), 'redriven')
        assert.equal((await find(parked.id)).failures, 0)
        assert.equal((await jobs.steps(unknown.id))[0]?.state, 'unknown')
        assert.equal((await claimDue()).length, 2)
        const closure = await bench.claim(jobOf({ kind: null, payload: null }))
        assert.equal(await jobs.release(closure, releaseOf({ state: 'parked', dueInMs: null })), 'stored')
        assert.equal(await jobs.redrive(closure.id, ACT), 'redriven')
        assert.equal((await find(closure.id)).dueInMs, null)
        assert.equal(typeof (await takeOver(closure.id)), 'object')
      }),
  },
  {
    name: 'a redrive makes what nobody holds due now, be it left by a silent owner or waiting for its time',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claimDue, find } = bench
        const waiting = jobOf()
        assert.equal(await jobs.enqueue(waiting, HOUR_MS), 'stored')
        const silent = await bench.claim()
        await bench.expire()
        for (const id of [waiting.id, silent.id]) {
          assert.equal(await jobs.redrive(id, ACT), 'redriven')
          const { dueInMs, claims } = await find(id)
          assert.deepEqual([dueInMs, claims], [0, 0])
        }
        assert.equal((await claimDue()).length, 2)
        await assertAudited(bench, [
          ['operation.redrive', waiting.id],
          ['operation.redrive', silent.id],
        ])
      }),
  },
  {
    name: 'I15: an answer for an effect of a parked operation is kept, and the operation stays parked',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claimDue, find, step } = bench
        const lease = await bench.claimWithEffect()
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        assert.equal(await jobs.release(lease, releaseOf({ state: 'parked', dueInMs: null })), 'stored')
        assert.equal(await jobs.resolveEffect({ id: lease.id, name: 'charge' }, PAID, ACT), 'resolved')
        assert.deepEqual([(await find(lease.id)).state, (await step(lease.id, 'charge')).state], ['parked', 'done'])
        assert.deepEqual(await claimDue(), [])
        assert.equal(await jobs.redrive(lease.id, ACT), 'redriven')
        assert.equal((await claimDue()).length, 1)
      }),
  },
  {
    name: 'I16: of many who redrive one operation at once, as many are audited as are told that they did',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { id } = await parkedJob(bench)
        const answers = await Promise.all(Array.from({ length: 8 }, () => bench.jobs.redrive(id, ACT)))
        const redriven = answers.filter((answer) => answer === 'redriven').length
        assert(redriven >= 1)
        assert.equal((await bench.opened.audited()).length, redriven)
      }),
  },
  {
    name: 'operators see what waits, oldest first, with the age of its doubts, and never a payload or a result',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, opened, claim, claimWithEffect } = bench
        const unknown = await claimWithEffect()
        assert.equal(await jobs.writeStep(unknown, effectOf('mail', {}, 1)), 'stored')
        assert.equal(await jobs.changeEffect(unknown, 'charge', { to: 'unknown' }), 'stored')
        const waits = releaseOf({ state: 'unknown', dueInMs: HOUR_MS, reason: 'OUTCOME_UNKNOWN' })
        assert.equal(await jobs.release(unknown, waits), 'stored')
        await opened.advance(2 * HOUR_MS)
        const parked = await parkedJob(bench)
        await opened.advance(1_000)
        const running = await claim()
        const done = jobOf()
        const finished = await claim(done)
        assert.equal(await jobs.complete(finished, recordOf(done, finished.token)), 'stored')

        const all = await jobs.list({ states: ['processing', 'unknown', 'parked'], limit: 10 })
        assert.deepEqual(
          all.map(({ id, state }) => ({ id, state })),
          [
            { id: unknown.id, state: 'unknown' },
            { id: parked.id, state: 'parked' },
            { id: running.id, state: 'processing' },
          ],
        )
        const oldest = present(all[0])
        assert.deepEqual(
          oldest.unknownEffects.map(({ name }) => name),
          ['charge'],
        )
        assert(present(oldest.unknownEffects[0]).ageMs >= 2 * HOUR_MS)
        assert(oldest.ageMs >= 2 * HOUR_MS)
        const { kind, version, scope, claims, failures, reason, fence } = oldest
        assert.deepEqual(
          { kind, version, scope, claims, failures, reason, fence },
          {
            kind: 'invoice.create',
            version: 1,
            scope: '["conformance"]',
            claims: 0,
            failures: 0,
            reason: 'OUTCOME_UNKNOWN',
            fence: unknown.fence,
          },
        )
        for (const hidden of ['payload', 'fingerprint', 'token', 'result']) assert(!(hidden in oldest), hidden)
        const stuck = await jobs.list({ states: ['unknown', 'parked'], limit: 1 })
        assert.deepEqual(
          stuck.map(({ id }) => id),
          [unknown.id],
        )
        const next = await jobs.list({ states: ['unknown', 'parked'], limit: 1, after: unknown.id })
        assert.deepEqual(
          next.map(({ id }) => id),
          [parked.id],
        )
        assert.deepEqual([...(await jobs.list({ states: ['unknown', 'parked'], limit: 1, after: parked.id }))], [])
        assert.deepEqual([...(await jobs.list({ states: ['parked'], limit: 10, after: unknown.id }))].length, 1)
      }),
  },
  {
    name: 'I15: an operation’s history is told oldest first, with fences and instants of the store',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async (bench) => {
        const { jobs, claim, expire, successor, happened } = bench
        const lease = await claim()
        assert.deepEqual(await happened(lease.id), [])
        await expire()
        const second = await successor(lease.id)
        assert.equal(await jobs.release(second, releaseOf({ failed: true, reason: 'TimeoutError' })), 'stored')
        const third = await successor(lease.id)
        assert.equal(
          await jobs.release(third, releaseOf({ state: 'parked', dueInMs: null, reason: 'failures' })),
          'stored',
        )
        assert.equal(await jobs.redrive(lease.id, ACT), 'redriven')
        const events = await jobs.history(lease.id)
        assert.deepEqual(
          events.map(({ event, fence }) => ({ event, fence })),
          [
            { event: 'takenOver', fence: second.fence },
            { event: 'failed', fence: second.fence },
            { event: 'takenOver', fence: third.fence },
            { event: 'parked', fence: third.fence },
            { event: 'redriven', fence: third.fence },
          ],
        )
        assert.equal(events[1]?.detail, 'TimeoutError')
        for (const [index, { atMs }] of events.entries()) assert(atMs >= (events[index - 1]?.atMs ?? 1_000_000_000_000))
        assert.deepEqual([...(await jobs.history(randomUUID()))], [])
      }),
  },
]
