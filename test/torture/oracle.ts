/**
 * The oracle of the relay's torture: what arrived, against what was committed.
 */
import type { Arrival } from './recorder.ts'

export interface Judgement {
  /** Committed and never arrived. */
  readonly skipped: string[]
  /** Arrived although never committed. */
  readonly invented: string[]
  /** First appearances that came before an earlier one of their key. */
  readonly outOfOrder: string[]
  readonly duplicates: number
  /** Duplicates without a kill or stop in the `nearMs` before them. */
  readonly unexplained: string[]
}

/** `last` = number of the last committed message of each key; they count from 1 without gaps. */
export function judge(
  arrivals: readonly Arrival[],
  last: ReadonlyMap<string, number>,
  disturbedAtMs: readonly number[],
  nearMs: number,
): Judgement {
  const seen = new Map<string, Set<number>>()
  const highest = new Map<string, number>()
  const outOfOrder: string[] = []
  const invented: string[] = []
  const unexplained: string[] = []
  let duplicates = 0
  for (const { key, n, atMs } of arrivals) {
    const name = `${key}#${n}`
    const numbers = seen.get(key) ?? new Set()
    seen.set(key, numbers)
    if (n > (last.get(key) ?? 0)) invented.push(name)
    if (numbers.has(n)) {
      duplicates += 1
      if (!disturbedAtMs.some((at) => at <= atMs && atMs - at <= nearMs)) unexplained.push(name)
      continue
    }
    numbers.add(n)
    if (n < (highest.get(key) ?? 0)) outOfOrder.push(name)
    highest.set(key, Math.max(n, highest.get(key) ?? 0))
  }
  const skipped = [...last].flatMap(([key, count]) =>
    Array.from({ length: count }, (_, index) => index + 1)
      .filter((n) => seen.get(key)?.has(n) !== true)
      .map((n) => `${key}#${n}`),
  )
  return { skipped, invented, outOfOrder, duplicates, unexplained }
}
