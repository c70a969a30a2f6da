/** Which windows are made out of a trace, and what is counted. */
import { describe, expect, test } from 'vitest'
import { type Death, has, Turn, windowsIn } from '../../scripts/windows/found.ts'
import type { Moment } from '../../scripts/windows/moment.ts'
import type { PathResult } from '../../scripts/windows/run.ts'
import { FOUND_MIN, summary } from '../../scripts/windows/summary.ts'
import { type Boundary, boundaryText } from '../../src/drill/run/boundary.ts'

/** A run: each step with what lies outside behind it when it changes that, or `sent` for a publish. */
type Steps = readonly (readonly [label: string, change?: string])[]

function runOf(steps: Steps): readonly Moment[] {
  return steps.flatMap(([label, change], index): readonly Moment[] => {
    const kind = change === 'sent' ? 'amqp' : 'sql'
    const nth = steps.slice(0, index + 1).filter(([other]) => other === label).length
    const answer = { text: 'OK', failed: false, durable: true, inTransaction: false }
    const boundary: Boundary = { kind, label, nth, position: index + 1, toldBefore: 0, toldAfter: 0, answer }
    const look = kind === 'sql' && change !== undefined ? { digest: change, changed: ['orders'] } : undefined
    return [
      { what: label, boundary, side: 'before' },
      { what: label, boundary, side: 'after', look },
    ]
  })
}

const deathsOf = (...runs: readonly Steps[]): readonly (readonly string[])[] =>
  windowsIn(runs.map(runOf)).map(({ deaths }) => deaths.map(({ name }) => name))

describe('R48: windows lie between changes of the world', () => {
  test('a transaction has two, whatever its statements are called and however many they are', () => {
    expect(deathsOf([['BEGIN'], ['select f'], ['insert'], ['COMMIT', 'a'], ['select g']])).toEqual([
      ['kill before sql:1:BEGIN', 'kill before sql:4:COMMIT'],
      ['kill after sql:4:COMMIT'],
    ])
  })

  test('what is published or acknowledged begins one, and each is tried behind its beginning and in front of its end', () => {
    expect(deathsOf([['COMMIT', 'a'], ['select'], ['ack', 'sent']])).toEqual([
      ['kill before sql:1:COMMIT'],
      ['kill after sql:1:COMMIT', 'kill before amqp:3:ack'],
      ['kill after amqp:3:ack'],
    ])
  })

  test('a world that was there before is no new one, and the third round of a loop is as the second', () => {
    expect(
      deathsOf([
        ['lock', 'a'],
        ['unlock', 'b'],
        ['lock', 'a'],
      ]).length,
    ).toBe(3)
    expect(
      deathsOf([
        ['COMMIT', 'a'],
        ['COMMIT', 'b'],
        ['COMMIT', 'c'],
        ['COMMIT', 'd'],
      ]).length,
    ).toBe(3)
  })

  test('two steps under way at once lie in no window between them', () => {
    const [a, b] = [runOf([['a', 'x']]), runOf([['b', 'y']])]
    const together = [a[0], b[0], a[1], b[1]] as readonly Moment[]
    expect(windowsIn([together]).map(({ deaths }) => deaths.map(({ name }) => name))).toEqual([
      ['kill before sql:1:a'],
      ['kill after sql:1:a'],
      ['kill after sql:1:b'],
    ])
  })
})

describe('R48: what belongs to the time of a run is no window', () => {
  const fast: Steps = [
    ['claim', 'a'],
    ['COMMIT', 'c'],
  ]
  const slow: Steps = [
    ['claim', 'a'],
    ['renew', 'b'],
    ['COMMIT', 'c'],
  ]

  test('a change that only some runs make begins none and ends none', () => {
    expect(deathsOf(slow, fast)).toEqual([
      ['kill before sql:1:claim'],
      ['kill after sql:1:claim', 'kill before sql:3:COMMIT'],
      ['kill after sql:3:COMMIT'],
    ])
    expect(deathsOf(slow, slow).length).toBe(4)
  })

  test('a poll that finds nothing moves no death: it is met where the change is, in whatever run', () => {
    const [, , window] = windowsIn([
      runOf([
        ['poll', 'a'],
        ['poll', 'b'],
        ['ack', 'sent'],
      ]),
    ])
    const late = runOf([['poll'], ['poll', 'a'], ['poll'], ['poll', 'b'], ['ack', 'sent']])
    expect(window?.deaths.map((death) => metAt(late, death))).toEqual(['after sql:4:poll', 'before amqp:5:ack'])
  })

  test('a run that was not struck says whether a death is still there', () => {
    const runs = [runOf(slow), runOf(slow)]
    const deaths = windowsIn(runs).flatMap((window) => window.deaths)
    expect(deaths.filter((death) => !has(runOf(slow), death, runs))).toEqual([])
    expect(deaths.filter((death) => !has(runOf(fast), death, runs)).map(({ name }) => name)).toEqual([
      'kill before sql:2:renew',
      'kill after sql:2:renew',
      'kill before sql:3:COMMIT',
    ])
  })
})

/** Where a process dies. */
function metAt(moments: readonly Moment[], death: Death): string | undefined {
  const turn = new Turn(death)
  const met = moments.find((moment) => turn.comesWith(moment))
  return met && `${met.side} ${boundaryText(met.boundary)}`
}

function resultOf(path: string, betweens: readonly string[], reached = true, good = true): PathResult {
  const found = betweens.map((between) => ({ name: between, place: between, between, deaths: [] }))
  const windows = found.map((window) => ({ ...window, path, ran: [], reached, good }))
  return { path, moments: [], found, windows, passing: [], tookMs: 1 }
}

describe('R48: the last line', () => {
  const many = Array.from({ length: FOUND_MIN }, (_, n) => `window ${n}`)

  test('windows that are equal in several paths count once', () => {
    const { line, ok } = summary([resultOf('a', many), resultOf('b', many.slice(0, 3))], { partial: false })
    expect([line, ok]).toEqual([`windows: ${FOUND_MIN} found, ${FOUND_MIN} reached`, true])
  })

  test.each([
    [
      'one was not reached',
      [resultOf('a', many), resultOf('b', ['x'], false)],
      `${FOUND_MIN + 1} found, ${FOUND_MIN} reached`,
    ],
    [
      'an equal one was not reached',
      [resultOf('a', many), resultOf('b', ['window 0'], false)],
      `${FOUND_MIN} found, ${FOUND_MIN - 1} reached`,
    ],
    ['a death left something wrong', [resultOf('a', many, true, false)], `${FOUND_MIN} found, ${FOUND_MIN} reached`],
    ['there are too few', [resultOf('a', many.slice(1))], `${FOUND_MIN - 1} found, ${FOUND_MIN - 1} reached`],
    ['nothing was run', [], '0 found, 0 reached'],
  ])('it fails when %s', (_why, results, text) => {
    const { line, ok } = summary(results, { partial: false })
    expect([line, ok]).toEqual([`windows: ${text}`, false])
  })

  test('a path that fails without any fault fails all', () => {
    const broken = { ...resultOf('b', []), broken: {} as PathResult['broken'] }
    expect(summary([resultOf('a', many), broken], { partial: false }).ok).toBe(false)
  })
})
