import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { cronSchedule, type Tick } from '../../src/schedule/index.ts'

const at = (text: string) => new Date(text)
const iso = (ticks: readonly Tick[]) => ticks.map((tick) => tick.at.toISOString().slice(0, 16))
const ticks = (expression: string, timeZone: string, after: string, until: string) =>
  cronSchedule(expression, { timeZone }).between(at(after), at(until), 10_000)

interface Case {
  readonly what: string
  readonly cron: string
  readonly zone: string
  readonly from: string
  readonly to: string
  /** Instants, in UTC to the minute. */
  readonly due: readonly string[]
  readonly local?: readonly string[]
}

const cases: readonly Case[] = [
  // Europe/Berlin: 2026-03-29 01:00Z 02:00 -> 03:00; 2026-10-25 01:00Z 03:00 -> 02:00.
  {
    what: 'a daily time before, in and after a gap',
    cron: '30 2 * * *',
    zone: 'Europe/Berlin',
    from: '2026-03-28T00:00Z',
    to: '2026-03-31T00:00Z',
    due: ['2026-03-28T01:30', '2026-03-29T01:00', '2026-03-30T00:30'],
    local: ['2026-03-28T02:30', '2026-03-29T02:30', '2026-03-30T02:30'],
  },
  {
    what: 'the first minute of a gap',
    cron: '0 2 * * *',
    zone: 'Europe/Berlin',
    from: '2026-03-29T00:00Z',
    to: '2026-03-29T12:00Z',
    due: ['2026-03-29T01:00'],
  },
  {
    what: 'several times in one gap, and the one at its end',
    cron: '0,20,40 2,3 * * *',
    zone: 'Europe/Berlin',
    from: '2026-03-29T00:00Z',
    to: '2026-03-29T12:00Z',
    due: ['2026-03-29T01:00', '2026-03-29T01:20', '2026-03-29T01:40'],
    local: ['2026-03-29T02:00', '2026-03-29T03:20', '2026-03-29T03:40'],
  },
  {
    what: 'a daily time that clocks show twice',
    cron: '30 2 * * *',
    zone: 'Europe/Berlin',
    from: '2026-10-24T12:00Z',
    to: '2026-10-26T12:00Z',
    due: ['2026-10-25T00:30', '2026-10-26T01:30'],
  },
  {
    what: 'every other hour across both',
    cron: '0 */2 * * *',
    zone: 'Europe/Berlin',
    from: '2026-10-24T21:59Z',
    to: '2026-10-25T04:00Z',
    due: ['2026-10-24T22:00', '2026-10-25T00:00', '2026-10-25T03:00'],
  },
  {
    what: 'quarters of an hour across a gap',
    cron: '*/15 * * * *',
    zone: 'Europe/Berlin',
    from: '2026-03-29T00:30Z',
    to: '2026-03-29T01:30Z',
    due: ['2026-03-29T00:45', '2026-03-29T01:00', '2026-03-29T01:15', '2026-03-29T01:30'],
    local: ['2026-03-29T01:45', '2026-03-29T03:00', '2026-03-29T03:15', '2026-03-29T03:30'],
  },
  {
    what: 'half hours across an overlap',
    cron: '*/30 * * * *',
    zone: 'Europe/Berlin',
    from: '2026-10-25T00:00Z',
    to: '2026-10-25T02:00Z',
    due: ['2026-10-25T00:30', '2026-10-25T01:00', '2026-10-25T01:30', '2026-10-25T02:00'],
    local: ['2026-10-25T02:30', '2026-10-25T02:00', '2026-10-25T02:30', '2026-10-25T03:00'],
  },
  {
    what: 'hourly, named as 0-23',
    cron: '0 0-23 * * *',
    zone: 'Europe/Berlin',
    from: '2026-10-24T23:30Z',
    to: '2026-10-25T02:30Z',
    due: ['2026-10-25T00:00', '2026-10-25T01:00', '2026-10-25T02:00'],
  },
  // America/New_York: 2026-03-08 07:00Z; 2026-11-01 06:00Z.
  {
    what: 'a daily time in a gap in New York',
    cron: '15 2 * * *',
    zone: 'America/New_York',
    from: '2026-03-08T00:00Z',
    to: '2026-03-09T00:00Z',
    due: ['2026-03-08T07:00'],
  },
  {
    what: 'a daily time twice in New York',
    cron: '0 1 * * *',
    zone: 'America/New_York',
    from: '2026-11-01T00:00Z',
    to: '2026-11-02T00:00Z',
    due: ['2026-11-01T05:00'],
  },
  // Lord Howe sets its clocks by half an hour: 2026-10-03 15:30Z 02:00 -> 02:30.
  {
    what: 'a gap of half an hour',
    cron: '15 2 * * *',
    zone: 'Australia/Lord_Howe',
    from: '2026-10-03T00:00Z',
    to: '2026-10-05T00:00Z',
    due: ['2026-10-03T15:30', '2026-10-04T15:15'],
  },
  {
    what: 'an overlap of half an hour',
    cron: '45 1 * * *',
    zone: 'Australia/Lord_Howe',
    from: '2026-04-04T00:00Z',
    to: '2026-04-05T12:00Z',
    due: ['2026-04-04T14:45'],
  },
  // Beirut sets clocks at midnight: there is no 00:00 on 2026-03-29.
  {
    what: 'midnight that does not exist',
    cron: '0 0 * * *',
    zone: 'Asia/Beirut',
    from: '2026-03-28T12:00Z',
    to: '2026-03-30T12:00Z',
    due: ['2026-03-28T22:00', '2026-03-29T21:00'],
    local: ['2026-03-29T00:00', '2026-03-30T00:00'],
  },
  {
    what: 'midnight after an overlap before it',
    cron: '30 23 * * *',
    zone: 'America/Sao_Paulo',
    from: '2018-02-17T12:00Z',
    to: '2018-02-19T12:00Z',
    due: ['2018-02-18T01:30', '2018-02-19T02:30'],
  },
  // St. John's set clocks at 00:01, so 00:00 comes before 23:30 of the day before comes again.
  {
    what: 'an overlap across midnight',
    cron: '30 23 * * *',
    zone: 'America/St_Johns',
    from: '2010-11-06T12:00Z',
    to: '2010-11-08T12:00Z',
    due: ['2010-11-07T02:00', '2010-11-08T03:00'],
  },
  // Samoa left out 2011-12-30.
  {
    what: 'a day that does not exist',
    cron: '0 12 * * *',
    zone: 'Pacific/Apia',
    from: '2011-12-29T00:00Z',
    to: '2011-12-31T00:00Z',
    due: ['2011-12-29T22:00', '2011-12-30T10:00', '2011-12-30T22:00'],
    local: ['2011-12-29T12:00', '2011-12-30T12:00', '2011-12-31T12:00'],
  },
  {
    what: 'hours around a day that does not exist',
    cron: '0 * * * *',
    zone: 'Pacific/Apia',
    from: '2011-12-30T08:30Z',
    to: '2011-12-30T11:00Z',
    due: ['2011-12-30T09:00', '2011-12-30T10:00', '2011-12-30T11:00'],
    local: ['2011-12-29T23:00', '2011-12-31T00:00', '2011-12-31T01:00'],
  },
  {
    what: 'offsets of a quarter',
    cron: '0 9 * * *',
    zone: 'Asia/Kathmandu',
    from: '2026-01-01T00:00Z',
    to: '2026-01-02T00:00Z',
    due: ['2026-01-01T03:15'],
  },
  {
    what: 'both day fields: either is enough',
    cron: '0 0 13 * 5',
    zone: 'UTC',
    from: '2026-02-01T00:00Z',
    to: '2026-02-28T00:00Z',
    due: ['2026-02-06T00:00', '2026-02-13T00:00', '2026-02-20T00:00', '2026-02-27T00:00'],
  },
  {
    what: 'a day field that begins with *: both are needed',
    cron: '0 0 */2 * 1',
    zone: 'UTC',
    from: '2026-02-01T12:00Z',
    to: '2026-02-28T00:00Z',
    due: ['2026-02-09T00:00', '2026-02-23T00:00'],
  },
  {
    what: 'names, ranges, lists and Sunday as 7',
    cron: '0 6,18 * FEB sat-7',
    zone: 'UTC',
    from: '2026-02-06T00:00Z',
    to: '2026-02-09T00:00Z',
    due: ['2026-02-07T06:00', '2026-02-07T18:00', '2026-02-08T06:00', '2026-02-08T18:00'],
  },
  {
    what: 'the 31st',
    cron: '@monthly',
    zone: 'UTC',
    from: '2026-01-15T00:00Z',
    to: '2026-03-15T00:00Z',
    due: ['2026-02-01T00:00', '2026-03-01T00:00'],
  },
  {
    what: 'leap days',
    cron: '0 0 29 2 *',
    zone: 'UTC',
    from: '2096-02-28T00:00Z',
    to: '2104-03-01T00:00Z',
    due: ['2096-02-29T00:00', '2104-02-29T00:00'],
  },
]

test.each(cases)('$what: $cron in $zone', ({ cron, zone, from, to, due, local }) => {
  const found = ticks(cron, zone, from, to)
  expect(iso(found)).toEqual(due)
  if (local !== undefined) expect(found.map((tick) => tick.local)).toEqual(local)
})

describe('each tick once', () => {
  const zones = fc.constantFrom(
    'UTC',
    'Europe/Berlin',
    'America/New_York',
    'Australia/Lord_Howe',
    'Asia/Beirut',
    'America/St_Johns',
    'Pacific/Apia',
    'Asia/Tehran',
    'Africa/Casablanca',
  )
  const crons = fc.constantFrom(
    '30 2 * * *',
    '*/15 * * * *',
    '0 */2 * * *',
    '5 0,1,2,3,23 * * *',
    '0 * * * *',
    '0 0 * * *',
    '59 23 * * 6,0',
    '17 1-3 * 3,4,10,11 *',
  )
  /** Around changes of clocks in 2010, 2011 and 2026, and anywhere. */
  const starts = fc.oneof(
    fc
      .constantFrom('2026-03-28', '2026-10-24', '2026-03-07', '2026-10-31', '2010-11-06', '2011-12-29', '2026-04-04')
      .map((day) => Date.parse(`${day}T00:00Z`)),
    fc.integer({ min: Date.parse('2005-01-01'), max: Date.parse('2040-01-01') }),
  )

  test('SC57: whoever stops and starts again anywhere sees the same ticks, none twice and none left out', () => {
    fc.assert(
      fc.property(
        crons,
        zones,
        starts,
        fc.array(fc.integer({ min: 0, max: 72 * 3_600_000 }), { maxLength: 6 }),
        (cron, timeZone, start, stops) => {
          const schedule = cronSchedule(cron, { timeZone })
          const end = start + 72 * 3_600_000
          const whole = schedule.between(new Date(start), new Date(end), 10_000)
          const edges = [start, ...stops.map((stop) => start + stop).sort((a, b) => a - b), end]
          const parts = edges
            .slice(1)
            .flatMap((edge, index) => schedule.between(new Date(edges[index] ?? start), new Date(edge), 10_000))
          expect(parts).toEqual(whole)
          let last = start
          for (const tick of whole) {
            expect(tick.at.getTime()).toBeGreaterThan(last)
            last = tick.at.getTime()
          }
          expect(schedule.next(new Date(start))).toEqual(whole[0] ?? schedule.next(new Date(end)))
        },
      ),
      { numRuns: 300 },
    )
  })

  /** Samoa went over the date line: it had no 30th of December in 2011. */
  const leftOut = (timeZone: string, day: number) =>
    timeZone === 'Pacific/Apia' && new Date(day).toISOString().startsWith('2011-12-30')

  test('each named time of each day is due exactly once, and a day that a zone left out is not due', () => {
    fc.assert(
      fc.property(
        zones,
        starts,
        fc.integer({ min: 0, max: 23 }),
        fc.integer({ min: 0, max: 59 }),
        (timeZone, start, hour, minute) => {
          const found = cronSchedule(`${minute} ${hour} * * *`, { timeZone }).between(
            new Date(start),
            new Date(start + 30 * 86_400_000),
            100,
          )
          const days = found.map(({ local }) => Date.parse(`${local}Z`))
          for (const [index, day] of days.entries()) {
            const last = days[index - 1]
            if (last === undefined || leftOut(timeZone, last + 86_400_000)) continue
            expect(day - last).toBe(86_400_000)
          }
          expect(found.length).toBeGreaterThanOrEqual(29)
          expect(found.length).toBeLessThanOrEqual(31)
        },
      ),
      { numRuns: 300 },
    )
  })

  test('every hour: as many ticks as hours have passed, whatever clocks do', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('UTC', 'Europe/Berlin', 'America/New_York', 'Asia/Beirut', 'Pacific/Apia', 'Africa/Casablanca'),
        starts,
        (timeZone, start) => {
          const from = Math.floor(start / 3_600_000) * 3_600_000
          const found = cronSchedule('0 * * * *', { timeZone }).between(
            new Date(from),
            new Date(from + 96 * 3_600_000),
            1_000,
          )
          expect(found).toHaveLength(96)
        },
      ),
      { numRuns: 100 },
    )
  })

  test('a clock that was set back makes nothing due again', () => {
    const schedule = cronSchedule('*/5 * * * *')
    expect(schedule.between(at('2026-01-01T12:00Z'), at('2026-01-01T11:00Z'), 10)).toEqual([])
    expect(schedule.between(at('2026-01-01T12:00Z'), at('2026-01-01T12:00Z'), 10)).toEqual([])
  })

  test('after a long pause ticks come in parts', () => {
    const schedule = cronSchedule('* * * * *')
    const part = schedule.between(at('2026-01-01T00:00Z'), at('2027-01-01T00:00Z'), 3)
    expect(iso(part)).toEqual(['2026-01-01T00:01', '2026-01-01T00:02', '2026-01-01T00:03'])
    expect(iso(schedule.between(part.at(-1)?.at ?? at(''), at('2027-01-01T00:00Z'), 1))).toEqual(['2026-01-01T00:04'])
  })

  test('the process time zone and locale change nothing', () => {
    const before = process.env['TZ']
    try {
      for (const zone of ['Australia/Sydney', 'America/Los_Angeles', 'UTC']) {
        process.env['TZ'] = zone
        expect(iso(ticks('30 2 * * *', 'Europe/Berlin', '2026-03-28T12:00Z', '2026-03-30T12:00Z'))).toEqual([
          '2026-03-29T01:00',
          '2026-03-30T00:30',
        ])
        expect(iso(ticks('0 3 * * *', 'UTC', '2025-10-05T02:00Z', '2025-10-05T12:00Z'))).toEqual(['2025-10-05T03:00'])
      }
    } finally {
      if (before === undefined) delete process.env['TZ']
      else process.env['TZ'] = before
    }
  })
})

test.each([
  '',
  '* * * *',
  '* * * * * *',
  '60 * * * *',
  '* 24 * * *',
  '* * 0 * *',
  '* * 32 * *',
  '* * * 13 *',
  '* * * * 8',
  '5/15 * * * *',
  '*/0 * * * *',
  '1-0 * * * *',
  'a * * * *',
  '1,,2 * * * *',
  '* * L * *',
  '* * ? * *',
  '* * * * 1#2',
  '-1 * * * *',
  '* * * foo *',
  '0 0 30 2 *',
  '0 0 31 4,6 *',
  '@reboot',
  '1.5 * * * *',
  '1-2-3 * * * *',
  '*/2/2 * * * *',
  'x'.repeat(2_000),
  7 as unknown as string,
])('the expression %j is refused', (expression) => {
  expect(() => cronSchedule(expression)).toThrow(TypeError)
})

test.each(['constructor', '__proto__', 'toString'])('the name %j of something every object has is no macro', (name) => {
  expect(() => cronSchedule(name)).toThrow('five fields')
})

test.each(['Europe/Nowhere', '', 7 as unknown as string])('the time zone %j is refused', (timeZone) => {
  expect(() => cronSchedule('@daily', { timeZone })).toThrow(/timeZone takes a name/)
})

test('wrong instants, limits and options are told', () => {
  const schedule = cronSchedule('@daily')
  expect(() => schedule.next(new Date(Number.NaN))).toThrow('after takes a Date')
  expect(() => schedule.between(at('2026-01-01'), 'now' as unknown as Date, 1)).toThrow('until takes a Date')
  expect(() => schedule.between(at('2026-01-01'), at('2026-01-02'), 0)).toThrow('limit takes')
  expect(() => cronSchedule('@daily', { zone: 'UTC' } as object)).toThrow('unknown option')
})

test('a leap day is found although it is far, and a day field never hides the other', () => {
  expect(cronSchedule('0 0 29 2 *').next(at('2097-01-01T00:00Z'))?.local).toBe('2104-02-29T00:00')
  expect(cronSchedule('0 0 30 2 1').next(at('2026-02-01T00:00Z'))?.local).toBe('2026-02-02T00:00')
  expect(cronSchedule('* * 29 2 *').next(at('2097-01-01T00:00Z'))?.local).toBe('2104-02-29T00:00')
})
