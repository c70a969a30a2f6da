/**
 * Parked and quarantined rows: a failing message steps aside with its place kept, its key waits, the others go on.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { PendingRow } from '../outbox.ts'
import type { StoreHarness } from './harness.ts'
import {
  ACT,
  BYTES,
  invalid,
  LEASE_MS,
  present,
  RELEASED,
  refusal,
  rowOf,
  SETTLED,
  withOutbox,
} from './outbox-setup.ts'

const seqsOf = (rows: readonly PendingRow[]): number[] => rows.map((row) => row.seq)

export const outboxParkedCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'R24: a parked row keeps id, seq and content, counts its attempts, and is due after its delay',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, due, pendingIds }) => {
        const [row, other] = await commit([rowOf('a', { payload: '{"n": 1.0}' }), rowOf()])
        const lease = await own()
        const { seq } = present(row)
        assert.equal(await outbox.park(lease, LEASE_MS, [refusal(seq, 20_000)]), 'done')
        assert.deepEqual(await pendingIds(), [present(other).id])
        assert.deepEqual(await due(), [])
        const { nextInMs } = await outbox.due(0, [], 10, BYTES)
        assert.ok(nextInMs !== null && nextInMs > 0 && nextInMs <= 20_000)
        await opened.advance(20_001)
        const [parked] = await due()
        assert.deepEqual({ ...present(parked), createdAtMs: 0 }, { ...present(row), createdAtMs: 0, attempts: 1 })
        assert.equal(await outbox.park(lease, LEASE_MS, [{ ...refusal(seq), counts: false }]), 'done')
        assert.equal((await due())[0]?.attempts, 1, 'what is not its fault does not count')
        assert.equal(await outbox.park(lease, LEASE_MS, [refusal(seq)]), 'done')
        assert.equal((await due())[0]?.attempts, 2)
      }),
  },
  {
    name: 'due rows come in order, without those in flight, within limit and bytes',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own }) => {
        const rows = await commit(
          Array.from({ length: 5 }, () => rowOf(null, { payload: JSON.stringify('x'.repeat(1_000)) })),
        )
        const seqs = seqsOf(rows)
        const lease = await own()
        await outbox.park(
          lease,
          LEASE_MS,
          [...seqs].reverse().map((seq) => refusal(seq)),
        )
        const all = await outbox.due(0, [], 10, BYTES)
        assert.deepEqual(seqsOf(all.rows), seqs)
        assert.equal(all.nextInMs, null)
        const some = seqsOf((await outbox.due(0, [seqs[0] ?? 0], 2, BYTES)).rows)
        assert.equal(some.length, 2)
        assert.ok(!some.includes(seqs[0] ?? 0) && (some[0] ?? 0) < (some[1] ?? 0))
        assert.equal((await outbox.due(0, [], 10, 1)).rows.length, 1)
      }),
  },
  {
    name: 'SC28: rows behind a parked row of their key wait, whatever their own delay; other keys do not',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, due }) => {
        const [first, second, third, other] = seqsOf(await commit([rowOf('a'), rowOf('a'), rowOf('a'), rowOf('b')]))
        const lease = await own()
        await outbox.park(lease, LEASE_MS, [
          refusal(present(first), 20_000),
          refusal(present(second)),
          refusal(present(other)),
        ])
        assert.equal(await outbox.parkBehind(lease, LEASE_MS, [present(third)]), 'done')
        assert.equal(await outbox.parkBehind(lease, LEASE_MS, [present(third)]), 'done')
        assert.deepEqual(seqsOf(await due()), [other])
        await opened.advance(20_001)
        assert.deepEqual(seqsOf(await due()), [first, other])
      }),
  },
  {
    name: 'SC29, R27: when a parked row is settled, the rows behind it return to their place',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due, pendingIds }) => {
        const rows = await commit([rowOf('a'), rowOf('b'), rowOf('a'), rowOf('a'), rowOf('c')])
        const [first, , third, fourth] = seqsOf(rows)
        const lease = await own()
        await outbox.park(lease, LEASE_MS, [refusal(present(first))])
        await outbox.parkBehind(lease, LEASE_MS, [present(third), present(fourth)])
        const released = await outbox.settleParked(lease, LEASE_MS, [present(first)], RELEASED)
        assert.deepEqual(released, { kind: 'done', next: [], moved: 2 })
        assert.deepEqual(
          await pendingIds(),
          rows.slice(1).map((row) => row.id),
        )
        assert.deepEqual(await due(), [])
        const again = await outbox.settleParked(lease, LEASE_MS, [present(first)], RELEASED)
        assert.deepEqual(again, { kind: 'done', next: [], moved: 0 })
      }),
  },
  {
    name: 'rows behind return in portions: the lowest that stays is due at once and still holds back the others',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due, pendingIds }) => {
        const rows = await commit(Array.from({ length: 6 }, () => rowOf('a')))
        const seqs = seqsOf(rows)
        const lease = await own()
        await outbox.park(lease, LEASE_MS, [refusal(seqs[0] ?? 0)])
        await outbox.parkBehind(lease, LEASE_MS, seqs.slice(1))
        const released = await outbox.settleParked(lease, LEASE_MS, [seqs[0] ?? 0], { ...RELEASED, limit: 2 })
        assert.deepEqual(released, { kind: 'done', next: [{ orderingKey: 'a', seq: seqs[3] }], moved: 2 })
        assert.deepEqual(
          await pendingIds(),
          rows.slice(1, 3).map((row) => row.id),
        )
        assert.deepEqual(seqsOf(await due()), [seqs[3]])
      }),
  },
  {
    name: 'settling a parked row without a key moves nothing, and can keep it in the history',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        const [one, two] = await commit([rowOf(), rowOf()])
        const lease = await own()
        await outbox.park(lease, LEASE_MS, [refusal(present(one).seq), refusal(present(two).seq, 60_000)])
        const kept = { ...RELEASED, history: true }
        for (let again = 0; again < 2; again += 1) {
          const released = await outbox.settleParked(lease, LEASE_MS, [present(one).seq], kept)
          assert.deepEqual(released, { kind: 'done', next: [], moved: 0 })
        }
        assert.deepEqual(await opened.historyIds(), [present(one).id])
      }),
  },
  {
    name: 'stopped keys are those with parked rows, by their lowest row; keys without are not',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own }) => {
        const seqs = seqsOf(await commit([rowOf('a'), rowOf('b'), rowOf('a'), rowOf('c'), rowOf()]))
        const lease = await own()
        assert.deepEqual(await outbox.stoppedKeys(lease, LEASE_MS), { kind: 'done', keys: [] })
        await outbox.park(lease, LEASE_MS, [
          refusal(seqs[0] ?? 0, 60_000),
          refusal(seqs[3] ?? 0, 60_000),
          refusal(seqs[4] ?? 0, 60_000),
        ])
        await outbox.parkBehind(lease, LEASE_MS, [seqs[2] ?? 0])
        const { keys } = await outbox.stoppedKeys(lease, LEASE_MS)
        assert.deepEqual(
          [...keys].sort((one, other) => one.seq - other.seq),
          [
            { orderingKey: 'a', seq: seqs[0] },
            { orderingKey: 'c', seq: seqs[3] },
          ],
        )
      }),
  },
  {
    name: 'I12: a row that waits for one that is no longer there becomes due, so that no key waits for ever',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due }) => {
        const [one, two] = seqsOf(await commit([rowOf('a'), rowOf('a')]))
        const lease = await own()
        await outbox.parkBehind(lease, LEASE_MS, [present(one), present(two)])
        assert.deepEqual(await due(), [])
        assert.deepEqual((await outbox.stoppedKeys(lease, LEASE_MS)).keys, [{ orderingKey: 'a', seq: one }])
        assert.deepEqual(seqsOf(await due()), [one])
      }),
  },
  {
    name: 'SC28: a message that can never be sent is quarantined from its place, and its key goes on',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due, pendingIds }) => {
        const rows = await commit([rowOf('a'), rowOf('a'), rowOf('b'), rowOf('b')])
        const [a1, , b1, b2] = seqsOf(rows)
        const lease = await own()
        assert.deepEqual(await outbox.quarantine(lease, LEASE_MS, [invalid(present(a1))]), { kind: 'done', next: [] })
        assert.deepEqual(await outbox.quarantine(lease, LEASE_MS, [invalid(present(a1))]), { kind: 'done', next: [] })
        await outbox.park(lease, LEASE_MS, [refusal(present(b1), 60_000)])
        await outbox.parkBehind(lease, LEASE_MS, [present(b2)])
        const { next } = await outbox.quarantine(lease, LEASE_MS, [invalid(present(b1))])
        assert.deepEqual(next, [{ orderingKey: 'b', seq: b2 }])
        assert.deepEqual(seqsOf(await due()), [b2], 'the next of the key is due at once')
        assert.deepEqual(await pendingIds(), [present(rows[1]).id])
        const views = await outbox.quarantined(10)
        assert.deepEqual(
          views.map(({ id, seq, reason, lastError, stopsKey, attempts }) => ({
            id,
            seq,
            reason,
            lastError,
            stopsKey,
            attempts,
          })),
          [
            { id: rows[0]?.id, seq: a1, reason: 'invalid', lastError: 'too large', stopsKey: false, attempts: 0 },
            { id: rows[2]?.id, seq: b1, reason: 'invalid', lastError: 'too large', stopsKey: false, attempts: 1 },
          ],
        )
        assert.equal((await outbox.quarantined(1)).length, 1)
      }),
  },
  {
    name: 'SC28: a quarantined message that stops its key holds later rows back until it is redriven',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due }) => {
        const [one, two] = seqsOf(await commit([rowOf('a'), rowOf('a')]))
        const lease = await own()
        await outbox.quarantine(lease, LEASE_MS, [invalid(present(one), true)])
        await outbox.parkBehind(lease, LEASE_MS, [present(two)])
        assert.deepEqual((await outbox.stoppedKeys(lease, LEASE_MS)).keys, [{ orderingKey: 'a', seq: one }])
        assert.deepEqual(await due(), [])
        await outbox.park(lease, LEASE_MS, [refusal(present(two))])
        assert.deepEqual(await due(), [], 'not even when it would be due')
      }),
  },
  {
    name: 'SC29, R45: a redriven message returns to its place, with id and seq kept and an audit row, once',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, pendingIds }) => {
        const rows = await commit([rowOf('a'), rowOf('b')])
        const { id, seq } = present(rows[0])
        const lease = await own()
        await outbox.quarantine(lease, LEASE_MS, [invalid(seq)])
        assert.deepEqual(await outbox.redrive([id], ACT), [id])
        assert.deepEqual(await outbox.redrive([id], ACT), [])
        assert.deepEqual(
          await pendingIds(),
          rows.map((row) => row.id),
        )
        const [again] = (await outbox.read(0, [], 10, BYTES)).rows
        assert.deepEqual({ ...present(again), createdAtMs: 0 }, { ...present(rows[0]), createdAtMs: 0 })
        assert.deepEqual(await outbox.quarantined(10), [])
        const [audit, ...more] = await opened.audited()
        assert.deepEqual(
          { subject: audit?.subject, actor: audit?.actor, reason: audit?.reason },
          { subject: id, ...ACT },
        )
        assert.deepEqual(more, [])
      }),
  },
  {
    name: 'SC29, I8: rows that waited behind a quarantined message go on only after it was sent, not when it is redriven',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own, due, pendingIds }) => {
        const rows = await commit([rowOf('a'), rowOf('a'), rowOf('a')])
        const [one, two, three] = seqsOf(rows)
        const lease = await own()
        await outbox.quarantine(lease, LEASE_MS, [invalid(present(one), true)])
        await outbox.parkBehind(lease, LEASE_MS, [present(two), present(three)])
        assert.deepEqual(await outbox.redrive([present(rows[0]).id], ACT), [present(rows[0]).id])
        const { keys } = await outbox.stoppedKeys(lease, LEASE_MS)
        assert.deepEqual(keys, [{ orderingKey: 'a', seq: one }])
        assert.deepEqual(seqsOf(await due()), [one])
        assert.deepEqual(await pendingIds(), [])
        const released = await outbox.settleParked(lease, LEASE_MS, [present(one)], RELEASED)
        assert.deepEqual(released, { kind: 'done', next: [], moved: 2 })
        assert.deepEqual(
          await pendingIds(),
          rows.slice(1).map((row) => row.id),
        )
      }),
  },
  {
    name: 'B122: a redriven parked message is due at once with a fresh attempt budget',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, due }) => {
        const [row] = await commit([rowOf('a')])
        const { id, seq } = present(row)
        const lease = await own()
        await outbox.park(lease, LEASE_MS, [refusal(seq, 60_000)])
        await outbox.park(lease, LEASE_MS, [refusal(seq, 60_000)])
        assert.deepEqual(await outbox.redrive([id], ACT), [id])
        assert.deepEqual(await outbox.redrive([id], ACT), [])
        assert.equal((await opened.audited()).length, 1)
        assert.deepEqual(
          (await due()).map(({ attempts }) => attempts),
          [0],
        )
        await outbox.park(lease, LEASE_MS, [refusal(seq, 60_000)])
        assert.deepEqual(await outbox.redrive([id], ACT), [id], 'it failed again, so it can be redriven again')
      }),
  },
  {
    name: 'B117: redriving many at once from several places moves each once, with one audit row each',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, pendingIds }) => {
        const rows = await commit(Array.from({ length: 20 }, (_, index) => rowOf(`k${index % 3}`)))
        const ids = rows.map((row) => row.id)
        const lease = await own()
        await outbox.quarantine(
          lease,
          LEASE_MS,
          rows.map((row) => invalid(row.seq)),
        )
        const moved = await Promise.all(Array.from({ length: 4 }, () => outbox.redrive(ids, ACT)))
        assert.deepEqual(moved.flat().sort(), [...ids].sort())
        assert.deepEqual(await pendingIds(), ids)
        assert.equal((await opened.audited()).length, 20)
      }),
  },
  {
    name: 'I16: a discarded message is gone with an audit row, and the rows behind it go on',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, due }) => {
        const [one, two, other] = await commit([rowOf('a'), rowOf('a'), rowOf('b')])
        const lease = await own()
        await outbox.quarantine(lease, LEASE_MS, [invalid(present(one).seq, true)])
        await outbox.parkBehind(lease, LEASE_MS, [present(two).seq])
        const { id } = present(one)
        assert.deepEqual(await outbox.discard([id, present(two).id, present(other).id], ACT), [id])
        assert.deepEqual(await outbox.discard([id], ACT), [])
        assert.deepEqual((await outbox.stoppedKeys(lease, LEASE_MS)).keys, [
          { orderingKey: 'a', seq: present(two).seq },
        ])
        assert.deepEqual(seqsOf(await due()), [present(two).seq])
        assert.deepEqual(
          (await opened.audited()).map((audit) => audit.subject),
          [id],
        )
      }),
  },
  {
    name: 'redriving what does not exist or is not aside does nothing and leaves no audit row',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit }) => {
        const [row] = await commit([rowOf()])
        assert.deepEqual(await outbox.redrive([present(row).id, rowOf().id], ACT), [])
        assert.deepEqual(await opened.audited(), [])
      }),
  },
  {
    name: 'I15, SC38: a message that killed its relays is quarantined with its claims, and deaths are forgotten',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        const [row] = await commit([rowOf('a')])
        const { seq, id } = present(row)
        let lease = await own()
        for (let claim = 1; claim <= 3; claim += 1) {
          assert.equal(await outbox.claimAlone(lease, LEASE_MS, seq), claim)
          await opened.advance(LEASE_MS + 1)
          lease = await own()
        }
        assert.equal(await outbox.claimAlone(lease, LEASE_MS, seq), 4)
        await outbox.quarantine(lease, LEASE_MS, [
          { seq, reason: 'poison', error: 'killed its relay', stopsKey: false },
        ])
        const view = present((await outbox.quarantined(10))[0])
        assert.deepEqual([view.id, view.reason, view.attempts], [id, 'poison', 3])
        const { claimedAt } = JSON.parse(view.history) as { claimedAt: unknown[] }
        assert.equal(claimedAt.length, 4)
        assert.equal(await outbox.release(lease), 'done')
        const next = await outbox.acquire(0, randomUUID(), LEASE_MS)
        assert.ok(next.kind === 'acquired')
        assert.equal(next.deaths, 0, 'what killed them is gone')
      }),
  },
  {
    name: 'R43, B63: what is pending tells the age of the oldest row of each kind, and lanes that nobody serves',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        assert.deepEqual(await outbox.pending(), {
          oldestMs: null,
          oldestParkedMs: null,
          oldestQuarantinedMs: null,
          relayAlive: false,
          lanesWithoutOwner: [],
        })
        const [one, two] = await commit([rowOf('a'), rowOf('b'), rowOf(null, { lane: 2 })])
        let lease = await own()
        await outbox.park(lease, LEASE_MS, [refusal(present(one).seq, 60_000)])
        await outbox.quarantine(lease, LEASE_MS, [invalid(present(two).seq)])
        assert.deepEqual((await outbox.pending()).lanesWithoutOwner, [2])
        assert.equal((await outbox.pending()).relayAlive, true)
        await opened.advance(100_000)
        const view = await outbox.pending()
        assert.equal(view.relayAlive, false)
        assert.deepEqual(view.lanesWithoutOwner, [0, 2])
        for (const age of [view.oldestMs, view.oldestParkedMs, view.oldestQuarantinedMs]) {
          assert.ok(age !== null && age >= 100_000 && age < 200_000, `age ${age}`)
        }
        lease = await own()
        await outbox.settleParked(lease, LEASE_MS, [present(one).seq], RELEASED)
        const other = await own(2)
        const { rows } = await outbox.read(2, [], 10, BYTES)
        await outbox.settle(other, LEASE_MS, seqsOf(rows), SETTLED)
        const settled = await outbox.pending()
        assert.deepEqual([settled.oldestMs, settled.oldestParkedMs, settled.lanesWithoutOwner], [null, null, []])
      }),
  },
]
