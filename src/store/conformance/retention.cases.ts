/**
 * What every operation store must hold about removing what is past its time.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type { ConformanceCase } from '../../shared/conformance.ts'
import { type Attempt, isFinished, type NewRecord, type OpenOptions, type PurgedOperations } from '../operation.ts'
import type { OpenStore, StoreHarness } from './harness.ts'

const OPTIONS: OpenOptions = { gated: true, idleTimeoutMs: 30_000 }
const DAY_MS = 24 * 3_600_000
const MINUTE_MS = 60_000

type Life = Pick<NewRecord, 'retentionMs' | 'response' | 'responseRetentionMs'>

interface Setup {
  readonly opened: OpenStore<unknown>
  /** Commits a record; its id. */
  readonly record: (life: Life) => Promise<string>
  /** One batch of ten, with a minute of grace. */
  readonly purge: (batch?: {
    readonly limit?: number
    readonly after?: string | undefined
  }) => Promise<PurgedOperations>
  /** Which of the records are found, and whether with their responses. */
  readonly found: (ids: readonly string[]) => Promise<readonly ('gone' | 'bare' | 'whole')[]>
}

async function withRecords(harness: StoreHarness, run: (setup: Setup) => Promise<void>): Promise<void> {
  const opened = await harness.open()
  const { operations } = opened.store
  try {
    await run({
      opened,
      record: async (life) => {
        const attempt = attemptOn(randomUUID())
        const opening = await operations.open(attempt, OPTIONS)
        assert.equal(await opening.finish(recordOf(attempt, life), []), 'stored')
        return attempt.id
      },
      purge: ({ limit = 10, after } = {}) => operations.purge({ graceMs: MINUTE_MS, limit, after }),
      found: (ids) =>
        Promise.all(
          ids.map(async (id) => {
            const record = await operations.lookup(id)
            if (record === undefined || !isFinished(record)) return 'gone'
            return record.response === undefined ? 'bare' : 'whole'
          }),
        ),
    })
  } finally {
    await opened.close()
  }
}

function attemptOn(id: string): Attempt {
  return { id, scope: '["conformance"]', token: randomUUID(), fingerprint: fingerprint('payload') }
}

function recordOf(attempt: Attempt, life: Life): NewRecord {
  const { id, scope, token, fingerprint: print } = attempt
  const stored = { value: print.value, mode: print.mode, keyId: null }
  return { id, scope, token, state: 'succeeded', fingerprint: stored, outcomeVersion: 1, outcome: '"done"', ...life }
}

const BYTES = Buffer.from('an answer')

export const retentionCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'I13, R40: expired records are removed after their grace, and no live one ever',
    needs: 'clock',
    run: (harness) =>
      withRecords(harness, async ({ opened, record, purge, found }) => {
        const [short, long] = [await record({ retentionMs: DAY_MS }), await record({ retentionMs: 3 * DAY_MS })]
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        await opened.advance(DAY_MS + MINUTE_MS / 2)
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        await opened.advance(MINUTE_MS)
        assert.deepEqual(await purge(), { removed: 1, erased: 0, after: undefined })
        assert.deepEqual(await found([short, long]), ['gone', 'bare'])
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
      }),
  },
  {
    name: 'I13, R41: an expired response is erased, its record stays, and unexpired responses are as they were',
    needs: 'clock',
    run: (harness) =>
      withRecords(harness, async ({ opened, record, purge, found }) => {
        const ids = [
          await record({ retentionMs: 9 * DAY_MS, response: BYTES, responseRetentionMs: DAY_MS }),
          await record({ retentionMs: 9 * DAY_MS, response: BYTES, responseRetentionMs: 3 * DAY_MS }),
          await record({ retentionMs: 9 * DAY_MS }),
          // Its response would live longer than its key.
          await record({ retentionMs: DAY_MS, response: BYTES, responseRetentionMs: 9 * DAY_MS }),
        ]
        await opened.advance(DAY_MS + 2 * MINUTE_MS)
        assert.deepEqual(await purge(), { removed: 1, erased: 1, after: undefined })
        assert.deepEqual(await found(ids), ['bare', 'whole', 'bare', 'gone'])
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        const duplicate = await opened.store.operations.open(attemptOn(ids[0] ?? ''), OPTIONS)
        assert.equal(await duplicate.decide(), 'recorded')
        await duplicate.rollback()
        await opened.advance(9 * DAY_MS)
        assert.deepEqual(await purge(), { removed: 3, erased: 0, after: undefined })
      }),
  },
  {
    name: 'R40: a batch takes the longest overdue first, at most so many, and the next one goes on behind it',
    needs: 'clock',
    run: (harness) =>
      withRecords(harness, async ({ opened, record, purge, found }) => {
        const ids: string[] = []
        for (let day = 1; day <= 5; day++) ids.push(await record({ retentionMs: day * DAY_MS }))
        assert.equal(await opened.store.operations.overdueMs(MINUTE_MS), 0)
        await opened.advance(6 * DAY_MS + MINUTE_MS)
        const late = await opened.store.operations.overdueMs(MINUTE_MS)
        assert.ok(late >= 5 * DAY_MS && late < 6 * DAY_MS, String(late))
        const first = await purge({ limit: 2 })
        assert.equal(first.removed, 2)
        const left = await opened.store.operations.overdueMs(MINUTE_MS)
        assert.ok(left >= 3 * DAY_MS && left < 4 * DAY_MS, String(left))
        const second = await purge({ limit: 2, after: first.after })
        assert.equal(second.removed, 2)
        const third = await purge({ limit: 2, after: second.after })
        assert.deepEqual(third, { removed: 1, erased: 0, after: undefined })
        assert.equal(await opened.store.operations.overdueMs(MINUTE_MS), 0)
        assert.deepEqual([...new Set(await found(ids))], ['gone'])
      }),
  },
  {
    name: 'R48, SC20: a purge neither waits for a late retry that replaces an expired record nor removes the new one',
    needs: 'clock',
    run: (harness) =>
      withRecords(harness, async ({ opened, record, purge, found }) => {
        const { operations } = opened.store
        const id = await record({ retentionMs: DAY_MS })
        await opened.advance(2 * DAY_MS)
        const given = await operations.open(attemptOn(id), OPTIONS)
        assert.equal(await given.decide(), 'claimed')
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        await given.rollback()
        const retry = attemptOn(id)
        const opening = await operations.open(retry, OPTIONS)
        assert.equal(await opening.decide(), 'claimed')
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        await opened.write(opening.tx, 'order')
        assert.equal(await opening.finish(recordOf(retry, { retentionMs: DAY_MS }), []), 'stored')
        assert.deepEqual(await purge(), { removed: 0, erased: 0, after: undefined })
        assert.deepEqual(await found([id]), ['bare'])
        assert.equal((await operations.lookup(id))?.token, retry.token)
      }),
  },
  {
    name: 'R40, B98: purges at once share the work, and each row is counted once',
    needs: 'clock',
    run: (harness) =>
      withRecords(harness, async ({ opened, record, purge }) => {
        for (let at = 0; at < 20; at++) await record({ retentionMs: DAY_MS })
        for (let at = 0; at < 20; at++) {
          await record({ retentionMs: 9 * DAY_MS, response: BYTES, responseRetentionMs: DAY_MS })
        }
        await opened.advance(2 * DAY_MS)
        const done = await Promise.all(Array.from({ length: 8 }, () => purge({ limit: 10 })))
        const rest = await purge({ limit: 100 })
        const sum = [...done, rest].reduce(
          (all, one) => ({ removed: all.removed + one.removed, erased: all.erased + one.erased }),
          { removed: 0, erased: 0 },
        )
        assert.deepEqual(sum, { removed: 20, erased: 20 })
      }),
  },
]
