/**
 * Effects outside the database: an intent before each call, one answer for ever, and doubt that is told as doubt.
 *
 * @module
 */

import assert from 'node:assert/strict'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { EffectChange } from '../job.ts'
import type { StoreHarness } from './harness.ts'
import { ACT, effectOf, present, withJobs } from './job-setup.ts'

const HOUR_MS = 3_600_000
const ATTEMPT: EffectChange = { to: 'attempt', keyAgeMaxMs: null }

/** An age is at least what has been let pass, and not more than the case can have taken on top. */
function assertAge(ageMs: number | null | undefined, passedMs: number): void {
  assert(typeof ageMs === 'number' && ageMs >= passedMs && ageMs < passedMs + 10 * 60_000, `age ${String(ageMs)}`)
}

export const jobEffectCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'R15, R16, I10, B84: an intent is stored with its frozen request and key before the call, and counts as an attempt',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, step }) => {
        const lease = await claim()
        const intent = effectOf('charge', { request: '{"n":1e400,"text":"\\u0000 é", "z":1, "a":2}' }, 5)
        assert.equal(await jobs.writeStep(lease, intent), 'stored')
        const { effect, ...stored } = await step(lease.id, 'charge')
        const { effect: intended, ...written } = intent
        assert.deepEqual(stored, { ...written, fence: lease.fence })
        const { firstAttemptAgeMs, lastAttemptAgeMs, ...told } = present(effect)
        assert.deepEqual(told, { ...intended, attempts: 1, keyGeneration: 0, looks: 0, unknownAgeMs: null })
        assertAge(firstAttemptAgeMs, 0)
        assertAge(lastAttemptAgeMs, 0)
      }),
  },
  {
    name: 'I10, B84: each further attempt is counted before its call, with the same request and the same key',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, expire, successor, step }) => {
        const lease = await claimWithEffect()
        const { effect: before } = await step(lease.id, 'charge')
        await expire()
        const next = await successor(lease.id)
        assert.equal(await jobs.changeEffect(next, 'charge', ATTEMPT), 'stored')
        await opened.advance(1_000)
        const { state, fence, effect } = await step(lease.id, 'charge')
        assert.deepEqual([state, fence, effect?.attempts], ['intended', next.fence, 2])
        assert.deepEqual(
          [effect?.request, effect?.requestHash, effect?.providerKey],
          [before?.request, before?.requestHash, before?.providerKey],
        )
        assertAge(effect?.firstAttemptAgeMs, 31_000)
        assertAge(effect?.lastAttemptAgeMs, 1_000)
        assert(present(effect).lastAttemptAgeMs < 30_000)
      }),
  },
  {
    name: 'B90: no attempt is started with a key that is older than the provider keeps it',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, successor, step }) => {
        const first = await claimWithEffect()
        await opened.advance(26 * HOUR_MS)
        const lease = await successor(first.id)
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        const tooOld: EffectChange = { to: 'attempt', keyAgeMaxMs: 24 * HOUR_MS }
        assert.equal(await jobs.changeEffect(lease, 'charge', tooOld), 'expired')
        const { state, effect } = await step(first.id, 'charge')
        assert.deepEqual([state, effect?.attempts], ['unknown', 1])
        assertAge(effect?.firstAttemptAgeMs, 26 * HOUR_MS)
        const inTime: EffectChange = { to: 'attempt', keyAgeMaxMs: 27 * HOUR_MS }
        assert.equal(await jobs.changeEffect(lease, 'charge', inTime), 'stored')
        const { effect: tried } = await step(first.id, 'charge')
        // Attempts don't make the key younger.
        assertAge(tried?.firstAttemptAgeMs, 26 * HOUR_MS)
        assert.equal(await jobs.changeEffect(lease, 'charge', tooOld), 'expired')
      }),
  },
  {
    name: 'B86: a new key is recorded before it is used, and its age begins with its own first attempt',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, successor, step }) => {
        const first = await claimWithEffect()
        await opened.advance(26 * HOUR_MS)
        const lease = await successor(first.id)
        const newKey: EffectChange = { to: 'newKey', providerKey: 'key of the second generation' }
        assert.equal(await jobs.changeEffect(lease, 'charge', newKey), 'stored')
        const { effect: fresh } = await step(first.id, 'charge')
        assert.deepEqual([fresh?.providerKey, fresh?.keyGeneration], [newKey.providerKey, 1])
        const attempt: EffectChange = { to: 'attempt', keyAgeMaxMs: 24 * HOUR_MS }
        assert.equal(await jobs.changeEffect(lease, 'charge', attempt), 'stored')
        await opened.advance(1_000)
        const { state, effect } = await step(first.id, 'charge')
        assert.equal(state, 'intended')
        assertAge(effect?.firstAttemptAgeMs, 1_000)
        assert(present(effect).firstAttemptAgeMs < HOUR_MS)
        assert.equal(effect?.requestHash, fresh?.requestHash)
      }),
  },
  {
    name: 'B86, I11: an old key names its effect no more once another one is recorded',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, step }) => {
        const lease = await claimWithEffect({ providerKey: 'first key' })
        const newKey: EffectChange = { to: 'newKey', providerKey: 'second key' }
        assert.equal(await jobs.changeEffect(lease, 'charge', newKey), 'stored')
        const proof = { state: 'done', result: '"paid"', resultVersion: 1 } as const
        assert.equal(await jobs.resolveEffect({ providerKey: 'first key' }, proof, ACT), 'notFound')
        assert.equal(await jobs.resolveEffect({ providerKey: 'second key' }, proof, ACT), 'resolved')
        assert.equal((await step(lease.id, 'charge')).result, '"paid"')
      }),
  },
  {
    name: 'an answer is stored once: the first one stays, done or refused',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, step }) => {
        for (const to of ['done', 'refused'] as const) {
          const lease = await claimWithEffect()
          const answer: EffectChange = { to, result: '{"id":"ch_1"}', resultVersion: 3 }
          assert.equal(await jobs.changeEffect(lease, 'charge', answer), 'stored')
          const later: EffectChange[] = [
            { to: 'done', result: '"other"', resultVersion: 1 },
            { to: 'refused', result: '"other"', resultVersion: 1 },
            { to: 'newKey', providerKey: 'other' },
            { to: 'looked', looks: 1 },
            { to: 'unknown' },
            ATTEMPT,
            answer,
          ]
          for (const change of later) assert.equal(await jobs.changeEffect(lease, 'charge', change), 'decided')
          const { state, result, resultVersion, effect } = await step(lease.id, 'charge')
          assert.deepEqual([state, result, resultVersion], [to, '{"id":"ch_1"}', 3])
          assert.deepEqual([effect?.attempts, effect?.unknownAgeMs], [1, null])
        }
      }),
  },
  {
    name: 'I11: an answer that a webhook brings first is kept, and the owner is told that it is decided',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, step }) => {
        const lease = await claimWithEffect({ providerKey: 'key of the webhook' })
        const proof = { state: 'done', result: '"from the webhook"', resultVersion: 1 } as const
        assert.equal(await jobs.resolveEffect({ providerKey: 'key of the webhook' }, proof, ACT), 'resolved')
        const own: EffectChange = { to: 'done', result: '"from the call"', resultVersion: 1 }
        assert.equal(await jobs.changeEffect(lease, 'charge', own), 'decided')
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'decided')
        const { state, result } = await step(lease.id, 'charge')
        assert.deepEqual([state, result], ['done', '"from the webhook"'])
        // The owner is still the owner.
        assert.deepEqual(await jobs.renew([{ lease, leaseMs: 30_000 }]), ['renewed'])
      }),
  },
  {
    name: 'R19, I11: doubt is told with its age, which saying it again does not make younger',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, successor, step }) => {
        const first = await claimWithEffect()
        assert.equal((await step(first.id, 'charge')).effect?.unknownAgeMs, null)
        assert.equal(await jobs.changeEffect(first, 'charge', { to: 'unknown' }), 'stored')
        await opened.advance(2 * HOUR_MS)
        const lease = await successor(first.id)
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        const { state, effect } = await step(first.id, 'charge')
        assert.equal(state, 'unknown')
        assertAge(effect?.unknownAgeMs, 2 * HOUR_MS)
        assertAge(effect?.lastAttemptAgeMs, 2 * HOUR_MS)
        const found = { to: 'done', result: null, resultVersion: 1 } as const
        assert.equal(await jobs.changeEffect(lease, 'charge', found), 'stored')
        const decided = await step(first.id, 'charge')
        assert.deepEqual([decided.state, decided.effect?.unknownAgeMs], ['done', null])
      }),
  },
  {
    name: 'looks are counted behind the last attempt: another attempt starts them anew',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, step }) => {
        const lease = await claimWithEffect()
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
        assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'looked', looks: 2 }), 'stored')
        const { state, effect } = await step(lease.id, 'charge')
        assert.deepEqual([state, effect?.looks], ['unknown', 2])
        assert.equal(await jobs.changeEffect(lease, 'charge', ATTEMPT), 'stored')
        assert.equal((await step(lease.id, 'charge')).effect?.looks, 0)
      }),
  },
  {
    name: 'I11: doubt goes on counting over another attempt, unless a look has said that nothing was applied',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claimWithEffect, successor, step }) => {
        for (const looked of [false, true]) {
          const first = await claimWithEffect()
          assert.equal(await jobs.changeEffect(first, 'charge', { to: 'unknown' }), 'stored')
          await opened.advance(2 * HOUR_MS)
          const lease = await successor(first.id)
          if (looked) assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'looked', looks: 1 }), 'stored')
          assert.equal(await jobs.changeEffect(lease, 'charge', ATTEMPT), 'stored')
          assert.equal((await step(first.id, 'charge')).effect?.unknownAgeMs, null)
          assert.equal(await jobs.changeEffect(lease, 'charge', { to: 'unknown' }), 'stored')
          assertAge((await step(first.id, 'charge')).effect?.unknownAgeMs, looked ? 0 : 2 * HOUR_MS)
        }
      }),
  },
  {
    name: 'R18: an effect that is recorded after its call has its answer from the start',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, step }) => {
        const lease = await claim()
        const recorded = {
          ...effectOf('mail', { delivery: 'at-least-once' }),
          state: 'done',
          result: '"sent"',
        } as const
        assert.equal(await jobs.writeStep(lease, recorded), 'stored')
        assert.equal(await jobs.writeStep(lease, { ...recorded, result: '"again"' }), 'exists')
        const { state, result, effect } = await step(lease.id, 'mail')
        assert.deepEqual([state, result, effect?.delivery], ['done', '"sent"', 'at-least-once'])
        assert.equal(await jobs.changeEffect(lease, 'mail', ATTEMPT), 'decided')
      }),
  },
  {
    name: 'effects of one operation change on their own',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claimWithEffect, step }) => {
        const lease = await claimWithEffect()
        const other = await claimWithEffect()
        assert.equal(await jobs.writeStep(lease, effectOf('refund', {}, 1)), 'stored')
        const answers = await Promise.all([
          jobs.changeEffect(lease, 'charge', { to: 'unknown' }),
          jobs.changeEffect(lease, 'refund', { to: 'done', result: '1', resultVersion: 1 }),
          jobs.changeEffect(other, 'charge', { to: 'refused', result: '2', resultVersion: 1 }),
        ])
        assert.deepEqual(answers, ['stored', 'stored', 'stored'])
        assert.deepEqual(
          [
            (await step(lease.id, 'charge')).state,
            (await step(lease.id, 'refund')).state,
            (await step(other.id, 'charge')).state,
          ],
          ['unknown', 'done', 'refused'],
        )
      }),
  },
]
