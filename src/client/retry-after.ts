/**
 * `Retry-After`: whole seconds, or one of the three forms of an HTTP date. Everything else is ignored.
 *
 * `Date.parse` is no help here: it takes ISO dates, fractions and much more, each engine in its own way.
 *
 * @see RFC 9110, sections 5.6.7 and 10.2.3
 * @module
 */

const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec']
const TIME = '(?<hour>\\d{2}):(?<minute>\\d{2}):(?<second>\\d{2})'
const DATES = [
  new RegExp(`^[a-z]{3}, (?<day>\\d{2}) (?<month>[a-z]{3}) (?<year>\\d{4}) ${TIME} gmt$`, 'i'),
  new RegExp(`^[a-z]{6,9}, (?<day>\\d{2})-(?<month>[a-z]{3})-(?<year>\\d{2}) ${TIME} gmt$`, 'i'),
  new RegExp(`^[a-z]{3} (?<month>[a-z]{3}) (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})$`, 'i'),
]

/** Longer times mean never; up to here instants stay exact. */
const WAIT_MS_MAX = 10 ** 15

/** Milliseconds to wait from `now` (milliseconds since 1970); null when there is no value that says so. */
export function retryAfterMs(value: string | null, now: number): number | null {
  const text = value?.trim() ?? ''
  if (/^\d+$/.test(text)) return Math.min(WAIT_MS_MAX, Number(text) * 1_000)
  const at = httpDate(text, now)
  return at === null ? null : Math.max(0, at - now)
}

function httpDate(text: string, now: number): number | null {
  for (const form of DATES) {
    const parts = form.exec(text)?.groups
    if (parts === undefined) continue
    const month = MONTHS.indexOf((parts['month'] ?? '').toLowerCase())
    const day = Number(parts['day'])
    const [hour, minute, second] = [Number(parts['hour']), Number(parts['minute']), Number(parts['second'])]
    const year = fullYear(parts['year'] ?? '', now)
    const at = Date.UTC(year, month, day, hour, minute, second)
    const date = new Date(at)
    // A day or month that does not exist would roll over into another one. A leap second rolls over on purpose.
    const exists = month >= 0 && hour < 24 && minute < 60 && second <= 60
    return exists && day > 0 && new Date(Date.UTC(year, month, day)).getUTCDate() === day ? date.getTime() : null
  }
  return null
}

/** Two digits mean the century in which the year is at most 50 years ahead. */
function fullYear(digits: string, now: number): number {
  if (digits.length === 4) return Number(digits)
  const thisYear = new Date(now).getUTCFullYear()
  const year = thisYear - (thisYear % 100) + Number(digits)
  return year > thisYear + 50 ? year - 100 : year
}
