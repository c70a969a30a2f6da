/**
 * Rows: what committed is read, lowest seq first, until it is settled; what is committed late is not skipped.
 *
 * @module
 */

import assert from 'node:assert/strict'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { StoreHarness } from './harness.ts'
import { BYTES, LEASE_MS, present, rowOf, SETTLED, withOutbox } from './outbox-setup.ts'

/** Holds a transaction open until it is let go. */
function latch(): { readonly opened: Promise<void>; open(): void } {
  let open: () => void = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open }
}

export const outboxRowCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'R22, I6: messages of a transaction are read after its commit, and never when it rolled back',
    run: (harness) =>
      withOutbox(harness, async ({ opened, pendingIds }) => {
        const { operations } = opened.store
        const [kept, lost] = [rowOf(), rowOf()]
        await opened.transaction(async (tx) => {
          await operations.addIn(tx, [kept])
          assert.deepEqual(await pendingIds(), [], 'nothing leaves before the commit')
        })
        const boom = new Error('the work fails')
        await assert.rejects(
          opened.transaction(async (tx) => {
            await operations.addIn(tx, [lost])
            throw boom
          }),
          boom,
        )
        assert.deepEqual(await pendingIds(), [kept.id])
      }),
  },
  {
    name: 'R23: a row is read exactly as it was written',
    run: (harness) =>
      withOutbox(harness, async ({ commit }) => {
        const odd = rowOf('kéy "1"', {
          topic: 'tøpic.v1',
          payload: '{ "b": 1.0, "a": "\\u0000 \u2028 \\" \\\\ 😀" }',
          contentType: 'application/vnd.example+json; v=2',
          headers: '{"x-trace":"a\\"b","empty":""}',
        })
        const bytes = rowOf(null, { payload: Buffer.from([0, 255, 10]).toString('base64'), encoding: 'base64' })
        const before = Date.now()
        const read = await commit([odd, bytes])
        for (const [index, written] of [odd, bytes].entries()) {
          const { seq, createdAtMs, ...row } = present(read[index])
          assert.deepEqual(row, written)
          assert.ok(Number.isSafeInteger(seq))
          assert.ok(Math.abs(createdAtMs - before) < 3_600_000)
        }
      }),
  },
  {
    name: 'R27: rows are read lowest seq first, without those in flight, and at most so many',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit }) => {
        const rows = await commit(Array.from({ length: 6 }, () => rowOf()))
        await commit([rowOf(null, { lane: 1 })])
        const seqs = rows.map((row) => row.seq)
        assert.deepEqual(
          seqs,
          [...seqs].sort((one, other) => one - other),
        )
        const page = await outbox.read(0, [], 4, BYTES)
        assert.deepEqual(
          page.rows.map((row) => row.seq),
          seqs.slice(0, 4),
        )
        const rest = await outbox.read(0, [seqs[0] ?? 0, seqs[2] ?? 0, 999_999], 3, BYTES)
        assert.deepEqual(
          rest.rows.map((row) => row.seq),
          [seqs[1], seqs[3], seqs[4]],
        )
      }),
  },
  {
    name: 'B46: a read stops at its bytes, and gives one row however large it is',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit }) => {
        const large = { payload: JSON.stringify('x'.repeat(200_000)) }
        const rows = await commit([rowOf(), rowOf(null, large), rowOf(null, large), rowOf()])
        const seqs = rows.map((row) => row.seq)
        const page = await outbox.read(0, [], 100, 210_000)
        assert.ok(page.rows.length >= 1 && page.rows.length < 4, `${page.rows.length} rows`)
        const alone = await outbox.read(0, [seqs[0] ?? 0], 100, 10)
        assert.deepEqual(
          alone.rows.map((row) => [row.seq, row.payload]),
          [[seqs[1], large.payload]],
        )
      }),
  },
  {
    name: 'B37, SC26: a message that commits late is read, although later ones were read, sent and settled before',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, pendingIds }) => {
        const { operations } = opened.store
        const lease = await own()
        const early = rowOf('a')
        const [inserted, commits] = [latch(), latch()]
        const transaction = opened.transaction(async (tx) => {
          await operations.addIn(tx, [early])
          inserted.open()
          await commits.opened
        })
        await inserted.opened
        const [later, settled] = await commit([rowOf('b'), rowOf('c')])
        assert.equal(await outbox.settle(lease, LEASE_MS, [present(settled).seq], SETTLED), 'done')
        commits.open()
        await transaction
        const { rows } = await outbox.read(0, [present(later).seq], 100, BYTES)
        assert.deepEqual(
          rows.map((row) => row.id),
          [early.id],
        )
        assert.equal((await pendingIds()).length, 2)
      }),
  },
  {
    name: 'B39: 20 messages of one transaction are read in insertion order with pages of 1, 3 and 7',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, commit }) => {
        const ids = (await commit(Array.from({ length: 20 }, () => rowOf('a')))).map((row) => row.id)
        for (const page of [1, 3, 7]) {
          const seen: { id: string; seq: number }[] = []
          for (;;) {
            const sent = seen.map((row) => row.seq)
            const { rows } = await outbox.read(0, sent, page, BYTES)
            if (rows.length === 0) break
            seen.push(...rows)
          }
          assert.deepEqual(
            seen.map((row) => row.id),
            ids,
            `pages of ${page}`,
          )
        }
      }),
  },
  {
    name: 'settling removes these rows of this lane only, and twice is the same as once',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, pendingIds }) => {
        const [one, two, elsewhere] = await commit([rowOf(), rowOf(), rowOf(null, { lane: 1 })])
        const lease = await own()
        const seqs = [present(one).seq, present(elsewhere).seq]
        for (let again = 0; again < 2; again += 1) {
          assert.equal(await outbox.settle(lease, LEASE_MS, seqs, SETTLED), 'done')
        }
        assert.deepEqual(await pendingIds(), [present(two).id])
        assert.equal((await outbox.read(1, [], 10, BYTES)).rows.length, 1)
        assert.deepEqual(await opened.historyIds(), [])
      }),
  },
  {
    name: 'B37, I8: settling that reads on answers the lowest rows that are left, without those in flight, page by page',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        const kept = { history: true, progress: true }
        const small = await commit(Array.from({ length: 5 }, (_, index) => rowOf(`k${index}`)))
        const large = await commit([rowOf('large', { payload: JSON.stringify('x'.repeat(500)) }), rowOf('last')])
        const rows = [...small, ...large]
        const lease = await own()
        const [first, second] = [present(rows[0]), present(rows[1])]
        const next = { inFlight: [first.seq, second.seq], limit: 2, bytesMax: 400 }
        const result = await outbox.settleAndRead(lease, LEASE_MS, [first.seq], kept, next)
        assert.equal(result.kind, 'done')
        assert.deepEqual(result.rows, rows.slice(2, 4))
        assert.deepEqual(await opened.historyIds(), [first.id])
        const inFlight = [first, second, ...result.rows].map((row) => row.seq)
        const seen: { id: string; seq: number }[] = []
        for (let settled = [second.seq]; ; settled = []) {
          const page = await outbox.settleAndRead(lease, LEASE_MS, settled, kept, { ...next, inFlight })
          if (page.rows.length === 0 && page.more !== true) break
          seen.push(...page.rows)
          inFlight.push(...page.rows.map((row) => row.seq))
        }
        assert.deepEqual(
          seen.map((row) => row.id),
          rows.slice(4).map((row) => row.id),
        )
        const left = await outbox.settleAndRead(lease, LEASE_MS, inFlight, kept, { ...next, inFlight: [] })
        assert.deepEqual({ kind: left.kind, rows: left.rows }, { kind: 'done', rows: [] })
      }),
  },
  {
    name: 'settling to the history keeps each message once',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own, pendingIds }) => {
        const rows = await commit([rowOf('a'), rowOf()])
        const lease = await own()
        const seqs = rows.map((row) => row.seq)
        for (let again = 0; again < 2; again += 1) {
          assert.equal(await outbox.settle(lease, LEASE_MS, seqs, { history: true, progress: true }), 'done')
        }
        assert.deepEqual(await pendingIds(), [])
        assert.deepEqual((await opened.historyIds()).sort(), rows.map((row) => row.id).sort())
      }),
  },
  {
    name: 'SC39, B100: purging history removes only published messages of that age, at most so many at once',
    needs: 'clock',
    run: (harness) =>
      withOutbox(harness, async ({ outbox, opened, commit, own }) => {
        const rows = await commit(Array.from({ length: 6 }, (_, index) => rowOf(`k${index}`)))
        const seqs = rows.map((row) => row.seq)
        let lease = await own()
        assert.equal(await outbox.settle(lease, LEASE_MS, seqs.slice(0, 3), { history: true, progress: true }), 'done')
        const parked = { reason: 'refused' as const, error: 'nacked', delayMs: 0, counts: true }
        assert.equal(await outbox.park(lease, LEASE_MS, [{ ...parked, seq: seqs[4] ?? 0 }]), 'done')
        await outbox.quarantine(lease, LEASE_MS, [
          { seq: seqs[5] ?? 0, reason: 'invalid', error: 'too large', stopsKey: false },
        ])
        await opened.advance(100_000)
        const [fresh] = await commit([rowOf()])
        lease = await own()
        await outbox.settle(lease, LEASE_MS, [present(fresh).seq], { history: true, progress: true })
        assert.ok((await outbox.overdueHistoryMs(60_000)) >= 40_000)
        const purge = (after?: string) => outbox.purgeHistory({ graceMs: 60_000, limit: 2, after })
        const first = await purge()
        assert.equal(first.removed, 2)
        assert.notEqual(first.after, undefined)
        const second = await purge(first.after)
        assert.deepEqual([second.removed, second.after], [1, undefined])
        assert.equal((await purge()).removed, 0)
        assert.equal(await outbox.overdueHistoryMs(60_000), 0)
        assert.deepEqual(await opened.historyIds(), [present(fresh).id])
        assert.equal((await outbox.read(0, [], 10, BYTES)).rows.length, 1)
        assert.equal((await outbox.due(0, [], 10, BYTES)).rows.length, 1)
        assert.equal((await outbox.quarantined(10)).length, 1)
      }),
  },
  {
    name: 'the bell rings whoever listens in this process, until it is closed',
    run: (harness) =>
      withOutbox(harness, async ({ outbox }) => {
        let [one, two] = [0, 0]
        const first = outbox.bell.listen(() => {
          one += 1
        })
        const second = outbox.bell.listen(() => {
          two += 1
        })
        outbox.bell.ring()
        assert.ok(one >= 1 && two >= 1)
        await first.close()
        const heard = one
        outbox.bell.ring()
        assert.equal(one, heard)
        await second.close()
      }),
  },
]
