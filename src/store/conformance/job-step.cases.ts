/**
 * Steps of a leased operation: stored together with what they did, once, by the owner only.
 *
 * @module
 */

import assert from 'node:assert/strict'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { StoreHarness } from './harness.ts'
import { effectOf, jobOf, messageOf, recordOf, stepOf, withJobs } from './job-setup.ts'

const OPTIONS = { idleTimeoutMs: 30_000 }

export const jobStepCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'SC48, I1, I6: a step commits together with the writes and the messages of its work',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, messages }) => {
        const lease = await claim()
        const step = await jobs.openStep(lease, OPTIONS)
        assert.equal(step.held(), undefined)
        await opened.write(step.tx, 'book')
        assert.equal(await step.held(), true)
        assert.deepEqual([await opened.count('book'), await messages(), (await jobs.steps(lease.id)).length], [0, 0, 0])
        assert.equal(await step.finish(stepOf('book', { position: 3, result: '{"a":1}' }), [messageOf()]), 'stored')
        assert.deepEqual([await opened.count('book'), await messages()], [1, 1])
        assert.deepEqual(
          [...(await jobs.steps(lease.id))],
          [{ ...stepOf('book', { position: 3, result: '{"a":1}' }), fence: lease.fence }],
        )
      }),
  },
  {
    name: 'SC48: a step whose work sent nothing is stored too, with its messages',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, messages }) => {
        const lease = await claim()
        const step = await jobs.openStep(lease, OPTIONS)
        assert.equal(await step.finish(stepOf('nothing', { result: null }), [messageOf()]), 'stored')
        assert.deepEqual([(await jobs.steps(lease.id))[0]?.result, await messages()], [null, 1])
      }),
  },
  {
    name: 'I1: a step that is rolled back leaves nothing, and may be run again',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, runStep }) => {
        const lease = await claim()
        for (const end of ['rollback', 'abort'] as const) {
          const step = await jobs.openStep(lease, OPTIONS)
          await opened.write(step.tx, 'book')
          if (end === 'rollback') assert.equal(await step.rollback(), 'rolledBack')
          else step.abort(new Error('out of time'))
        }
        assert.equal(await opened.count('book'), 0)
        assert.equal((await jobs.steps(lease.id)).length, 0)
        assert.equal(await runStep(lease, 'book'), 'stored')
        assert.equal(await opened.count('book'), 1)
      }),
  },
  {
    name: 'a step tells the time of the store, and its handle is dead after its end',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim }) => {
        const lease = await claim()
        const step = await jobs.openStep(lease, OPTIONS)
        assert((await step.now()) instanceof Date)
        assert.equal(await step.held(), true)
        assert.equal(await step.finish(stepOf('clock'), []), 'stored')
        await assert.rejects(
          Promise.resolve().then(() => opened.write(step.tx, 'late')),
          { code: 'NOT_A_TRANSACTION' },
        )
        assert.equal(await opened.count('late'), 0)
      }),
  },
  {
    name: 'SC48: a step of a name that is there is not stored again, and its writes and messages are undone',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, runStep, messages }) => {
        const lease = await claim()
        assert.equal(await runStep(lease, 'book'), 'stored')
        assert.equal(await runStep(lease, 'book', [messageOf()]), 'exists')
        const late = await jobs.openStep(lease, OPTIONS)
        await opened.write(late.tx, 'late')
        assert.equal(await late.finish(stepOf('book'), []), 'exists')
        await assert.rejects(Promise.resolve().then(() => opened.write(late.tx, 'late')))
        assert.equal(await opened.count('late'), 0)
        assert.equal(await jobs.writeStep(lease, stepOf('book', { type: 'memo', result: '"other"' })), 'exists')
        assert.equal(await jobs.writeStep(lease, effectOf('book')), 'exists')
        assert.deepEqual([await opened.count('book'), await messages()], [1, 0])
        const [step, ...others] = await jobs.steps(lease.id)
        assert.deepEqual([step?.type, step?.result, others.length], ['transaction', '{"n":1}', 0])
      }),
  },
  {
    name: 'steps of one name belong to their own operations',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, runStep }) => {
        const [one, other] = [await claim(), await claim()]
        assert.deepEqual([await runStep(one, 'book'), await runStep(other, 'book')], ['stored', 'stored'])
        assert.equal((await jobs.steps(one.id)).length, 1)
      }),
  },
  {
    name: 'I5: the first statement of a step fails when the lease is over, and nothing of the work is kept',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, expire }) => {
        const lease = await claim()
        await expire()
        const step = await jobs.openStep(lease, OPTIONS)
        await assert.rejects(Promise.resolve().then(() => opened.write(step.tx, 'late')))
        assert.equal(await step.held(), false)
        assert.equal(await step.finish(stepOf('late'), [messageOf()]), 'fenced')
        await step.rollback()
        const idle = await jobs.openStep(lease, OPTIONS)
        assert.equal(await idle.finish(stepOf('late'), [messageOf()]), 'fenced')
        await idle.rollback()
        assert.deepEqual([await opened.count('late'), (await jobs.steps(lease.id)).length], [0, 0])
      }),
  },
  {
    name: 'SC7, I5: a step that began in time and ends after its lease is rolled back, with or without a successor',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, expire, successor, runStep, messages }) => {
        for (const replaced of [false, true]) {
          const lease = await claim()
          const step = await jobs.openStep(lease, OPTIONS)
          await opened.write(step.tx, 'late')
          await expire()
          const next = replaced ? await successor(lease.id) : undefined
          assert.equal(await step.finish(stepOf('book'), [messageOf()]), 'fenced')
          await step.rollback()
          assert.deepEqual(
            [await opened.count('late'), await messages(), (await jobs.steps(lease.id)).length],
            [0, 0, 0],
          )
          assert.equal(await runStep(next ?? (await successor(lease.id)), 'book'), 'stored')
        }
      }),
  },
  {
    name: 'SC6, R12: a lease is renewed while a step works, and the step is stored after several lease lengths',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, takeOver }) => {
        const lease = await claim()
        const step = await jobs.openStep(lease, OPTIONS)
        await opened.write(step.tx, 'book')
        for (let round = 0; round < 3; round += 1) {
          await opened.advance(20_000)
          assert.deepEqual(await jobs.renew([{ lease, leaseMs: 30_000 }]), ['renewed'])
          assert.equal(await takeOver(lease.id), 'busy')
        }
        assert.equal(await step.finish(stepOf('book'), []), 'stored')
        assert.equal(await opened.count('book'), 1)
      }),
  },
  {
    name: 'SC48, I5: a takeover that meets a committing step sees it, or the step is refused',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, expire, takeOver }) => {
        for (let round = 0; round < 10; round += 1) {
          const name = `book ${round}`
          const lease = await claim()
          const step = await jobs.openStep(lease, OPTIONS)
          await opened.write(step.tx, name)
          const takeover = async () => {
            await expire()
            for (let tries = 0; tries < 100; tries += 1) {
              const next = await takeOver(lease.id)
              // What the successor reads is all that it will ever know about its predecessor.
              if (typeof next === 'object')
                return { steps: await jobs.steps(lease.id), writes: await opened.count(name) }
            }
            throw new Error('nobody could take the operation over')
          }
          const [answer, seen] = await Promise.all([step.finish(stepOf(name), []), takeover()])
          await step.rollback()
          const stored = answer === 'stored' ? 1 : 0
          assert.equal(answer, stored === 1 ? 'stored' : 'fenced')
          assert.deepEqual([seen.steps.length, seen.writes, await opened.count(name)], [stored, stored, stored])
        }
      }),
  },
  {
    name: 'SC48: steps are read in the order of their positions, also by a successor, with the fences of their writers',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, expire, successor }) => {
        const lease = await claim()
        const memo = (name: string, position: number) =>
          stepOf(name, { position, type: 'memo', result: '"\\u0000 é"', resultVersion: 2 })
        assert.equal(await jobs.writeStep(lease, memo('second', 1)), 'stored')
        assert.equal(await jobs.writeStep(lease, memo('first', 0)), 'stored')
        await expire()
        const next = await successor(lease.id)
        assert.equal(await jobs.writeStep(next, memo('third', 2)), 'stored')
        assert.deepEqual(
          [...(await jobs.steps(lease.id))],
          [
            { ...memo('first', 0), fence: lease.fence },
            { ...memo('second', 1), fence: lease.fence },
            { ...memo('third', 2), fence: next.fence },
          ],
        )
      }),
  },
  {
    name: 'many steps of many operations are written at once, each with its own answer',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, claim, expire }) => {
        const gone = await claim()
        await expire()
        const [one, other] = [await claim(), await claim()]
        const memo = (name: string) => stepOf(name, { type: 'memo' })
        assert.equal(await jobs.writeStep(one, memo('a')), 'stored')
        const answers = await Promise.all([
          jobs.writeStep(one, memo('a')),
          jobs.writeStep(one, memo('b')),
          jobs.writeStep(gone, memo('a')),
          jobs.writeStep(other, memo('a')),
          jobs.writeStep(other, effectOf('charge')),
        ])
        assert.deepEqual(answers, ['exists', 'stored', 'fenced', 'stored', 'stored'])
        const counts = await Promise.all([one, gone, other].map(async ({ id }) => (await jobs.steps(id)).length))
        assert.deepEqual(counts, [2, 0, 2])
      }),
  },
  {
    name: 'many operations are completed at once, each with its own answer and outcome',
    needs: 'clock',
    run: (harness) =>
      withJobs(harness, async ({ jobs, opened, claim, expire }) => {
        const gone = jobOf()
        const late = await claim(gone)
        await expire()
        const live = [jobOf(), jobOf(), jobOf()]
        const leases = await Promise.all(live.map((job) => claim(job)))
        const answers = await Promise.all([
          jobs.complete(late, recordOf(gone, late.token)),
          ...live.map((job, index) => {
            const lease = leases[index] ?? late
            return jobs.complete(lease, recordOf(job, lease.token, { outcome: `"${index}"` }))
          }),
        ])
        assert.deepEqual(answers, ['fenced', 'stored', 'stored', 'stored'])
        const found = await Promise.all(live.map(({ id }) => opened.store.operations.lookup(id)))
        assert.deepEqual(
          found.map((record) => record !== undefined && 'outcome' in record && record.outcome),
          ['"0"', '"1"', '"2"'],
        )
        assert.equal((await opened.store.operations.lookup(gone.id))?.state, 'processing')
      }),
  },
]
