/** Which windows are made out of a trace, and what is counted. */
import { describe, expect, test } from 'vitest'
import { windowsIn } from '../../scripts/windows/found.ts'
import type { PathResult } from '../../scripts/windows/run.ts'
import { FOUND_MIN, summary } from '../../scripts/windows/summary.ts'
import type { Look, Looks } from '../../scripts/windows/world.ts'
import type { Boundary } from '../../src/drill/run/boundary.ts'

/** A trace: each step with the tables that it has changed, with what lies outside then, or `sent` for a publish. */
type Steps = readonly (readonly [label: string, change?: string])[]

function traceOf(steps: Steps): [Boundary[], Looks] {
  const looks: (Look | undefined)[] = []
  const trace = steps.map(([label, change], index): Boundary => {
    const kind = change === 'sent' ? 'amqp' : 'sql'
    looks.push(kind === 'amqp' || change === undefined ? undefined : { digest: change, changed: ['orders'] })
    const before = steps
      .slice(0, index + 1)
      .filter(([other, way]) => other === label && (way === 'sent') === (kind === 'amqp'))
    const answer = { text: 'OK', failed: false, durable: true, inTransaction: false }
    return { kind, label, nth: before.length, position: index + 1, toldBefore: 0, toldAfter: 0, answer }
  })
  return [trace, looks]
}

const deathsOf = (...steps: Steps): readonly (readonly string[])[] =>
  windowsIn(...traceOf(steps)).map(({ deaths }) => deaths.map(({ name }) => name))

describe('R48: windows lie between changes of the world', () => {
  test('a transaction has two, whatever its statements are called and however many they are', () => {
    expect(deathsOf(['BEGIN'], ['select f'], ['insert'], ['COMMIT', 'a'], ['select g'])).toEqual([
      ['kill before sql:1:BEGIN', 'kill before sql:4:COMMIT'],
      ['kill after sql:4:COMMIT'],
    ])
  })

  test('what is published or acknowledged begins one, and each is tried behind its beginning and in front of its end', () => {
    expect(deathsOf(['COMMIT', 'a'], ['select'], ['ack', 'sent'])).toEqual([
      ['kill before sql:1:COMMIT'],
      ['kill after sql:1:COMMIT', 'kill before amqp:3:ack'],
      ['kill after amqp:3:ack'],
    ])
  })

  test('a world that was there before is no new one, and the third round of a loop is as the second', () => {
    expect(deathsOf(['lock', 'a'], ['unlock', 'b'], ['lock', 'a']).length).toBe(3)
    expect(deathsOf(['COMMIT', 'a'], ['COMMIT', 'b'], ['COMMIT', 'c'], ['COMMIT', 'd']).length).toBe(3)
  })
})

function resultOf(path: string, betweens: readonly string[], reached = true, good = true): PathResult {
  const found = betweens.map((between) => ({ name: between, between, deaths: [] }))
  const windows = found.map((window) => ({ ...window, path, ran: [], reached, good }))
  return { path, trace: [], looks: [], found, windows, tookMs: 1 }
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
