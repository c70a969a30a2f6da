/**
 * Schedule: the instants at which a cron expression is due in a time zone. Pure: the same arguments give the same instants in
 * every process, so whoever starts again, or runs beside another, names the same ticks.
 *
 * Where clocks are set, one of two rules holds, by what the expression says:
 *
 * - **Times of day** (`30 2 * * *`, `0 8-18 * * 1-5`): each named time of each day is due exactly once. Clocks that show it
 *   twice: the first time. Clocks that skip it: at the end of the gap, once for all that were skipped.
 * - **Every hour** (all 24 hours, such as a `*` there): time goes on. Each minute that clocks really show and that matches
 *   is due, in both passes of a repeated hour, and none in a gap; so a quarter of an hour stays one.
 *
 * Own code, because the libraries at hand were found to skip or repeat ticks at changes of the clock.
 *
 * @module
 */

import { describe, refuseUnknownOptions } from '../shared/options.ts'
import { type CronFields, parseCron } from './cron.ts'
import { firstInstantOf, isSteady, type Zone, zoneOf } from './zone.ts'

/** One instant at which a schedule is due. */
export interface Tick {
  readonly at: Date
  /**
   * What the clocks were meant to show, `2026-03-29T02:30`. For times of day it is the same before and after an update of
   * time zone rules, which moves `at`; a time that clocks skip keeps it.
   */
  readonly local: string
}

/** A cron expression in a time zone. */
export interface Schedule {
  readonly expression: string
  readonly timeZone: string
  /** The first tick after an instant (not at it); undefined when there is none within a hundred years. */
  next(after: Date): Tick | undefined
  /**
   * Ticks after `after` up to and with `until`, oldest first, at most `limit`. None when `until` is not after `after`, as
   * when a clock was set back: what was due before is not due again.
   */
  between(after: Date, until: Date, limit: number): readonly Tick[]
}

export interface ScheduleOptions {
  /** Name of a time zone, `Europe/Berlin`. Default `UTC`. */
  readonly timeZone?: string | undefined
}

const MINUTE_MS = 60_000
const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000
/** February 29th on a given day of the week comes after at most 40 years. */
const DAYS_MAX = 36_525
const LIMIT_MAX = 100_000

/**
 * Reads a cron expression (see ./cron.ts).
 *
 * @throws {TypeError} The expression or the time zone cannot be read.
 */
export function cronSchedule(expression: string, options: ScheduleOptions = {}): Schedule {
  refuseUnknownOptions('cronSchedule', options, ['timeZone'])
  const fields = parseCron(expression)
  const zone = zoneOf(options.timeZone ?? 'UTC')
  const ticks = fields.hours.length === 24 ? everyHour : timesOfDay
  return {
    expression,
    timeZone: zone.name,
    next(after) {
      for (const tick of ticks(fields, zone, instant('after', after))) return tick
      return undefined
    },
    between(after, until, limit) {
      if (!Number.isSafeInteger(limit) || limit < 1 || limit > LIMIT_MAX) {
        throw new TypeError(`limit takes a whole number from 1 to ${LIMIT_MAX}, got ${describe(limit)}`)
      }
      const [from, to] = [instant('after', after), instant('until', until)]
      const found: Tick[] = []
      if (to <= from) return found
      for (const tick of ticks(fields, zone, from)) {
        if (tick.at.getTime() > to || found.length >= limit) break
        found.push(tick)
      }
      return found
    },
  }
}

/** Each named time of each matching day, once. Later local times are never due earlier, so the order is right. */
function* timesOfDay(fields: CronFields, zone: Zone, after: number): Generator<Tick> {
  // A gap of a whole day (a change of the date line) lies between an instant and its local time at most.
  const firstDay = Math.floor((after + zone.offsetAt(after)) / DAY_MS) - 2
  let last = after
  for (let day = firstDay; day < firstDay + DAYS_MAX; day += 1) {
    if (!matches(fields, day * DAY_MS)) continue
    for (const hour of fields.hours) {
      for (const minute of fields.minutes) {
        const local = day * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS
        const at = firstInstantOf(zone, local)
        // Not after the last one: several times that one gap has skipped are one tick.
        if (at <= last) continue
        last = at
        yield tick(at, local)
      }
    }
  }
}

/** Every minute that clocks show and that matches. */
function* everyHour(fields: CronFields, zone: Zone, after: number): Generator<Tick> {
  const minutes = new Set(fields.minutes)
  const first = Math.floor(after / HOUR_MS)
  for (let index = first; index < first + DAYS_MAX * 24; index += 1) {
    const hour = index * HOUR_MS
    // Whatever the zone, clocks show this day of UTC, the one before or the one after.
    if (![hour - DAY_MS, hour, hour + DAY_MS].some((near) => matches(fields, near))) continue
    const offset = zone.offsetAt(hour)
    const steady = isSteady(zone, hour)
    for (let at = hour; at < hour + HOUR_MS; at += MINUTE_MS) {
      if (at <= after) continue
      const local = at + (steady ? offset : zone.offsetAt(at))
      if (minutes.has(new Date(local).getUTCMinutes()) && matches(fields, local)) yield tick(at, local)
    }
  }
}

function matches(fields: CronFields, local: number): boolean {
  const date = new Date(local)
  return fields.matchesDay(date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCDay())
}

function tick(at: number, local: number): Tick {
  return { at: new Date(at), local: new Date(local).toISOString().slice(0, 16) }
}

function instant(where: string, value: Date): number {
  const at = value instanceof Date ? value.getTime() : Number.NaN
  // Year 1 to 9000: what `Intl` and ISO texts of four digits agree on, with room for a search.
  if (!(at >= -62_000_000_000_000 && at <= 221_845_000_000_000)) {
    throw new TypeError(`${where} takes a Date between the years 5 and 9000, got ${describe(value)}`)
  }
  return at
}
