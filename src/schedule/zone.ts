/**
 * Zone: what the clocks of a time zone show at an instant, from the rules that Node.js brings (`Intl`).
 *
 * @module
 */

import { describe } from '../shared/options.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000

export interface Zone {
  readonly name: string
  /** What is added to an instant to get what the clocks show, milliseconds. Both as milliseconds since 1970. */
  offsetAt(at: number): number
}

/** @throws {TypeError} There is no such time zone. */
export function zoneOf(name: string): Zone {
  const format = formatOf(name)
  // Rules change at full minutes, most often at full hours: instants of one hour are asked for again and again.
  let known: { readonly at: number; readonly offset: number } | undefined
  return {
    name,
    offsetAt(at) {
      if (known?.at !== at) known = { at, offset: shown(format, at) - Math.floor(at / 1_000) * 1_000 }
      return known.offset
    },
  }
}

function formatOf(timeZone: string): Intl.DateTimeFormat {
  try {
    if (typeof timeZone !== 'string') throw new TypeError(describe(timeZone))
    return new Intl.DateTimeFormat('en-US', {
      timeZone,
      calendar: 'iso8601',
      numberingSystem: 'latn',
      hourCycle: 'h23',
      year: 'numeric',
      month: 'numeric',
      day: 'numeric',
      hour: 'numeric',
      minute: 'numeric',
      second: 'numeric',
    })
  } catch (cause) {
    throw new TypeError(`timeZone takes a name such as Europe/Berlin, got ${describe(timeZone)}`, { cause })
  }
}

/** What the clocks show, as if it were UTC. */
function shown(format: Intl.DateTimeFormat, at: number): number {
  const parts: Partial<Record<Intl.DateTimeFormatPartTypes, number>> = {}
  for (const { type, value } of format.formatToParts(at)) parts[type] = Number(value)
  const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = parts
  return Date.UTC(year, month - 1, day, hour, minute, second)
}

/**
 * The instant at which clocks show a local time (milliseconds as if UTC): the first one when they show it twice, and the
 * end of the gap when they never do, which is when a clock that nobody had set would have shown it, or shortly after.
 */
export function firstInstantOf(zone: Zone, local: number): number {
  // No clock is further from UTC than a day, so both sides of a change near this time are seen.
  const offsets = new Set([local - DAY_MS, local, local + DAY_MS].map((at) => zone.offsetAt(at)))
  const instants = [...offsets].map((offset) => local - offset)
  const showing = instants.filter((at) => at + zone.offsetAt(at) === local)
  return showing.length > 0 ? Math.min(...showing) : changeBetween(zone, Math.min(...instants), Math.max(...instants))
}

/** The first whole minute with the offset of `to`; the offset changes once between `from` and `to`. */
function changeBetween(zone: Zone, from: number, to: number): number {
  const after = zone.offsetAt(to)
  let [low, high] = [Math.floor(from / MINUTE_MS), Math.floor(to / MINUTE_MS)]
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2)
    if (zone.offsetAt(middle * MINUTE_MS) === after) high = middle
    else low = middle
  }
  return high * MINUTE_MS
}

/** Whether the offset stays the same throughout the hour that begins here. */
export function isSteady(zone: Zone, hour: number): boolean {
  return zone.offsetAt(hour) === zone.offsetAt(hour + HOUR_MS - MINUTE_MS)
}
