/** The soak's checker, on histories made by hand: it has to see what is wrong, and nothing else. */
import { describe, expect, test } from 'vitest'
import { check, type Facts } from '../../scripts/soak/check.ts'
import type { Answered, Entry, Route } from '../../scripts/soak/history.ts'

let at = 0
let calls = 0

/** A call and its answer. */
function call(
  key: string,
  told: Answered['told'],
  more: { readonly outcome?: string; readonly payload?: string; readonly route?: Route } = {},
): readonly Entry[] {
  const { outcome, payload = 'p', route = 'order' } = more
  calls += 1
  const answered = { kind: 'answered', at: (at += 1) + 1, call: calls, told, status: 201 } as const
  return [
    { kind: 'asked', at, call: calls, key, route, payload },
    outcome === undefined ? answered : { ...answered, outcome },
  ]
}

const outcome = (key: string, text: string, more: { payload?: string; route?: Route } = {}): readonly Entry[] =>
  call(key, 'outcome', { ...more, outcome: text })

const facts = (more: Partial<Facts> = {}): Facts => ({
  rows: new Map([['a', ['1']]]),
  effects: new Map(),
  stuck: [],
  committed: new Map(),
  arrivals: [],
  projected: [],
  ...more,
})

const message = (n: number) => ({ key: 'k', n })
const sent = (arrivals: readonly number[], projected: readonly number[]): Facts =>
  facts({
    committed: new Map([['k', 3]]),
    arrivals: arrivals.map(message),
    projected: projected.map(message),
  })
const GOOD = outcome('a', '1')

describe('nothing is wrong with', () => {
  test.each<readonly [string, readonly Entry[], Facts]>([
    ['an outcome that is there and is told again', [...GOOD, ...call('a', 'open'), ...outcome('a', '1')], facts()],
    ['a mismatch beside the outcome', [...GOOD, ...call('a', 'mismatch', { payload: 'q' })], facts()],
    ['duplicates of the broker', GOOD, sent([1, 2, 1, 2, 3, 3], [1, 2, 3])],
    ['a message that came again behind another', GOOD, sent([1, 2, 3], [1, 3, 2])],
    [
      'a charge that was applied and booked once',
      outcome('a', '1', { route: 'charge' }),
      facts({ effects: new Map([['a', 1]]) }),
    ],
  ])('%s', (_what, history, found) => {
    expect(check(history, found)).toEqual([])
  })
})

describe('it sees', () => {
  test.each<readonly [string, string, readonly Entry[], Facts]>([
    ['I3', 'two outcomes of one key', [...GOOD, ...outcome('a', '2')], facts()],
    ['I3', 'an outcome that is not the one that is there', outcome('a', '2'), facts()],
    ['I2', 'an acknowledged outcome that is lost', GOOD, facts({ rows: new Map() })],
    ['I1', 'an effect that happened twice', GOOD, facts({ rows: new Map([['a', ['1', '2']]]) })],
    [
      'I1',
      'an effect that nobody asked for',
      GOOD,
      facts({
        rows: new Map([
          ['a', ['1']],
          ['b', ['2']],
        ]),
      }),
    ],
    ['I4', 'an outcome that was told to two payloads', [...GOOD, ...outcome('a', '1', { payload: 'q' })], facts()],
    ['I4', 'a mismatch with nothing', [...GOOD, ...call('a', 'mismatch')], facts()],
    ['I12', 'a key without an outcome', call('a', 'open'), facts({ rows: new Map() })],
    ['I12', 'what waits for ever', GOOD, facts({ stuck: ['message 1 is not published'] })],
    ['I7', 'a message that was not published', GOOD, sent([1, 3], [1, 2, 3])],
    ['I6', 'a message that was never committed', GOOD, sent([1, 2, 3, 4], [1, 2, 3])],
    ['I8', 'a message that came behind a later one', GOOD, sent([1, 3, 2], [1, 2, 3])],
    ['I9', 'a message that was applied twice', GOOD, sent([1, 2, 3], [1, 2, 2, 3])],
    ['I9', 'a message that was not applied', GOOD, sent([1, 2, 3], [1, 2])],
    ['I10', 'a double charge', outcome('a', '1', { route: 'charge' }), facts({ effects: new Map([['a', 2]]) })],
    ['I10', 'a booking without a charge', outcome('a', '1', { route: 'job' }), facts()],
  ])('%s: %s', (guarantee, _what, history, found) => {
    expect(check(history, found).map((violation) => violation.split(':')[0])).toContain(guarantee)
  })
})
