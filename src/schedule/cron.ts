/**
 * Cron expressions: five fields, read as crontab(5) does.
 *
 * `minute hour day-of-month month day-of-week`, with `*`, lists, ranges, steps, names of months and days (JAN, MON), 0 and 7
 * for Sunday, and `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. When both day fields are restricted, a day matches
 * by either. Extensions of other programs (seconds, `L`, `W`, `#`, `?`) are refused rather than guessed.
 *
 * @module
 */

import { describe } from '../shared/options.ts'

/** What an expression matches. */
export interface CronFields {
  readonly minutes: readonly number[]
  readonly hours: readonly number[]
  /** Whether a day matches: months count from 1, Sunday is 0. */
  matchesDay(month: number, day: number, weekday: number): boolean
}

interface Field {
  readonly name: string
  readonly min: number
  readonly max: number
  readonly names?: readonly string[]
}

const MINUTE: Field = { name: 'minute', min: 0, max: 59 }
const HOUR: Field = { name: 'hour', min: 0, max: 23 }
const DAY: Field = { name: 'day of month', min: 1, max: 31 }
const MONTH: Field = {
  name: 'month',
  min: 1,
  max: 12,
  names: ['', 'jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'],
}
const WEEKDAY: Field = {
  name: 'day of week',
  min: 0,
  max: 7,
  names: ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'],
}

const MACROS: Readonly<Record<string, string>> = {
  '@hourly': '0 * * * *',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@weekly': '0 0 * * 0',
  '@monthly': '0 0 1 * *',
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
}
const EXPRESSION_MAX = 1_000
const DAYS_OF_MONTH = [0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

/** @throws {TypeError} The expression cannot be read, or no day can ever match it. The field is named. */
export function parseCron(expression: string): CronFields {
  if (typeof expression !== 'string' || expression.length > EXPRESSION_MAX) {
    throw new TypeError(
      `a cron expression is text of at most ${EXPRESSION_MAX} characters, got ${describe(expression)}`,
    )
  }
  const text = expression.trim().toLowerCase()
  const parts = (Object.hasOwn(MACROS, text) ? (MACROS[text] ?? text) : text).split(/\s+/)
  const [minute, hour, day, month, weekday, ...more] = parts
  if (
    weekday === undefined ||
    minute === undefined ||
    hour === undefined ||
    day === undefined ||
    month === undefined ||
    more.length > 0
  ) {
    throw new TypeError(`a cron expression has five fields (minute hour day month weekday), got ${parts.length}`)
  }
  const days = new Set(valuesOf(DAY, day))
  const months = new Set(valuesOf(MONTH, month))
  const weekdays = new Set(valuesOf(WEEKDAY, weekday).map((value) => value % 7))
  // As in crontab(5): a field that begins with * restricts together with the other, else either is enough.
  const both = day.startsWith('*') || weekday.startsWith('*')
  const possible = [...months].some((one) => [...days].some((number) => number <= (DAYS_OF_MONTH[one] ?? 0)))
  if (both && !possible) throw new TypeError('no day can ever match this cron expression')
  return {
    minutes: valuesOf(MINUTE, minute),
    hours: valuesOf(HOUR, hour),
    matchesDay(inMonth, number, ofWeek) {
      if (!months.has(inMonth)) return false
      return both ? days.has(number) && weekdays.has(ofWeek) : days.has(number) || weekdays.has(ofWeek)
    },
  }
}

/** Ascending values of one field. */
function valuesOf(field: Field, text: string): readonly number[] {
  const found = new Set<number>()
  for (const item of text.split(',')) {
    const [range = '', step, ...rest] = item.split('/')
    if (rest.length > 0) throw wrong(field, item)
    const every = step === undefined ? 1 : numberOf(field, step, item)
    if (every < 1) throw wrong(field, item)
    const [from, to] = bounds(field, range, item, step !== undefined)
    if (from > to) throw wrong(field, item)
    for (let value = from; value <= to; value += every) found.add(value)
  }
  return [...found].sort((a, b) => a - b)
}

function bounds(field: Field, range: string, item: string, stepped: boolean): readonly [number, number] {
  if (range === '*') return [field.min, field === WEEKDAY ? 6 : field.max]
  const [first = '', last, ...rest] = range.split('-')
  if (rest.length > 0) throw wrong(field, item)
  const from = valueOf(field, first, item)
  // `5/15` would be read in two ways by two programs.
  if (last === undefined && stepped) throw wrong(field, item)
  return [from, last === undefined ? from : valueOf(field, last, item)]
}

function valueOf(field: Field, text: string, item: string): number {
  const named = field.names?.indexOf(text) ?? -1
  const value = text !== '' && named >= 0 ? named : numberOf(field, text, item)
  if (value < field.min || value > field.max) throw wrong(field, item)
  return value
}

function numberOf(field: Field, text: string, item: string): number {
  if (!/^\d{1,2}$/.test(text)) throw wrong(field, item)
  return Number(text)
}

function wrong(field: Field, item: string): TypeError {
  return new TypeError(`cron expression: "${item.slice(0, 32)}" is no ${field.name} (${field.min} to ${field.max})`)
}
