import { expect, test } from 'vitest'
import { idlePollMs } from '../../src/outbox/poll.ts'

const POLL_MS = 1_000

/** A repeatable source of numbers from 0 to 1. */
function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

test('B36: forty relays released from one stall are spread over the next minute', () => {
  const random = numbers(42)
  const buckets = new Map<number, number>()
  let polls = 0
  for (let relay = 0; relay < 40; relay++) {
    let at = 0
    for (let idle = 0; at < 60_000; idle++) {
      at += idlePollMs(POLL_MS, idle, random)
      polls += 1
      const bucket = Math.floor(at / 20)
      buckets.set(bucket, (buckets.get(bucket) ?? 0) + 1)
    }
  }
  expect(polls).toBeGreaterThan(400)
  expect(Math.max(...buckets.values())).toBeLessThanOrEqual(0.2 * 40)
})

test('B36: an idle lane looks less and less often, down to a fifth, and as often as at first after work', () => {
  const middle = () => 0.5
  const pauses = [0, 1, 2, 3, 10, 1_000].map((idle) => idlePollMs(POLL_MS, idle, middle))
  expect(pauses).toEqual([1_000, 2_000, 4_000, 5_000, 5_000, 5_000])
  expect(idlePollMs(POLL_MS, 0, () => 0)).toBe(750)
  expect(idlePollMs(POLL_MS, 0, () => 1)).toBe(1_250)
})
