/** A 409 may ask to come again, and may be the last word. */
import { describe, expect, test } from 'vitest'
import { type Ended, type Evidence, judge, type Verdict } from '../../src/drill/run/judge.ts'
import { DRILL_MS, drillHandler, failed } from './verdicts.ts'

const done: Ended = { delivery: 0, kind: 'done', answer: '201 ordered', reason: '' }
const refused: Ended = { delivery: 0, kind: 'refused', answer: '409 sold out', reason: '409 sold out' }

describe('R48: what a 409 that stays means', () => {
  test.each<readonly [Verdict, string, readonly Ended[], count: number, usual: Ended['kind'] | undefined]>([
    ['one effect', 'the answer of everybody, also without a fault', [refused, refused], 1, 'refused'],
    ['one effect', 'the answer of the first run, which nobody knows yet', [refused], 1, undefined],
    ['RESPONSE DIFFERS', 'told in place of what is done', [refused], 1, 'done'],
    ['RESPONSE DIFFERS', 'told to one sender of two', [done, refused], 1, 'done'],
    ['RESPONSE DIFFERS', 'another one than before', [refused, { ...refused, answer: '409' }], 1, 'refused'],
    ['STUCK', 'told although nothing is done', [refused], 0, 'done'],
    ['LOST', 'told to nobody, and nothing is done', [done], 0, 'refused'],
    ['DUPLICATE', 'told, and it is done twice', [refused], 2, 'refused'],
  ])('%s: %s', (verdict, _what, ended, count, usual) => {
    const evidence: Evidence = {
      ended,
      counts: { effects: count },
      expected: { effects: 1 },
      sameAnswers: true,
      usually: () => usual,
    }
    expect(judge(evidence)).toBe(verdict)
  })
})

test(
  'R48: a handler whose own answer is 409 passes, and in no window it is asked again for as long as a lease',
  async () => {
    const { windows, trace, passed } = await drillHandler('conflict-decided')
    expect(windows.filter((window) => !window.passed).map(({ name, verdict }) => `${name}: ${verdict}`)).toEqual([])
    expect(passed).toBe(true)
    expect(trace.map(({ label }) => label)).toEqual(['insert into decisions'])
    const repeated = windows.filter(({ run }) => run?.ended.some(({ vainMs }) => vainMs !== undefined))
    expect(repeated.map(({ name }) => name)).toEqual([])
  },
  DRILL_MS,
)

test(
  'R48: a handler that answers a repeat with 409 where the first one was told that it is done, is told on',
  async () => {
    const result = await drillHandler('conflict-for-repeats')
    expect(failed(result)).toContain('kill after sql:1:insert into decisions: RESPONSE DIFFERS')
    expect(failed(result)).toContain('delivered three times at once: RESPONSE DIFFERS')
    expect(failed(result)).not.toContain('kill before sql:1:insert into decisions: RESPONSE DIFFERS')
  },
  DRILL_MS,
)
