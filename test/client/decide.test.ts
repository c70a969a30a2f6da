import { describe, expect, test } from 'vitest'
import { decide, knownCodes, type Seen } from '../../src/client/decide.ts'
import { ERRORS, type ErrorCode } from '../../src/shared/errors.ts'

const seen = (status: number, more: Partial<Seen> = {}): Seen => ({
  status,
  opaque: false,
  retryAfterMs: null,
  statusUrl: null,
  accepted: false,
  problem: undefined,
  ...more,
})
const codes = Object.keys(ERRORS) as ErrorCode[]

describe('decide', () => {
  test('B127: knows every code that the service answers with, and no other', () => {
    expect([...knownCodes].sort()).toEqual([...codes].sort())
  })

  test.each(codes)('B127: %s is retried exactly when the table of errors says so', (code) => {
    const { status, retryable, safeNewKey } = ERRORS[code]
    const decision = decide(seen(status ?? 200, { problem: { code }, retryAfterMs: 2_000 }))
    expect(decision.kind === 'again').toBe(retryable)
    if (decision.kind === 'again') expect(decision.floorMs).toBe(2_000)
    if (decision.kind === 'refused') expect(decision.safeNewKey).toBe(safeNewKey)
    // Whoever may make a new key is told so by a refusal and by nothing else.
    expect(decision.kind === 'refused' && decision.safeNewKey === true).toBe(safeNewKey === true)
    expect(decision.kind).not.toBe('completed')
  })

  test.each(codes)('the code %s counts more than the status around it', (code) => {
    const byOwnStatus = decide(seen(ERRORS[code].status ?? 200, { problem: { code } }))
    for (const status of [200, 400, 409, 422, 500, 503]) {
      expect(decide(seen(status, { problem: { code } }))).toEqual(byOwnStatus)
    }
  })

  test.each([
    [200, 'completed'],
    [201, 'completed'],
    [202, 'completed'],
    [204, 'completed'],
    [303, 'completed'],
    [301, 'refused'],
    [307, 'refused'],
    [308, 'refused'],
    [400, 'refused'],
    [401, 'later'],
    [402, 'refused'],
    [403, 'refused'],
    [404, 'refused'],
    [407, 'later'],
    [408, 'again'],
    [409, 'refused'],
    [410, 'refused'],
    [412, 'refused'],
    [422, 'refused'],
    [425, 'again'],
    [429, 'again'],
    [500, 'again'],
    [502, 'again'],
    [503, 'again'],
    [504, 'again'],
  ])('an answer %i without a code is %s', (status, kind) => {
    expect(decide(seen(status)).kind).toBe(kind)
  })

  test("a service's own codes are judged by their members: retryable, then safe_new_key", () => {
    const own = (status: number, problem: Seen['problem']) => decide(seen(status, { problem })).kind
    expect(own(409, { code: 'BUSY_HERE', retryable: true })).toBe('again')
    expect(own(503, { code: 'BROKEN', retryable: false })).toBe('later')
    expect(own(500, { title: 'Internal Server Error', retryable: false })).toBe('again')
    expect(own(429, { code: 'QUOTA', retryable: false })).toBe('refused')
    expect(decide(seen(422, { problem: { code: 'LIMIT', safeNewKey: false } }))).toEqual({
      kind: 'refused',
      safeNewKey: false,
    })
    expect(own(404, { code: 'constructor' })).toBe('refused')
  })

  test('409 without a code is "still running" only with a time to come back', () => {
    expect(decide(seen(409, { retryAfterMs: 1_000 }))).toEqual({ kind: 'again', floorMs: 1_000 })
    expect(decide(seen(409))).toEqual({ kind: 'refused', safeNewKey: null })
  })

  test('202 is asked about where it says so, is awaited where the place is not ours to ask, else is the answer', () => {
    expect(decide(seen(202, { statusUrl: 'http://a/s', retryAfterMs: 5 }))).toEqual({
      kind: 'ask',
      statusUrl: 'http://a/s',
      floorMs: 5,
    })
    expect(decide(seen(202, { accepted: true })).kind).toBe('again')
    expect(decide(seen(202)).kind).toBe('completed')
  })

  test('a redirect that the browser hides is unknown, never done', () => {
    expect(decide(seen(0, { opaque: true }))).toEqual({ kind: 'unknown', reason: 'redirect' })
  })
})
