import { describe, expect, test } from 'vitest'
import { aftermath, judgeNotApplied, nextAct, type Situation } from '../../src/effect/decide.ts'
import type { Delivery } from '../../src/effect/options.ts'

const deliveries: Delivery[] = ['keyed', 'reconciled', 'at-most-once', 'at-least-once']
const booleans = [false, true]

/** Every situation there is. */
function* situations(): Generator<Situation> {
  for (const delivery of deliveries)
    for (const hasReconcile of booleans)
      for (const doubt of booleans)
        for (const keyAlive of booleans)
          for (const keySpoiled of booleans) yield { delivery, hasReconcile, doubt, keyAlive, keySpoiled }
}

describe('what is done next about an effect', () => {
  test.each(
    [...situations()].filter(({ doubt }) => doubt).map((situation) => [JSON.stringify(situation), situation] as const),
  )(
    'I10, I11, R17: with doubt nothing is called but by a key that is alive, or where repeats are meant: %s',
    (_name, situation) => {
      const act = nextAct(situation)
      const { delivery, keyAlive, keySpoiled, hasReconcile } = situation
      const mayRepeat = delivery === 'at-least-once' || (delivery === 'keyed' && keyAlive && !keySpoiled)
      expect(act === 'call').toBe(mayRepeat)
      expect(act).not.toBe('newKey')
      if (!mayRepeat) expect(act).toBe(hasReconcile ? 'reconcile' : 'unknown')
    },
  )

  test.each(
    [...situations()].filter(({ doubt }) => !doubt).map((situation) => [JSON.stringify(situation), situation] as const),
  )('B86, B90: without doubt it is called, with a new key where the old one is of no use: %s', (_name, situation) => {
    const useless = situation.keySpoiled || (situation.delivery === 'keyed' && !situation.keyAlive)
    expect(nextAct(situation)).toBe(useless ? 'newKey' : 'call')
  })
})

describe('what an attempt without a result leaves behind', () => {
  test.each([
    // kind, decides, doubt before -> refused, doubt, key spoiled
    ['refused', 'attempt', false, true, false, false],
    ['refused', 'effect', true, true, true, false],
    ['refused', 'attempt', true, false, true, false],
    ['transient', 'attempt', false, false, false, false],
    ['transient', 'attempt', true, false, true, false],
    ['transient', 'effect', true, false, false, false],
    ['inProgress', 'attempt', false, false, true, false],
    ['ambiguous', 'attempt', false, false, true, false],
    ['ambiguous', 'attempt', true, false, true, false],
    ['applied', 'effect', false, false, true, true],
    ['storedFailure', 'effect', false, false, true, true],
    ['mismatch', 'effect', true, false, true, true],
  ] as const)('R44, B86, B87: %s of the %s, doubt before: %s', (kind, decides, before, refused, doubt, keySpoiled) => {
    expect(aftermath(kind, decides, before, false)).toEqual({ refused, doubt, keySpoiled })
  })
})

test('B86: a stored failure after a proof is that of an attempt before it', () => {
  expect(aftermath('storedFailure', 'effect', false, true)).toEqual({ refused: false, doubt: false, keySpoiled: true })
})

describe('whether "not applied" may be believed', () => {
  const facts = { settleAfterMs: 1_000, looks: 2 }

  test('PROTOCOL C3: not while the last attempt may still be under way', () => {
    expect(judgeNotApplied(0, { ...facts, lastAttemptAgeMs: 400 })).toEqual({ kind: 'early', waitMs: 600 })
    expect(judgeNotApplied(5, { ...facts, lastAttemptAgeMs: 999.5 })).toEqual({ kind: 'early', waitMs: 1 })
  })

  test('it is said as often as is asked for', () => {
    expect(judgeNotApplied(0, { ...facts, lastAttemptAgeMs: 1_000 })).toEqual({ kind: 'again', waitMs: 1_000 })
    expect(judgeNotApplied(1, { ...facts, lastAttemptAgeMs: 2_000 })).toEqual({ kind: 'proven' })
    expect(judgeNotApplied(0, { ...facts, looks: 1, lastAttemptAgeMs: 1_000 })).toEqual({ kind: 'proven' })
  })
})
