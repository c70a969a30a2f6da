/**
 * Marks: what every inbox store must hold about one transaction around one message or one batch.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { InboxMark, InboxRun, InboxVerdict } from '../inbox.ts'
import type { StoreHarness } from './harness.ts'
import {
  CONSUMER,
  DAY_MS,
  deliveryOf,
  markOf,
  OPTIONS,
  otherContent,
  single,
  waitingOf,
  withInbox,
} from './inbox-setup.ts'
import { rowOf } from './outbox-setup.ts'

export const inboxCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'I9, R30: mark and work commit together, and the message is recognised afterwards',
    run: (harness) =>
      withInbox(harness, async ({ inbox, apply, applied, verdictOn }) => {
        const mark = markOf()
        assert.deepEqual(await inbox.lookup([mark]), ['new'])
        assert.deepEqual(await apply([{ mark }]), ['new'])
        assert.equal(await applied(mark), 1)
        assert.equal(await verdictOn({ mark }), 'duplicate')
        assert.deepEqual(await inbox.lookup([mark]), ['duplicate'])
        assert.deepEqual(await apply([{ mark }]), ['duplicate'])
        assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'I9: a rolled back transaction leaves neither mark nor work, and the message can be applied',
    run: (harness) =>
      withInbox(harness, async ({ opened, hold, apply, applied }) => {
        const mark = markOf()
        const open = await hold([{ mark }])
        await opened.write(open.tx, mark.messageId)
        assert.equal(await open.rollback(), 'rolledBack')
        assert.equal(await applied(mark), 0)
        assert.deepEqual(await apply([{ mark }]), ['new'])
      }),
  },
  {
    name: 'I9: without waiting for the marks, the first statement of a duplicate does nothing in the store',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, apply, applied }) => {
        const mark = markOf()
        await apply([{ mark }])
        const open = await inbox.open([{ mark }], { ...OPTIONS, marksFirst: false })
        assert.equal(open.verdicts(), undefined)
        await assert.rejects(Promise.resolve().then(() => opened.write(open.tx, mark.messageId)))
        assert.deepEqual(await open.verdicts(), ['duplicate'])
        assert.deepEqual(await open.finish([]), ['duplicate'])
        assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'I9: of many without waiting for the marks all run, or none when one was applied before',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, apply, applied, verdictOn }) => {
        const marks = [markOf(), markOf(), markOf()]
        const runs = marks.map((mark) => ({ mark }))
        const refused = await inbox.open([...runs, { mark: await known(apply) }], { ...OPTIONS, marksFirst: false })
        await assert.rejects(Promise.resolve().then(() => opened.write(refused.tx, 'refused')))
        assert.deepEqual(await refused.verdicts(), ['busy', 'busy', 'busy', 'busy'])
        assert.deepEqual(await refused.finish([]), ['busy', 'busy', 'busy', 'busy'])
        const open = await inbox.open(runs, { ...OPTIONS, marksFirst: false })
        for (const { messageId } of marks) await opened.write(open.tx, messageId)
        assert.equal(await open.finish([]), 'committed')
        for (const mark of marks) {
          assert.equal(await applied(mark), 1)
          assert.equal(await verdictOn({ mark }), 'duplicate')
        }
      }),
  },
  {
    name: 'I9: a handler that writes nothing leaves its mark all the same',
    run: (harness) =>
      withInbox(harness, async ({ inbox, verdictOn }) => {
        const mark = markOf()
        const open = await inbox.open([{ mark }], { ...OPTIONS, marksFirst: false })
        assert.equal(await open.finish([]), 'committed')
        assert.equal(await verdictOn({ mark }), 'duplicate')
      }),
  },
  {
    name: 'I9: outputs commit with the mark, and a rollback leaves none',
    run: (harness) =>
      withInbox(harness, async ({ opened, hold }) => {
        const kept = rowOf()
        const committed = await hold([{ mark: markOf() }])
        assert.equal(await committed.finish([kept]), 'committed')
        const dropped = await hold([{ mark: markOf() }])
        await dropped.rollback()
        const { rows } = await opened.store.outbox.read(0, [], 10, 10_000)
        assert.deepEqual(
          rows.map((row) => row.id),
          [kept.id],
        )
      }),
  },
  {
    name: 'I9: many outputs of one transaction keep their order',
    run: (harness) =>
      withInbox(harness, async ({ opened, hold }) => {
        const outputs = Array.from({ length: 20 }, () => rowOf('order-1'))
        const open = await hold([{ mark: markOf() }, { mark: markOf() }])
        assert.equal(await open.finish(outputs), 'committed')
        const { rows } = await opened.store.outbox.read(0, [], 100, 1_000_000)
        assert.deepEqual(
          rows.map((row) => row.id),
          outputs.map((row) => row.id),
        )
      }),
  },
  {
    name: 'R33, SC42: the same id with other content is a mismatch, alone and in a batch',
    run: (harness) =>
      withInbox(harness, async ({ inbox, apply, verdictOn, applied }) => {
        const mark = markOf()
        await apply([{ mark }])
        const other = otherContent(mark)
        assert.equal(await verdictOn({ mark: other }), 'mismatch')
        assert.deepEqual(await inbox.lookup([other]), ['mismatch'])
        assert.deepEqual(await apply([{ mark: markOf() }, { mark: other }]), ['new', 'mismatch'])
        assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'R30: of a batch only the new messages are new',
    run: (harness) =>
      withInbox(harness, async ({ apply, applied }) => {
        const marks = Array.from({ length: 50 }, () => markOf())
        const known = marks.filter((_, index) => index % 3 === 0)
        assert.deepEqual(
          await apply(known.map((mark) => ({ mark }))),
          known.map(() => 'new'),
        )
        assert.deepEqual(
          await apply(marks.map((mark) => ({ mark }))),
          marks.map((mark): InboxVerdict => (known.includes(mark) ? 'duplicate' : 'new')),
        )
        for (const mark of marks) assert.equal(await applied(mark), 1)
        assert.deepEqual(
          await apply(marks.map((mark) => ({ mark }))),
          marks.map(() => 'duplicate'),
        )
      }),
  },
  {
    name: 'SC41: the same id twice in one batch is new once, and a mismatch with other content',
    run: (harness) =>
      withInbox(harness, async ({ apply, applied }) => {
        const mark = markOf()
        const runs = [{ mark }, { mark: markOf() }, { mark }, { mark: otherContent(mark) }]
        assert.deepEqual(await apply(runs), ['new', 'new', 'duplicate', 'mismatch'])
        assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'SC41: texts of every kind are kept as they are',
    run: (harness) =>
      withInbox(harness, async ({ inbox, apply }) => {
        const texts = ['Größe', "'; drop table inbox; --", '{"a":1}', '\u{1f600}', 'a\tb\nc', '\\x00', '\u0001', '"']
        const marks = texts.map((text) => markOf('a', { messageId: text, source: text }))
        await apply(marks.map((mark) => ({ mark })))
        for (const mark of marks) await inbox.wait([waitingOf(markOf('a', { messageId: mark.messageId }))])
        const entries = await inbox.listWaiting({ consumer: CONSUMER, limit: 100 })
        assert.deepEqual(
          entries.map((entry) => entry.messageId),
          texts,
        )
      }),
  },
  {
    name: 'B81: a mark past its retention is told as expired, and only the operator runs the message again',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, apply, verdictOn, applied }) => {
        const mark = markOf()
        await apply([{ mark }], { ...OPTIONS, retentionMs: DAY_MS })
        await opened.advance(DAY_MS - 60_000)
        assert.equal(await verdictOn({ mark }), 'duplicate')
        await opened.advance(60_001)
        assert.equal(await verdictOn({ mark }), 'expired')
        assert.deepEqual(await inbox.lookup([mark]), ['expired'])
        assert.deepEqual(await apply([{ mark: markOf() }, { mark }]), ['new', 'expired'])
        assert.equal(await verdictOn({ mark: otherContent(mark), override: true }), 'mismatch')
        assert.deepEqual(await apply([{ mark, override: true }]), ['new'])
        assert.equal(await applied(mark), 2)
        assert.equal(await verdictOn({ mark, override: true }), 'duplicate')
      }),
  },
  {
    name: 'B79: a message that is being worked on is busy elsewhere, and free when that ends without a trace',
    run: (harness) =>
      withInbox(harness, async ({ inbox, hold, verdictOn }) => {
        const mark = markOf()
        const open = await hold([{ mark }])
        assert.equal(await verdictOn({ mark }), 'busy')
        const claim = { owner: randomUUID(), leaseMs: 1_000 }
        assert.equal((await inbox.claimDelivery(mark, deliveryOf(), claim)).kind, 'busy')
        await open.rollback()
        assert.equal(await verdictOn({ mark }), 'new')
      }),
  },
  {
    name: 'I9: cutting a transaction off leaves no mark, and the message is free again',
    run: (harness) =>
      withInbox(harness, async ({ opened, hold, verdictOn, applied }) => {
        const mark = markOf()
        const open = await hold([{ mark }])
        await opened.write(open.tx, mark.messageId)
        open.abort(new Error('too long'))
        let verdict = await verdictOn({ mark })
        for (let round = 0; verdict === 'busy' && round < 500; round += 1) {
          await new Promise((resolve) => setTimeout(resolve, 10))
          verdict = await verdictOn({ mark })
        }
        assert.equal(verdict, 'new')
        assert.equal(await applied(mark), 0)
      }),
  },
  {
    name: 'B83, R30: of many at once one is new, and the others are never left without an answer',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, applied }) => {
        for (const isolation of ['read committed', 'repeatable read'] as const) {
          const mark = markOf()
          const attempts = Array.from({ length: 8 }, async (_, index) => {
            // Batches wait for the other transaction's row, single messages are told that it is busy.
            const runs = index % 2 === 0 ? [{ mark }] : [{ mark }, { mark: markOf() }]
            for (;;) {
              const open = await inbox.open(runs, { ...OPTIONS, isolation })
              const verdicts = await open.begin()
              assert.equal(verdicts.length, runs.length)
              if (verdicts.includes('busy')) {
                await open.rollback()
                await new Promise((resolve) => setTimeout(resolve, 5))
                continue
              }
              if (verdicts[0] === 'new') await opened.write(open.tx, mark.messageId)
              const finished = await open.finish([])
              if (finished === 'retry') continue
              return verdicts[0]
            }
          })
          const verdicts = await Promise.all(attempts)
          assert.equal(verdicts.filter((verdict) => verdict === 'new').length, 1)
          assert.equal(verdicts.filter((verdict) => verdict === 'duplicate').length, 7)
          assert.equal(await applied(mark), 1)
        }
      }),
  },
  {
    name: 'B83: batches that share messages in another order all get their answers',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, applied }) => {
        const marks = Array.from({ length: 30 }, () => markOf())
        const batch = async (runs: readonly { mark: (typeof marks)[number] }[]) => {
          for (;;) {
            const open = await inbox.open(runs, OPTIONS)
            const verdicts = await open.begin()
            if (verdicts.includes('busy')) {
              await open.rollback()
              await new Promise((resolve) => setTimeout(resolve, 5))
              continue
            }
            for (const [index, { mark }] of runs.entries()) {
              if (verdicts[index] === 'new') await opened.write(open.tx, mark.messageId)
            }
            const finished = await open.finish([])
            if (finished !== 'retry') return
          }
        }
        const forwards = marks.map((mark) => ({ mark }))
        await Promise.all([batch(forwards), batch(forwards.toReversed()), batch(forwards.slice(10))])
        for (const mark of marks) assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'I5: a run whose claim was taken over commits nothing',
    needs: 'clock',
    run: (harness) =>
      withInbox(harness, async ({ opened, inbox, hold, claimDue, claimSuspect, applied }) => {
        const mark = markOf()
        await inbox.wait([waitingOf(mark)])
        const first = single(await claimDue())
        const open = await hold([{ mark, claim: first.claim }])
        await opened.write(open.tx, mark.messageId)
        await opened.advance(60_000)
        const second = await claimSuspect()
        assert.ok(second !== undefined)
        assert.equal(second.suspect, true)
        assert.equal(await open.finish([]), 'fenced')
        assert.equal(await applied(mark), 0)
        const late = await hold([{ mark, claim: second.claim }])
        await opened.write(late.tx, mark.messageId)
        assert.equal(await late.finish([]), 'committed')
        assert.deepEqual(await inbox.listWaiting({ limit: 10 }), [])
        assert.equal(await applied(mark), 1)
      }),
  },
  {
    name: 'I9: a claimed message leaves waiting with its commit, not before',
    run: (harness) =>
      withInbox(harness, async ({ inbox, hold, claimDue }) => {
        const mark = markOf()
        await inbox.wait([waitingOf(mark)])
        const { claim } = single(await claimDue())
        const failing = await hold([{ mark, claim }])
        await failing.rollback()
        assert.equal((await inbox.listWaiting({ limit: 10 })).length, 1)
        const open = await hold([{ mark, claim }])
        assert.equal(await open.finish([]), 'committed')
        assert.equal((await inbox.listWaiting({ limit: 10 })).length, 0)
      }),
  },
  {
    name: 'R35: a message is behind while an earlier one of its key waits, in its consumer only',
    run: (harness) =>
      withInbox(harness, async ({ inbox, apply, verdictOn, claimDue, hold }) => {
        const delivery = deliveryOf({ orderingKey: 'order-1' })
        const head = markOf()
        await inbox.wait([waitingOf(head, { delivery })])
        assert.equal(await verdictOn({ mark: markOf(), stopKey: 'order-1' }), 'behind')
        assert.equal(await verdictOn({ mark: markOf(), stopKey: 'order-2' }), 'new')
        assert.equal(await verdictOn({ mark: markOf() }), 'new')
        assert.equal(await verdictOn({ mark: markOf('a', { consumer: 'other' }), stopKey: 'order-1' }), 'new')
        const batch = [
          { mark: markOf(), stopKey: 'order-1' },
          { mark: markOf(), stopKey: 'order-2' },
          { mark: markOf() },
        ]
        assert.deepEqual(await apply(batch), ['behind', 'new', 'new'])
        const { claim } = single(await claimDue())
        const open = await hold([{ mark: head, claim, stopKey: 'order-1' }])
        assert.deepEqual(await open.begin(), ['new'])
        assert.equal(await open.finish([]), 'committed')
        assert.equal(await verdictOn({ mark: markOf(), stopKey: 'order-1' }), 'new')
      }),
  },
  {
    name: 'R35: only a higher version is newer, for each entity and consumer, and only committed ones count',
    run: (harness) =>
      withInbox(harness, async ({ hold }) => {
        const ask = async (entity: string, version: bigint, commit: boolean, consumer = CONSUMER) => {
          const open = await hold([{ mark: markOf() }])
          const newer = await open.ifNewer(consumer, entity, version)
          if (commit) assert.equal(await open.finish([]), 'committed')
          else await open.rollback()
          return newer
        }
        assert.equal(await ask('order-1', 5n, false), true)
        assert.equal(await ask('order-1', 5n, true), true)
        assert.equal(await ask('order-1', 5n, true), false)
        assert.equal(await ask('order-1', 4n, true), false)
        assert.equal(await ask('order-1', 6n, true), true)
        assert.equal(await ask('order-2', 1n, true), true)
        assert.equal(await ask('order-1', 1n, true, 'other'), true)
        assert.equal(await ask('order-1', 9_223_372_036_854_775_807n, true), true)
        assert.equal(await ask('negative', -3n, true), true)
        assert.equal(await ask('negative', -4n, true), false)
      }),
  },
  {
    name: 'R35: of two transactions that look at one entity the second waits for the first, and sees its version',
    run: (harness) =>
      withInbox(harness, async ({ hold }) => {
        const first = await hold([{ mark: markOf() }])
        const second = await hold([{ mark: markOf() }])
        assert.equal(await first.ifNewer(CONSUMER, 'order-1', 7n), true)
        const late = second.ifNewer(CONSUMER, 'order-1', 6n)
        assert.equal(await first.finish([]), 'committed')
        assert.equal(await late, false)
        await second.rollback()
      }),
  },
  {
    name: 'R34: the transaction tells the time of the store',
    run: (harness) =>
      withInbox(harness, async ({ hold }) => {
        const open = await hold([{ mark: markOf() }])
        assert.ok((await open.now()) instanceof Date)
        await open.rollback()
      }),
  },
]

async function known(apply: (runs: readonly InboxRun[]) => Promise<unknown>): Promise<InboxMark> {
  const mark = markOf()
  await apply([{ mark }])
  return mark
}
