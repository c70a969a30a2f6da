/**
 * Lanes: one owner at a time, fenced, by the store's clock. Whoever lost a lane changes nothing.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { LaneLease, LaneStep, OutboxStore } from '../outbox.ts'
import type { StoreHarness } from './harness.ts'
import {
  ACT,
  BYTES,
  invalid,
  LEASE_MS,
  type OutboxBench,
  RELEASED,
  refusal,
  rowOf,
  SETTLED,
  withOutbox,
} from './outbox-setup.ts'

type Step = (outbox: OutboxStore, lease: LaneLease, seqs: readonly number[]) => Promise<LaneStep>

/** Everything that takes a lease, applied to rows. */
const STEPS: Readonly<Record<string, Step>> = {
  renew: async (outbox, lease) => (await outbox.renew(lease, LEASE_MS, true)).kind,
  settle: (outbox, lease, seqs) => outbox.settle(lease, LEASE_MS, seqs, SETTLED),
  'settle to the history': (outbox, lease, seqs) =>
    outbox.settle(lease, LEASE_MS, seqs, { history: true, progress: true }),
  settleAndRead: async (outbox, lease, seqs) => {
    const next = { inFlight: [], limit: 10, bytesMax: BYTES }
    const { kind, rows } = await outbox.settleAndRead(lease, LEASE_MS, seqs, SETTLED, next)
    assert.ok(kind === 'done' || rows.length === 0, 'rows without the lane')
    return kind
  },
  stoppedKeys: async (outbox, lease) => (await outbox.stoppedKeys(lease, LEASE_MS)).kind,
  park: (outbox, lease, seqs) =>
    outbox.park(
      lease,
      LEASE_MS,
      seqs.map((seq) => refusal(seq)),
    ),
  parkBehind: (outbox, lease, seqs) => outbox.parkBehind(lease, LEASE_MS, seqs),
  settleParked: async (outbox, lease, seqs) => (await outbox.settleParked(lease, LEASE_MS, seqs, RELEASED)).kind,
  quarantine: async (outbox, lease, seqs) =>
    (
      await outbox.quarantine(
        lease,
        LEASE_MS,
        seqs.map((seq) => invalid(seq, true)),
      )
    ).kind,
  claimAlone: async (outbox, lease, seqs) =>
    (await outbox.claimAlone(lease, LEASE_MS, seqs[0] ?? 0)) === 0 ? 'lost' : 'done',
  unclaimAlone: (outbox, lease) => outbox.unclaimAlone(lease, LEASE_MS),
}

/** Two pending and two parked rows of one key, and a lease; none of them may change in `run`. */
async function nothingChanges(bench: OutboxBench, run: (seqs: readonly number[]) => Promise<void>, lease: LaneLease) {
  const { outbox, opened } = bench
  const rows = await bench.commit([rowOf('a'), rowOf('a'), rowOf('b'), rowOf('b')])
  const seqs = rows.map((row) => row.seq)
  assert.equal(
    await outbox.park(lease, LEASE_MS, [refusal(seqs[2] ?? 0, 60_000), refusal(seqs[3] ?? 0, 60_000)]),
    'done',
  )
  const state = async () => ({
    pending: await bench.pendingIds(),
    due: await outbox.due(0, [], 100, 100_000).then((due) => due.rows),
    quarantined: await outbox.quarantined(100),
    history: await opened.historyIds(),
  })
  const before = await state()
  await run(seqs)
  assert.deepEqual(await state(), before)
}

export const outboxLaneCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'SC30: of many relays that want a lane exactly one gets it, and the others are told when to ask again',
    run: (harness) =>
      withOutbox(harness, async ({ outbox }) => {
        const results = await Promise.all(Array.from({ length: 8 }, () => outbox.acquire(0, randomUUID(), LEASE_MS)))
        assert.equal(results.filter((result) => result.kind === 'acquired').length, 1)
        for (const result of results) {
          if (result.kind === 'acquired') continue
          assert.ok(result.kind === 'held' && result.retryAfterMs > 0 && result.retryAfterMs <= LEASE_MS)
        }
      }),
  },
  {
    name: 'SC30: a lane is taken over when its lease has ended, never before, and every ownership has a higher fence',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        const first = await own()
        await opened.advance(LEASE_MS - 5_000)
        assert.equal((await outbox.acquire(0, randomUUID(), LEASE_MS)).kind, 'held')
        await opened.advance(5_001)
        const second = await own()
        assert.ok(second.fence > first.fence)
        assert.equal(await outbox.release(second), 'done')
        const third = await own(0, first.owner)
        assert.ok(third.fence > second.fence)
        assert.equal((await outbox.renew(first, LEASE_MS, false)).kind, 'lost')
        assert.equal((await outbox.renew(third, LEASE_MS, false)).kind, 'done')
      }),
  },
  {
    name: 'SC3: of many that want a lane whose lease has ended exactly one takes it; the old owner is told and changes nothing',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own, commit, pendingIds }) => {
        const old = await own()
        const [row] = await commit([rowOf('a')])
        await opened.advance(LEASE_MS + 1)
        const results = await Promise.all(Array.from({ length: 8 }, () => outbox.acquire(0, randomUUID(), LEASE_MS)))
        const taken = results.flatMap((result) => (result.kind === 'acquired' ? [result.lease] : []))
        assert.equal(taken.length, 1)
        assert.ok((taken[0]?.fence ?? 0) > old.fence)
        assert.equal((await outbox.renew(old, LEASE_MS, false)).kind, 'lost')
        assert.equal(await outbox.settle(old, LEASE_MS, [row?.seq ?? 0], SETTLED), 'lost')
        assert.equal(await outbox.release(old), 'lost')
        assert.equal((await pendingIds()).length, 1)
      }),
  },
  {
    name: 'SC5: who does not own a lane cannot release it',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        const before = await own()
        await opened.advance(LEASE_MS + 1)
        const owner = await own()
        for (const other of [before, { ...owner, owner: randomUUID() }, { ...owner, fence: owner.fence - 1 }]) {
          assert.equal(await outbox.release(other), 'lost')
        }
        assert.equal((await outbox.acquire(0, randomUUID(), LEASE_MS)).kind, 'held')
        assert.equal((await outbox.renew(owner, LEASE_MS, false)).kind, 'done')
      }),
  },
  {
    name: 'SC7, R25, I5: an owner that was replaced changes nothing with any step, and is told so by each',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async (bench) => {
        const first = await bench.own()
        const stale = async (seqs: readonly number[]) => {
          await bench.opened.advance(LEASE_MS + 1)
          const second = await bench.own()
          for (const [name, step] of Object.entries(STEPS)) {
            assert.equal(await step(bench.outbox, first, seqs), 'lost', name)
          }
          assert.equal(await bench.outbox.release(first), 'lost')
          assert.equal((await bench.outbox.renew(second, LEASE_MS, false)).kind, 'done')
        }
        await nothingChanges(bench, stale, first)
      }),
  },
  {
    name: 'I5: an owner whose lease has ended changes nothing, although nobody else came',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async (bench) => {
        const lease = await bench.own()
        const late = async (seqs: readonly number[]) => {
          await bench.opened.advance(LEASE_MS + 1)
          for (const [name, step] of Object.entries(STEPS)) {
            assert.equal(await step(bench.outbox, lease, seqs), 'lost', name)
          }
        }
        await nothingChanges(bench, late, lease)
      }),
  },
  {
    name: 'I5: a made-up fence or owner changes nothing',
    run: (harness) =>
      withOutbox(harness, async (bench) => {
        const lease = await bench.own()
        const foreign = async (seqs: readonly number[]) => {
          for (const other of [
            { ...lease, fence: lease.fence + 1 },
            { ...lease, owner: randomUUID() },
            { ...lease, lane: 1 },
          ]) {
            for (const [name, step] of Object.entries(STEPS)) {
              assert.equal(await step(bench.outbox, other, seqs), 'lost', name)
            }
            assert.equal(await bench.outbox.release(other), 'lost')
          }
        }
        await nothingChanges(bench, foreign, lease)
      }),
  },
  {
    name: 'I12: every step renews the lease, so a busy owner needs no renewals',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        const lease = await own()
        for (const [name, step] of Object.entries(STEPS)) {
          await opened.advance(LEASE_MS - 5_000)
          assert.equal(await step(outbox, lease, []), 'done', name)
        }
      }),
  },
  {
    name: 'SC33: a lane that is handed back is free at once, and that is no death',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, own }) => {
        assert.equal(await outbox.release(await own()), 'done')
        const next = await outbox.acquire(0, randomUUID(), LEASE_MS)
        assert.ok(next.kind === 'acquired')
        assert.equal(next.deaths, 0)
      }),
  },
  {
    name: 'SC38: owners that end without handing back are counted, until one gets something through',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit }) => {
        const [row] = await commit([rowOf()])
        const deathsNow = async (): Promise<[LaneLease, number]> => {
          await opened.advance(LEASE_MS + 1)
          const result = await outbox.acquire(0, randomUUID(), LEASE_MS)
          assert.ok(result.kind === 'acquired')
          return [result.lease, result.deaths]
        }
        assert.equal((await deathsNow())[1], 0)
        assert.equal((await deathsNow())[1], 1)
        const [third, deaths] = await deathsNow()
        assert.equal(deaths, 2)
        assert.equal(await outbox.settle(third, LEASE_MS, [], { history: false, progress: false }), 'done')
        const [fourth, still] = await deathsNow()
        assert.equal(still, 3)
        assert.equal(await outbox.settle(fourth, LEASE_MS, [row?.seq ?? 0], SETTLED), 'done')
        const [fifth, after] = await deathsNow()
        assert.equal(after, 1, 'only the death since then')
        assert.equal((await outbox.renew(fifth, LEASE_MS, true)).kind, 'done')
        assert.equal((await deathsNow())[1], 1)
      }),
  },
  {
    name: 'SC30: a relay without lanes asks the one with the most, and the lane that is handed back goes to the asker',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit, own }) => {
        await commit([rowOf(null, { lane: 1 }), rowOf(null, { lane: 2 })])
        const [rich, poor, third] = [randomUUID(), randomUUID(), randomUUID()]
        const leases = [await own(0, rich), await own(1, rich), await own(2, rich)]
        await outbox.askForLane(poor, 60_000)
        const answers = await Promise.all(leases.map((lease) => outbox.renew(lease, LEASE_MS, false)))
        assert.equal(answers.filter((answer) => answer.wanted).length, 1)
        const wanted = leases[answers.findIndex((answer) => answer.wanted)]
        assert.ok(wanted !== undefined)
        assert.equal(await outbox.release(wanted), 'done')
        assert.equal((await outbox.acquire(wanted.lane, third, LEASE_MS)).kind, 'held')
        assert.equal((await outbox.acquire(wanted.lane, poor, LEASE_MS)).kind, 'acquired')
        // Two against one: nobody is asked any more.
        await outbox.askForLane(poor, 60_000)
        for (const lease of leases) {
          if (lease !== wanted) assert.equal((await outbox.renew(lease, LEASE_MS, false)).wanted, false)
        }
      }),
  },
  {
    name: 'lanes are listed with their live owners, also lanes that only rows know',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        await commit([rowOf(null, { lane: 3 })])
        const lease = await own()
        const views = await outbox.lanes()
        assert.deepEqual(
          views.map(({ lane, owner }) => ({ lane, owner })).filter(({ lane }) => lane === 0 || lane === 3),
          [
            { lane: 0, owner: lease.owner },
            { lane: 3, owner: null },
          ],
        )
        const left = views.find(({ lane }) => lane === 0)?.leaseLeftMs ?? 0
        assert.ok(left > 0 && left <= LEASE_MS)
        await own(3)
        await opened.advance(LEASE_MS + 1)
        for (const { owner, leaseLeftMs } of await outbox.lanes()) assert.deepEqual([owner, leaseLeftMs], [null, 0])
      }),
  },
  {
    name: 'I15, SC38: a claim alone counts once per ownership, and starts again with another message',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        const takeOver = async () => {
          await opened.advance(LEASE_MS + 1)
          return own()
        }
        const first = await own()
        assert.equal(await outbox.claimAlone(first, LEASE_MS, 7), 1)
        assert.equal(await outbox.claimAlone(first, LEASE_MS, 7), 1)
        assert.equal(await outbox.claimAlone(await takeOver(), LEASE_MS, 7), 2)
        const third = await takeOver()
        assert.equal(await outbox.claimAlone(third, LEASE_MS, 7), 3)
        assert.equal(await outbox.claimAlone(third, LEASE_MS, 8), 1)
        assert.equal((await outbox.renew(third, LEASE_MS, true)).kind, 'done')
        assert.equal(await outbox.claimAlone(await takeOver(), LEASE_MS, 8), 1, 'nothing is left that killed an owner')
      }),
  },
  {
    name: 'B55: a claim alone is taken back when the connection failed or the lane was handed back in time',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        const first = await own()
        assert.equal(await outbox.claimAlone(first, LEASE_MS, 7), 1)
        await opened.advance(LEASE_MS + 1)
        const second = await own()
        assert.equal(await outbox.claimAlone(second, LEASE_MS, 7), 2)
        assert.equal(await outbox.unclaimAlone(second, LEASE_MS), 'done')
        assert.equal(await outbox.unclaimAlone(second, LEASE_MS), 'done')
        assert.equal(await outbox.claimAlone(second, LEASE_MS, 7), 2, 'the earlier claim stays')
        assert.equal(await outbox.release(second), 'done')
        assert.equal(await outbox.claimAlone(await own(), LEASE_MS, 7), 2)
      }),
  },
  {
    name: 'rows of another database cluster are refused until somebody adopts them, with an audit row',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, own }) => {
        assert.equal(await outbox.release(await own()), 'done')
        await opened.moveToAnotherCluster()
        assert.equal((await outbox.acquire(0, randomUUID(), LEASE_MS)).kind, 'foreign')
        assert.deepEqual(await opened.audited(), [])
        await outbox.adoptCluster(ACT)
        assert.equal((await outbox.acquire(0, randomUUID(), LEASE_MS)).kind, 'acquired')
        const [audit] = await opened.audited()
        assert.deepEqual({ actor: audit?.actor, reason: audit?.reason }, ACT)
      }),
  },
]
