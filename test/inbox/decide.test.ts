import { expect, test } from 'vitest'
import { UndecodableBody } from '../../src/inbox/body.ts'
import { afterFailure, afterVerdict } from '../../src/inbox/decide.ts'
import { unprocessable } from '../../src/inbox/unprocessable.ts'

const limits = { attemptsMax: 10, backoff: { minMs: 1_000, maxMs: 300_000 } }

test('R34: a transient failure waits longer each time, within its bounds, and not in step with others', () => {
  for (let attempt = 1; attempt < 10; attempt += 1) {
    const waits = [0, 0.5, 1].map((random) => {
      const next = afterFailure(new Error('no'), false, attempt, limits, () => random)
      return next.kind === 'wait' ? next.dueInMs : Number.NaN
    })
    const ceiling = Math.min(300_000, 1_000 * 2 ** attempt)
    expect(waits).toEqual([1_000, Math.round(1_000 + (ceiling - 1_000) / 2), ceiling])
  }
})

test('R34: the tenth failure is quarantined', () => {
  expect(afterFailure(new Error('no'), false, 9, limits).kind).toBe('wait')
  expect(afterFailure(new Error('no'), false, 10, limits)).toEqual({ kind: 'quarantine', reason: 'exhausted' })
})

test('R44: what trying again cannot help is quarantined at once', () => {
  expect(afterFailure(unprocessable('no order'), false, 1, limits)).toEqual({ kind: 'quarantine', reason: 'refused' })
  expect(afterFailure(new UndecodableBody('no JSON'), false, 1, limits)).toEqual({
    kind: 'quarantine',
    reason: 'undecodable',
  })
  expect(afterFailure(new Error('wrapped'), true, 1, limits)).toEqual({ kind: 'quarantine', reason: 'undecodable' })
})

test('R33: verdicts of the store decide without the handler', () => {
  expect(afterVerdict('duplicate', 0, 10)).toEqual({ kind: 'settle' })
  expect(afterVerdict('mismatch', 0, 10)).toEqual({ kind: 'quarantine', reason: 'mismatch' })
  expect(afterVerdict('expired', 0, 10)).toEqual({ kind: 'quarantine', reason: 'expired' })
  expect(afterVerdict('behind', 0, 10)).toEqual({ kind: 'wait', reason: 'behind', dueInMs: 10 })
  expect(afterVerdict('busy', 1, 10).kind).toBe('again')
})

test('R44: an error of another copy of the package is recognised', () => {
  const foreign = Object.defineProperty(new Error('no'), Symbol.for('effectively-once.Unprocessable'), { value: true })
  expect(afterFailure(foreign, false, 1, limits)).toEqual({ kind: 'quarantine', reason: 'refused' })
})
