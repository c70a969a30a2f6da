/**
 * Every: a schedule by intervals, counted from 1970, so that every process names the same instants.
 *
 * @module
 */

import { integerOption } from '../shared/options.ts'
import type { Schedule, Tick } from './schedule.ts'

const DAY_MS = 86_400_000

/** @throws {TypeError} when `everyMs` is not a whole number of milliseconds from a second to 366 days. */
export function everySchedule(everyMs: number): Schedule {
  const step = integerOption('everyMs', everyMs, { min: 1_000, max: 366 * DAY_MS, default: everyMs })
  const after = (instant: number): number => (Math.floor(instant / step) + 1) * step
  return {
    expression: `every ${step} ms`,
    timeZone: 'UTC',
    next: (from) => tick(after(from.getTime())),
    between(from, until, limit) {
      const found: Tick[] = []
      for (let at = after(from.getTime()); at <= until.getTime() && found.length < limit; at += step)
        found.push(tick(at))
      return found
    },
  }
}

function tick(at: number): Tick {
  const date = new Date(at)
  return { at: date, local: date.toISOString().slice(0, 19) }
}
