import { expect, test } from 'vitest'
import { dueTicks } from '../../src/schedule/catch-up.ts'
import { everySchedule } from '../../src/schedule/every.ts'
import { cronSchedule } from '../../src/schedule/index.ts'

const minute = everySchedule(60_000)
const at = (text: string) => new Date(`2026-03-29T${text}Z`)
const times = (ticks: readonly { readonly at: Date }[]) => ticks.map((tick) => tick.at.toISOString().slice(11, 16))
const DAY = 86_400_000

test('R37: all missed ticks, the last one, or only what is hardly late', () => {
  const due = (catchUp: 'all' | 'last' | 'none') =>
    times(dueTicks(minute, at('10:00:00'), at('10:03:30'), { catchUp, catchUpMaxMs: DAY }))
  expect(due('all')).toEqual(['10:01', '10:02', '10:03'])
  expect(due('last')).toEqual(['10:03'])
  expect(due('none')).toEqual(['10:03'])
})

test('R37: what is missed for longer than the bound stays missed, and much comes in portions', () => {
  const policy = { catchUp: 'all', catchUpMaxMs: 120_000 } as const
  expect(times(dueTicks(minute, at('08:00:00'), at('10:00:30'), policy))).toEqual(['09:59', '10:00'])
  const many = dueTicks(minute, at('00:00:00'), at('10:00:00'), { catchUp: 'all', catchUpMaxMs: DAY })
  expect([many.length, times(many).at(-1)]).toEqual([100, '01:40'])
  const last = dueTicks(everySchedule(1_000), at('00:00:00'), at('10:00:00.500'), {
    catchUp: 'last',
    catchUpMaxMs: DAY,
  })
  expect(last.map((tick) => tick.at.toISOString())).toEqual(['2026-03-29T10:00:00.000Z'])
})

test('R37, SC57: a clock that was set back makes nothing due again', () => {
  for (const catchUp of ['all', 'last', 'none'] as const) {
    expect(dueTicks(minute, at('10:00:00'), at('09:30:00'), { catchUp, catchUpMaxMs: DAY })).toEqual([])
  }
})

test('R37: a time of day that the clocks skip is due once, whoever looks when', () => {
  const nightly = cronSchedule('30 2 * * *', { timeZone: 'Europe/Berlin' })
  const policy = { catchUp: 'all', catchUpMaxMs: 3 * DAY } as const
  const whole = dueTicks(nightly, at('00:00:00'), new Date('2026-03-30T12:00:00Z'), policy)
  expect(whole.map((tick) => tick.at.toISOString())).toEqual(['2026-03-29T01:00:00.000Z', '2026-03-30T00:30:00.000Z'])
  const first = dueTicks(nightly, at('00:00:00'), at('01:00:00'), policy)
  const second = dueTicks(nightly, at('01:00:00'), new Date('2026-03-30T12:00:00Z'), policy)
  expect([...first, ...second]).toEqual(whole)
})

test('intervals are counted from 1970 and have bounds', () => {
  expect(everySchedule(90_000).next(at('00:00:01'))?.at.getTime()).toBe(
    Math.ceil(at('00:00:01').getTime() / 90_000) * 90_000,
  )
  expect(() => everySchedule(10)).toThrow(/everyMs/)
})
