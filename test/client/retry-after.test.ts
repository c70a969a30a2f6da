import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { retryAfterMs } from '../../src/client/index.ts'

interface Case {
  readonly name: string
  readonly value: string
  readonly now: string
  readonly delay_ms: number | null
}

const cases = JSON.parse(readFileSync('test/vectors/retry-after/values.json', 'utf8')) as readonly Case[]
const NOW = Date.UTC(2026, 9, 21, 7, 28)

describe('Retry-After', () => {
  test.each(cases)('$name', ({ value, now, delay_ms }) => {
    expect(retryAfterMs(value, Date.parse(now))).toBe(delay_ms)
  })

  test('a missing header and dates that do not exist ask for nothing', () => {
    expect(retryAfterMs(null, NOW)).toBeNull()
    for (const date of [
      'Wed, 31 Feb 2027 07:28:30 GMT',
      'Wed, 00 Oct 2026 07:28:30 GMT',
      'Wed, 21 Foo 2026 07:28:30 GMT',
      'Wed, 21 Oct 2026 24:28:30 GMT',
      'Wed, 21 Oct 2026 07:60:30 GMT',
      'Wed, 21 Oct 2026 07:28:30 CET',
      'Wed Oct 32 07:28:30 2026',
    ]) {
      expect(retryAfterMs(date, NOW), date).toBeNull()
    }
  })

  test('a year of two digits is the one at most fifty years ahead', () => {
    expect(retryAfterMs('Friday, 01-Jan-27 00:00:00 GMT', NOW)).toBe(Date.UTC(2027, 0, 1) - NOW)
    expect(retryAfterMs('Sunday, 06-Nov-94 08:49:37 GMT', NOW)).toBe(0)
    expect(retryAfterMs('asctime', NOW)).toBeNull()
    expect(retryAfterMs('Thu Oct  1 07:28:10 2026', NOW)).toBe(0)
  })

  test('a number too large for an instant stays a number that means never', () => {
    const ms = retryAfterMs('9'.repeat(400), NOW) ?? 0
    expect([Number.isSafeInteger(NOW + ms), ms > 1_000 * 365 * 86_400_000]).toEqual([true, true])
  })

  test('text of any length is looked at in linear time', () => {
    expect(retryAfterMs(' '.repeat(200_000) + 'x', NOW)).toBeNull()
    expect(retryAfterMs(`${'9'.repeat(200_000)}x`, NOW)).toBeNull()
  })
})
