/**
 * Catch-up: which ticks are started now, when some were missed. Pure.
 *
 * @module
 */

import type { Schedule, Tick } from './schedule.ts'

export type CatchUp = 'all' | 'last' | 'none'

/** Later than this a tick counts as missed. */
export const LATE_MS = 60_000
/** Ticks of one transaction. */
export const TICKS_MAX = 100
const WALK = 1_000

/**
 * Ticks after `last` up to `now` that are to be started, oldest first, at most TICKS_MAX; more of them come with the next
 * call, after the last of these. None when a clock was set back behind `last`.
 */
export function dueTicks(
  schedule: Pick<Schedule, 'between'>,
  last: Date,
  now: Date,
  policy: { readonly catchUp: CatchUp; readonly catchUpMaxMs: number },
): readonly Tick[] {
  const backMs = policy.catchUp === 'none' ? LATE_MS : policy.catchUpMaxMs
  let from = new Date(Math.max(last.getTime(), now.getTime() - backMs))
  if (policy.catchUp !== 'last') return schedule.between(from, now, TICKS_MAX)
  let found: Tick | undefined
  for (;;) {
    const ticks = schedule.between(from, now, WALK)
    found = ticks.at(-1) ?? found
    if (found === undefined || ticks.length < WALK) return found === undefined ? [] : [found]
    from = found.at
  }
}
