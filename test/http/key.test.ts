/** The header: every vector in both profiles, the published structured-field cases, and linear time on hostile values. */
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { parseKey } from '../../src/http/key.ts'

const load = <T>(path: string): T[] => JSON.parse(readFileSync(`test/vectors/${path}`, 'utf8')) as T[]

interface Vector {
  readonly name: string
  readonly lines: readonly string[]
  readonly lenient: { readonly key?: string; readonly error?: string }
  readonly strict: { readonly key?: string; readonly error?: string }
}

for (const profile of ['lenient', 'strict'] as const) {
  describe(`SC16: header values, ${profile}`, () => {
    test.each(load<Vector>('idempotency-key/header-values.json').map((v) => [v.name, v] as const))(
      '%s',
      (_, vector) => {
        expect(parseKey(vector.lines, profile === 'strict')).toEqual(vector[profile])
      },
    )
  })
}

interface FieldVector {
  readonly name: string
  readonly raw?: readonly string[]
  readonly header_type: string
  readonly must_fail?: boolean
  readonly can_fail?: boolean
  readonly expected?: readonly [unknown, unknown]
}

const FILES = ['string', 'string-generated', 'item', 'token'] as const
const parsing = FILES.flatMap((file) =>
  load<FieldVector>(`structured-fields/${file}.json`)
    .filter(({ header_type, raw }) => header_type === 'item' && raw !== undefined)
    .map((vector) => [`${file}: ${vector.name}`, vector] as const),
)

test.each(parsing)('structured field %s', (_, { raw = [], must_fail: mustFail, expected }) => {
  const parsed = parseKey(raw, true)
  const text = mustFail === true || raw.length > 1 ? undefined : expected?.[0]
  // A key is a String; empty ones and ones above the limit are refused by our own rules.
  if (typeof text === 'string' && text !== '' && text.length <= 255) expect(parsed).toEqual({ key: text })
  else expect(parsed.error).toBeDefined()
})

test.each(load<FieldVector>('structured-fields/serialise-string-generated.json').map((v) => [v.name, v] as const))(
  'what must not be serialised is not accepted either: %s',
  (_, { expected }) => {
    expect(parseKey([`"${String(expected?.[0])}"`], true).error).toBeDefined()
    expect(parseKey([String(expected?.[0])], false).error).toBeDefined()
  },
)

test('a broken parameter is not taken for the beginning of another kind of value', () => {
  for (const line of ['"k";a="x', '"k";a="\\x"', '"k";a="b"c', '"k";a=1.', '"k";a=', '"k";a=:b', '"k"; a=1 ;b']) {
    expect(parseKey([line], true).error, line).toBe('malformed')
  }
  for (const line of ['"k";a=1.5', '"k";a=?0', '"k";a=:aGk=:', '"k";a=*t/x', '"k";a=@12', '"k";*=-1;b']) {
    expect(parseKey([line], true).key, line).toBe('k')
  }
})

test('T6: hostile lines of a megabyte are answered at once', () => {
  const long = 1_000_000
  for (const line of [
    '"'.repeat(long),
    `"${'\\"'.repeat(long)}`,
    `"k"${';a'.repeat(long)}`,
    ' '.repeat(long),
    'k'.repeat(long),
  ]) {
    expect(parseKey([line], false).error).toBe('too_long')
  }
})
