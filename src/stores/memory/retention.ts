/**
 * Retention in memory: which rows a batch takes.
 *
 * @module
 */

import type { PurgeBatch } from '../../store/retention.ts'

/** The rows that were due before `beforeMs`, the longest overdue first. */
export function batchOf<K, T>(
  rows: ReadonlyMap<K, T>,
  dueAtMs: (row: T) => number,
  beforeMs: number,
  { limit, after }: PurgeBatch,
): { readonly taken: readonly (readonly [K, T])[]; readonly after: string | undefined } {
  const from = after === undefined ? Number.NEGATIVE_INFINITY : Number(after)
  const taken = [...rows]
    .filter(([, row]) => dueAtMs(row) <= beforeMs && dueAtMs(row) >= from)
    .sort(([, a], [, b]) => dueAtMs(a) - dueAtMs(b))
    .slice(0, limit)
  const last = taken.at(-1)
  return { taken, after: last === undefined || taken.length < limit ? undefined : String(dueAtMs(last[1])) }
}

/** For how long the oldest of the rows has been due. */
export function overdueMs<T>(rows: Iterable<T>, dueAtMs: (row: T) => number, beforeMs: number): number {
  return [...rows].reduce((most, row) => Math.max(most, beforeMs - dueAtMs(row)), 0)
}
