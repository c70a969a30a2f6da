/**
 * Waiting and quarantine: what every inbox store must hold about messages that cannot be applied now.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { ClaimedWaiting, WaitingClaim } from '../inbox.ts'
import type { StoreHarness } from './harness.ts'
import {
  ACT,
  CONSUMER,
  DAY_MS,
  deliveryOf,
  LEASE_MS,
  markOf,
  OPTIONS,
  otherContent,
  quarantineOf,
  single,
  waitingOf,
  withInbox,
} from './inbox-setup.ts'

const idsOf = (claimed: readonly ClaimedWaiting[]): string[] => claimed.map(({ mark }) => mark.messageId)

/** What a history says, without times. */
function told(history: readonly unknown[]): unknown[] {
  return history.map((entry) => {
    assert.ok(typeof entry === 'object' && entry !== null && 'at' in entry && 'event' in entry)
    return 'attempt' in entry ? [entry.event, entry.attempt] : [entry.event]
  })
}

export const inboxWaitingCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'R34: a waiting message comes back byte for byte, and each claim is counted',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const mark = markOf('a', { source: 'https://example.com/shop' })
        const delivery = deliveryOf({ orderingKey: 'order-1' })
        assert.deepEqual(await inbox.wait([waitingOf(mark, { delivery })]), ['waiting'])
        const claimed = single(await claimDue())
        assert.deepEqual(
          { ...claimed.mark, fingerprint: [...claimed.mark.fingerprint] },
          {
            ...mark,
            fingerprint: [...mark.fingerprint],
          },
        )
        assert.deepEqual([...claimed.delivery.body], [...delivery.body])
        assert.deepEqual({ ...claimed.delivery, body: '' }, { ...delivery, body: '' })
        assert.equal(claimed.claim.attempts, 2)
        assert.equal(claimed.suspect, false)
        assert.equal(claimed.reason, 'failed')
      }),
  },
  {
    name: 'R34: absent properties of a delivery stay absent',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const delivery = deliveryOf({ type: undefined, contentType: undefined, sentAtMs: undefined, body: Buffer.of() })
        await inbox.wait([waitingOf(markOf(), { delivery })])
        const claimed = single(await claimDue())
        assert.deepEqual({ ...claimed.delivery, body: [...claimed.delivery.body] }, { ...delivery, body: [] })
      }),
  },
  {
    name: 'I14: a message is due by the store’s clock, not before',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, claimDue }) => {
        await inbox.wait([waitingOf(markOf(), { dueInMs: 60_000 })])
        assert.deepEqual(await claimDue(), [])
        await opened.advance(60_001)
        assert.equal((await claimDue()).length, 1)
      }),
  },
  {
    name: 'B77, SC38: a message that somebody works on is not claimed again; once its claim ran out it is suspect',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, claimDue, claimSuspect }) => {
        await inbox.wait([waitingOf(markOf())])
        const { claim } = single(await claimDue())
        assert.deepEqual(await claimDue(), [])
        assert.equal(await claimSuspect(), undefined)
        await opened.advance(LEASE_MS - 1_000)
        assert.deepEqual(await inbox.renew([claim], LEASE_MS), [claim.id])
        await opened.advance(LEASE_MS - 1_000)
        assert.equal(await claimSuspect(), undefined)
        await opened.advance(1_001)
        assert.deepEqual(await claimDue(), [])
        const second = await claimSuspect()
        assert.equal(second?.suspect, true)
        assert.equal(second?.claim.attempts, claim.attempts + 1)
        const [entry] = await inbox.listWaiting({ limit: 10 })
        assert.deepEqual(told(entry?.history ?? []), [
          ['failed', 1],
          ['vanished', 2],
        ])
      }),
  },
  {
    name: 'SC38: suspects are claimed one by one, and only they; a look at what is due tells that there are some',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, claimDue, claimSuspect }) => {
        const options = {
          consumer: CONSUMER,
          owner: randomUUID(),
          limit: 10,
          leaseMs: LEASE_MS,
          headsOnly: false,
          except: [],
        }
        assert.deepEqual(await inbox.claimDue(options), { claimed: [], suspects: false })
        const vanished = [markOf(), markOf()]
        await inbox.wait(vanished.map((mark) => waitingOf(mark)))
        assert.equal((await claimDue()).length, 2)
        await opened.advance(LEASE_MS + 1)
        const fresh = markOf()
        await inbox.wait([waitingOf(fresh)])
        const look = await inbox.claimDue(options)
        assert.deepEqual(idsOf(look.claimed), [fresh.messageId])
        assert.equal(look.suspects, true)
        const claimed = [await claimSuspect(), await claimSuspect()]
        assert.deepEqual(
          claimed.map((one) => String(one?.mark.messageId)).toSorted(),
          vanished.map((mark) => mark.messageId).toSorted(),
        )
        assert.deepEqual(
          claimed.map((one) => one?.claim.attempts),
          [3, 3],
        )
        assert.equal(await claimSuspect(), undefined)
        assert.equal((await inbox.claimDue(options)).suspects, false)
      }),
  },
  {
    name: 'B77: many consumers that look at once share the messages, each claimed by one',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const marks = Array.from({ length: 40 }, () => markOf())
        await inbox.wait(marks.map((mark) => waitingOf(mark)))
        const shares = await Promise.all(Array.from({ length: 8 }, () => claimDue({ limit: 10 })))
        const claimed = shares.flatMap(idsOf)
        const left = idsOf(await claimDue({ limit: 100 }))
        assert.deepEqual([...claimed, ...left].toSorted(), marks.map((mark) => mark.messageId).toSorted())
      }),
  },
  {
    name: 'I5: a claim that was taken over changes nothing',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, claimDue, claimSuspect }) => {
        await inbox.wait([waitingOf(markOf())])
        const late = single(await claimDue({ owner: randomUUID() })).claim
        await opened.advance(LEASE_MS + 1)
        const claim = (await claimSuspect())?.claim
        assert.ok(claim !== undefined)
        const forged: WaitingClaim = { ...claim, owner: randomUUID() }
        for (const stale of [late, forged]) {
          assert.deepEqual(await inbox.renew([stale], LEASE_MS), [])
          assert.equal(await inbox.postpone(stale, { reason: 'failed', dueInMs: 0, error: 'late' }), 'fenced')
          assert.equal(await inbox.discard(stale), 'fenced')
          assert.equal(await inbox.quarantineClaimed(stale, { reason: 'exhausted' }), 'fenced')
          await inbox.release([stale], 0)
        }
        const [entry] = await inbox.listWaiting({ limit: 10 })
        assert.equal(entry?.claimed, true)
        assert.equal(entry?.attempts, claim.attempts)
        assert.deepEqual(await inbox.renew([claim], LEASE_MS), [claim.id])
        assert.equal(await inbox.discard(claim), 'discarded')
        assert.equal(await inbox.discard(claim), 'fenced')
      }),
  },
  {
    name: 'I15: a failure keeps its count; standing behind, lacking a handler or being given back costs none',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        await inbox.wait([waitingOf(markOf())])
        const attempts = async () => (await inbox.listWaiting({ limit: 1 }))[0]?.attempts
        const next = async () => single(await claimDue()).claim
        assert.equal(await inbox.postpone(await next(), { reason: 'failed', dueInMs: 0, error: 'again' }), 'waiting')
        assert.equal(await attempts(), 2)
        assert.equal(await inbox.postpone(await next(), { reason: 'behind', dueInMs: 0 }), 'waiting')
        assert.equal(await attempts(), 2)
        await inbox.release([await next()], 0)
        assert.equal(await attempts(), 2)
        assert.equal(await inbox.postpone(await next(), { reason: 'no-handler', dueInMs: 0 }), 'waiting')
        assert.equal(await attempts(), 2)
        const [entry] = await inbox.listWaiting({ limit: 1 })
        assert.equal(entry?.lastError, 'again')
        assert.equal(entry?.claimed, false)
        assert.deepEqual(told(entry?.history ?? []), [
          ['failed', 1],
          ['failed', 2],
        ])
      }),
  },
  {
    name: 'R34: a message without a handler waits until its type has one',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const delivery = deliveryOf({ type: 'order.shipped.v1' })
        await inbox.wait([waitingOf(markOf(), { delivery, reason: 'no-handler', attempts: 0, error: undefined })])
        assert.deepEqual(await claimDue({ types: ['order.created.v1'] }), [])
        assert.equal((await claimDue({ types: ['order.created.v1', 'order.shipped.v1'] })).length, 1)
      }),
  },
  {
    name: 'R34: a failed message of a type without handler is claimed, so that it can be set aside as such',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        await inbox.wait([waitingOf(markOf())])
        assert.equal((await claimDue({ types: ['other'] })).length, 1)
      }),
  },
  {
    name: 'I8: of a key only the earliest waiting message is claimed when heads are asked for, in order of arrival',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue, hold }) => {
        const delivery = deliveryOf({ orderingKey: 'order-1' })
        const [first, second, third] = [markOf(), markOf(), markOf()]
        const free = markOf()
        await inbox.wait([
          waitingOf(first, { delivery, dueInMs: 60_000 }),
          waitingOf(second, { delivery, reason: 'behind' }),
          waitingOf(free),
        ])
        await inbox.wait([waitingOf(third, { delivery, reason: 'behind' })])
        assert.deepEqual(idsOf(await claimDue({ headsOnly: true })), [free.messageId])
        assert.equal(await inbox.hasten(CONSUMER, [first.id]), 1)
        for (const mark of [first, second, third]) {
          const claimed = single(await claimDue({ headsOnly: true }))
          assert.equal(claimed.mark.messageId, mark.messageId)
          const open = await hold([{ mark, claim: claimed.claim, stopKey: 'order-1' }])
          assert.equal(await open.finish([]), 'committed')
        }
      }),
  },
  {
    name: 'B77: what is in hand is left out, and so is what belongs to another consumer',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const [mine, other] = [markOf(), markOf('a', { consumer: 'other' })]
        await inbox.wait([waitingOf(mine), waitingOf(other)])
        assert.deepEqual(await claimDue({ except: [mine.id] }), [])
        assert.deepEqual(idsOf(await claimDue()), [mine.messageId])
      }),
  },
  {
    name: 'R33: storing a message twice keeps one, and other content under its id is told',
    run: (harness) =>
      withInbox(harness, async ({ inbox }) => {
        const mark = markOf()
        assert.deepEqual(await inbox.wait([waitingOf(mark)]), ['waiting'])
        const again = [waitingOf(mark), waitingOf(markOf()), waitingOf(otherContent(mark))]
        assert.deepEqual(await inbox.wait(again.slice(0, 2)), ['stored', 'waiting'])
        assert.deepEqual(await inbox.wait(again.slice(2)), ['mismatch'])
        assert.equal((await inbox.listWaiting({ limit: 10 })).length, 2)
        assert.deepEqual(await inbox.wait([]), [])
      }),
  },
  {
    name: 'I15: a redelivered message is written down as claimed before it runs, once',
    run: (harness) =>
      withInbox(harness, async ({ inbox, apply, claimDue, hold }) => {
        const mark = markOf()
        const by = { owner: randomUUID(), leaseMs: LEASE_MS }
        const claimed = await inbox.claimDelivery(mark, deliveryOf(), by)
        assert.deepEqual(claimed, { kind: 'claimed', claim: { id: mark.id, owner: by.owner, attempts: 1 } })
        assert.deepEqual(await claimDue(), [])
        assert.equal((await inbox.claimDelivery(mark, deliveryOf(), by)).kind, 'stored')
        assert.equal((await inbox.claimDelivery(otherContent(mark), deliveryOf(), by)).kind, 'mismatch')
        assert.ok(claimed.kind === 'claimed')
        const open = await hold([{ mark, claim: claimed.claim }])
        assert.equal(await open.finish([]), 'committed')
        assert.equal((await inbox.claimDelivery(mark, deliveryOf(), by)).kind, 'duplicate')
        assert.equal((await inbox.claimDelivery(otherContent(mark), deliveryOf(), by)).kind, 'mismatch')
        const known = markOf()
        await apply([{ mark: known }])
        assert.equal((await inbox.claimDelivery(known, deliveryOf(), by)).kind, 'duplicate')
        assert.deepEqual(await inbox.listWaiting({ limit: 10 }), [])
      }),
  },
  {
    name: 'I15: a redelivery of a quarantined message is recognised',
    run: (harness) =>
      withInbox(harness, async ({ inbox }) => {
        const mark = markOf()
        await inbox.quarantine([quarantineOf(mark)])
        const by = { owner: randomUUID(), leaseMs: LEASE_MS }
        assert.equal((await inbox.claimDelivery(mark, deliveryOf(), by)).kind, 'quarantined')
        assert.equal((await inbox.claimDelivery(otherContent(mark), deliveryOf(), by)).kind, 'claimed')
      }),
  },
  {
    name: 'R34, SC38: a message leaves waiting for quarantine with its bytes and its whole history',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const mark = markOf()
        await inbox.wait([waitingOf(mark)])
        await inbox.postpone(single(await claimDue()).claim, { reason: 'failed', dueInMs: 0, error: 'second' })
        const { claim } = single(await claimDue())
        const why = { reason: 'exhausted', error: 'third' } as const
        assert.equal(await inbox.quarantineClaimed(claim, why), 'quarantined')
        assert.deepEqual(await inbox.listWaiting({ limit: 10 }), [])
        const entry = single(await inbox.listQuarantine({ consumer: CONSUMER, limit: 10 }))
        assert.equal(entry.messageId, mark.messageId)
        assert.equal(entry.reason, 'exhausted')
        assert.equal(entry.attempts, 3)
        assert.equal(entry.lastError, 'third')
        assert.deepEqual(told(entry.history), [
          ['failed', 1],
          ['failed', 2],
          ['quarantined', 3],
        ])
        const kept = await inbox.readQuarantined(entry.id)
        assert.deepEqual([...(kept?.body ?? [])], [...deliveryOf().body])
        assert.deepEqual({ ...kept, body: '' }, { ...deliveryOf(), body: '' })
        assert.equal(await inbox.readQuarantined('999999'), undefined)
      }),
  },
  {
    name: 'R34: a quarantined claim without an error of its own keeps the last one',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        await inbox.wait([waitingOf(markOf(), { error: 'first' })])
        await inbox.quarantineClaimed(single(await claimDue()).claim, { reason: 'exhausted' })
        assert.equal(single(await inbox.listQuarantine({ limit: 10 })).lastError, 'first')
      }),
  },
  {
    name: 'B73: messages without identity are all kept, however equal; only a redelivery is the same message',
    run: (harness) =>
      withInbox(harness, async ({ inbox }) => {
        const mark = { ...markOf(), messageId: undefined }
        const row = quarantineOf(mark, { reason: 'no-identity', attempts: 0 })
        await inbox.quarantine([row])
        await inbox.quarantine([row])
        assert.equal((await inbox.listQuarantine({ limit: 10 })).length, 2)
        await inbox.quarantine([{ ...row, redelivered: true }])
        assert.equal((await inbox.listQuarantine({ limit: 10 })).length, 2)
        await inbox.quarantine([])
      }),
  },
  {
    name: 'R34: a quarantined message that comes again is one entry, other content under its id another',
    run: (harness) =>
      withInbox(harness, async ({ inbox }) => {
        const mark = markOf()
        await inbox.quarantine([quarantineOf(mark), quarantineOf(otherContent(mark), { reason: 'mismatch' })])
        await inbox.quarantine([quarantineOf(mark, { redelivered: true })])
        const entries = await inbox.listQuarantine({ limit: 10 })
        assert.deepEqual(
          entries.map((entry) => entry.reason),
          ['undecodable', 'mismatch'],
        )
      }),
  },
  {
    name: 'R45, I16: a redriven message waits under its own id, due now, with an audit entry',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, claimDue }) => {
        const mark = markOf()
        await inbox.quarantine([
          quarantineOf(mark, { reason: 'exhausted', attempts: 10, error: 'no' }),
          quarantineOf({ ...markOf(), messageId: undefined }, { reason: 'no-identity' }),
        ])
        const [known, nameless] = await inbox.listQuarantine({ limit: 10 })
        assert.ok(known !== undefined && nameless !== undefined)
        const options = { ...ACT, override: false }
        assert.deepEqual(await inbox.redrive([known.id, nameless.id, '999999'], options), [
          'redriven',
          'no-identity',
          'absent',
        ])
        assert.deepEqual(await inbox.redrive([known.id], options), ['absent'])
        const [entry] = await inbox.listWaiting({ limit: 10 })
        assert.equal(entry?.id, mark.id)
        assert.equal(entry?.messageId, mark.messageId)
        assert.equal(entry?.attempts, 0)
        assert.equal(entry?.reason, 'redriven')
        assert.deepEqual(told(entry?.history ?? []), [['quarantined', 10], ['redriven']])
        const claimed = single(await claimDue())
        assert.equal(claimed.claim.attempts, 1)
        assert.equal(claimed.override, false)
        assert.deepEqual([...claimed.mark.fingerprint], [...mark.fingerprint])
        const acts = await opened.audited()
        assert.deepEqual(acts, [{ act: 'inbox.redrive', subject: `${CONSUMER}/${mark.id}`, ...ACT }])
      }),
  },
  {
    name: 'R45: a message whose id waits already is not redriven a second time',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox }) => {
        const mark = markOf()
        await inbox.quarantine([quarantineOf(mark)])
        await inbox.wait([waitingOf(mark)])
        const { id } = single(await inbox.listQuarantine({ limit: 10 }))
        assert.deepEqual(await inbox.redrive([id], { ...ACT, override: false }), ['waiting'])
        assert.equal((await inbox.listQuarantine({ limit: 10 })).length, 1)
        assert.deepEqual(await opened.audited(), [])
      }),
  },
  {
    name: 'B81, I13: marks of waiting and quarantined messages outlive their retention; the others go, oldest first',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, apply, claimDue, verdictOn }) => {
        const options = { ...OPTIONS, retentionMs: DAY_MS }
        const [quarantined, waiting, oldest, old] = [markOf(), markOf(), markOf(), markOf()]
        await apply([{ mark: quarantined }, { mark: waiting }, { mark: oldest }], options)
        await opened.advance(1_000)
        await apply([{ mark: old }], options)
        await inbox.quarantine([quarantineOf(quarantined, { reason: 'exhausted' })])
        await inbox.wait([waitingOf(waiting)])
        await opened.advance(30 * DAY_MS)
        const live = markOf()
        await apply([{ mark: live }], options)
        const removed = async (graceMs: number, limit: number) => (await inbox.purgeMarks({ graceMs, limit })).removed
        assert.equal(await removed(40 * DAY_MS, 10), 0)
        assert.equal(await inbox.overdueMarksMs(40 * DAY_MS), 0)
        assert.ok((await inbox.overdueMarksMs(DAY_MS)) >= 28 * DAY_MS)
        const { after, ...one } = await inbox.purgeMarks({ graceMs: DAY_MS, limit: 1 })
        assert.equal(one.removed, 1)
        assert.notEqual(after, undefined)
        assert.deepEqual(await inbox.lookup([oldest, old]), ['new', 'expired'])
        const rest = await inbox.purgeMarks({ graceMs: DAY_MS, limit: 10, after })
        assert.deepEqual([rest.removed, rest.after], [1, undefined])
        assert.equal(await removed(DAY_MS, 10), 0)
        // Those of kept messages are not overdue.
        assert.equal(await inbox.overdueMarksMs(DAY_MS), 0)
        assert.deepEqual(await inbox.lookup([quarantined, waiting, old, live]), [
          'expired',
          'expired',
          'new',
          'duplicate',
        ])
        const { id } = single(await inbox.listQuarantine({ limit: 10 }))
        await inbox.redrive([id], { ...ACT, override: true })
        const redriven = (await claimDue()).find(({ mark }) => mark.id === quarantined.id)
        assert.equal(redriven?.override, true)
        assert.equal(await verdictOn({ mark: quarantined, claim: redriven?.claim }), 'expired')
        assert.equal(await verdictOn({ mark: quarantined, claim: redriven?.claim, override: true }), 'new')
      }),
  },
  {
    name: 'R34: hastening makes waiting messages due now, and leaves claimed ones alone',
    run: (harness) =>
      withInbox(harness, async ({ inbox, claimDue }) => {
        const [claimed, late, other] = [markOf(), markOf(), markOf('a', { consumer: 'other' })]
        await inbox.wait([waitingOf(claimed)])
        await claimDue()
        await inbox.wait([waitingOf(late, { dueInMs: 60_000 }), waitingOf(other, { dueInMs: 60_000 })])
        assert.equal(await inbox.hasten(CONSUMER), 1)
        assert.deepEqual(idsOf(await claimDue()), [late.messageId])
      }),
  },
  {
    name: 'R34: quarantine is read page by page',
    run: (harness) =>
      withInbox(harness, async ({ inbox }) => {
        const marks = Array.from({ length: 5 }, () => markOf())
        for (const mark of marks) await inbox.quarantine([quarantineOf(mark)])
        const first = await inbox.listQuarantine({ limit: 2 })
        const rest = await inbox.listQuarantine({ limit: 10, after: first.at(-1)?.id })
        assert.deepEqual(
          [...first, ...rest].map((entry) => entry.messageId),
          marks.map((mark) => mark.messageId),
        )
        assert.deepEqual(await inbox.listQuarantine({ consumer: 'other', limit: 10 }), [])
      }),
  },
]
