/** Outcomes: what comes back is what was returned, or nothing was committed. */
import fc from 'fast-check'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Once, rejected } from '../../src/index.ts'
import { decodeOutcome, encodeOutcome, OUTCOME_DEPTH_MAX } from '../../src/operation/outcome.ts'
import { type Guard, insertOrder, openGuard } from './guard.ts'

let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})

afterAll(() => guard.close())

const scope = ['acme', 'outcomes']
const roundTrip = (value: unknown): unknown =>
  decodeOutcome({ outcome: encodeOutcome(value, 16_777_216), outcomeVersion: 1 })

class Money {
  readonly amount = 1
}
const cycle: { self?: unknown } = {}
cycle.self = cycle
const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)])
const shared = (levels: number): unknown => {
  let value: unknown = 'leaf'
  for (let level = 0; level < levels; level++) value = [value, value]
  return value
}
const matched = /(?<letter>a)/.exec('a')

const REFUSED: readonly (readonly [string, unknown])[] = [
  ['a BigInt', { total: 10n }],
  ['a Date', { at: new Date(0) }],
  ['an invalid Date', new Date(Number.NaN)],
  ['a Buffer', { bytes: Buffer.from('x') }],
  ['a typed array', new Uint8Array(2)],
  ['an undefined member', { a: undefined }],
  ['an undefined item', [1, undefined]],
  ['a gap in a list', [1, , 2]], // oxlint-disable-line no-sparse-arrays
  ['NaN', { ratio: Number.NaN }],
  ['Infinity', [Number.POSITIVE_INFINITY]],
  ['a class instance', new Money()],
  ['a Map', new Map([[1, 2]])],
  ['a Set', new Set([1])],
  ['an Error', new Error('x')],
  ['a function', { f: () => 1 }],
  ['a symbol', Symbol('x')],
  ['a symbol as member name', { [Symbol('x')]: 1 }],
  ['a boxed number', Object(1)],
  ['a cycle', cycle],
  ['an object with toJSON', { toJSON: () => 1 }],
  ['a list with members besides its items', matched],
  ['a list of a class of its own', new (class Rows extends Array<number> {})(1)],
  ['nesting below the limit', deep(OUTCOME_DEPTH_MAX + 1)],
]

describe('encodeOutcome', () => {
  test('I3, B19: every JSON value comes back as it was', () => {
    fc.assert(
      fc.property(fc.jsonValue({ noUnicodeString: false, stringUnit: 'binary', maxDepth: 6 }), (value) => {
        // JSON has one zero.
        const expected: unknown = JSON.parse(JSON.stringify(value))
        expect(roundTrip(value)).toEqual(expected)
        expect(roundTrip(roundTrip(value))).toEqual(roundTrip(value))
      }),
      { numRuns: 500 },
    )
  })

  test('B19: any value at all is either kept or refused with a code', () => {
    fc.assert(
      fc.property(
        fc.anything({
          withBigInt: true,
          withDate: true,
          withMap: true,
          withSet: true,
          withNullPrototype: true,
          withSparseArray: true,
          withTypedArray: true,
          withBoxedValues: true,
        }),
        (value) => {
          let back: unknown
          try {
            back = roundTrip(value)
          } catch (error) {
            expect(error).toMatchObject({ code: 'OUTCOME_NOT_REPRESENTABLE' })
            return
          }
          expect(normal(back)).toEqual(normal(value))
        },
      ),
      { numRuns: 1_000 },
    )
  })

  test('B19: U+0000, lone surrogates and members named __proto__ survive', () => {
    const value = {
      nul: 'a\u0000b',
      lone: '\ud800',
      'key\u0000': '\udfff',
      nested: JSON.parse('{"__proto__":{"admin":true}}'),
    }
    const back = roundTrip(value) as typeof value
    expect(back).toEqual(value)
    expect(Object.keys(back.nested)).toEqual(['__proto__'])
    expect((back.nested as { admin?: unknown }).admin).toBeUndefined()
    expect(({} as { admin?: unknown }).admin).toBeUndefined()
  })

  test.each(REFUSED)('B19: %s is refused with the place of the value and without the value', (_name, value) => {
    expect(() => encodeOutcome(value)).toThrow(expect.objectContaining({ code: 'OUTCOME_NOT_REPRESENTABLE' }))
  })

  test('the limit counts UTF-8 bytes, exactly', () => {
    expect(encodeOutcome('é'.repeat(511), 1_024)).toHaveLength(513)
    expect(() => encodeOutcome('é'.repeat(512), 1_024)).toThrow(expect.objectContaining({ code: 'OUTCOME_TOO_LARGE' }))
  })

  test('a value that shares its parts is bounded like any other', () => {
    expect(() => encodeOutcome(shared(60))).toThrow(expect.objectContaining({ code: 'OUTCOME_TOO_LARGE' }))
  })

  test('nesting up to the limit is kept', () => {
    expect(roundTrip(deep(OUTCOME_DEPTH_MAX))).toEqual(deep(OUTCOME_DEPTH_MAX))
  })
})

/** -0 as 0 and plain objects whatever their prototype: what JSON may change without changing the value. */
function normal(value: unknown): unknown {
  if (Object.is(value, -0)) return 0
  if (Array.isArray(value)) return value.map(normal)
  if (typeof value !== 'object' || value === null) return value
  return Object.entries(value).map(([name, member]) => [name, normal(member)])
}

describe('in the database', () => {
  test.each(REFUSED)('B19, I1: a work that returns %s commits nothing', async (name, value) => {
    const ref = `refused ${name}`
    await expect(
      once.transaction({ scope, key: ref, payload: null }, async ({ tx }) => {
        await insertOrder(tx, ref)
        return value as never
      }),
    ).rejects.toMatchObject({ code: 'OUTCOME_NOT_REPRESENTABLE' })
    expect(await guard.count(ref)).toBe(0)
    expect((await once.transaction({ scope, key: ref, payload: null }, () => 'free')).replayed).toBe(false)
  })

  test('B19: a rejection that cannot be stored commits nothing', async () => {
    await expect(
      once.transaction({ scope, key: 'rejection', payload: null }, async ({ tx }) => {
        await insertOrder(tx, 'rejection')
        return rejected({ at: new Date() })
      }),
    ).rejects.toMatchObject({ code: 'OUTCOME_NOT_REPRESENTABLE' })
    expect(await guard.count('rejection')).toBe(0)
  })

  test.each([
    ['pipelined', true],
    ['stock', false],
  ])('I3, B19: the first caller and the replay see the same value on a %s pool', async (name, pipeline) => {
    const local = guard.once({ pipeline })
    const value = {
      nul: 'a\u0000b',
      lone: '\ud800',
      quotes: `'"\\ $1 :schema`,
      proto: JSON.parse('{"__proto__":1}'),
      numbers: [1e21, 5e-324, Number.MAX_SAFE_INTEGER],
    }
    const run = () => local.transaction({ scope, key: `same ${name}`, payload: null }, () => value)
    const first = await run()
    const again = await run()
    expect(first.value).toEqual(value)
    expect(again).toEqual({ ...first, replayed: true })
  })

  test('nothing, null, false, 0 and the empty string are outcomes and are replayed as they are', async () => {
    for (const [n, value] of [undefined, null, false, 0, ''].entries()) {
      const run = () => once.transaction({ scope, key: `empty ${n}`, payload: null }, () => value)
      expect((await run()).value).toBe(value)
      const again = await run()
      expect(again.value).toBe(value)
      expect(again.replayed).toBe(true)
    }
  })

  test('OUTCOME_TOO_LARGE: above outcomeBytesMax nothing commits, for a work and for a statement', async () => {
    const small = guard.once({}, {}, { outcomeBytesMax: 1_024 })
    await expect(
      small.transaction({ scope, key: 'large', payload: null }, async ({ tx }) => {
        await insertOrder(tx, 'large')
        return 'x'.repeat(2_000)
      }),
    ).rejects.toMatchObject({ code: 'OUTCOME_TOO_LARGE' })
    await expect(
      small.statement(
        { scope, key: 'large', payload: null },
        { text: `insert into orders (ref) values ('large') returning repeat('x', 2000) as x` },
      ),
    ).rejects.toMatchObject({ code: 'OUTCOME_TOO_LARGE' })
    expect(await guard.count('large')).toBe(0)
  })

  test('R41: a record of an outcome format of the future is RESULT_UNAVAILABLE and never runs again', async () => {
    const operation = { scope, key: 'future', payload: null }
    await once.transaction(operation, ({ tx }) => insertOrder(tx, 'future').then(() => 1))
    await guard.admin.query(
      `update effectively_once.operation set outcome_version = 2 where id =
       (select id from effectively_once.operation where scope = $1 order by created_at desc limit 1)`,
      [JSON.stringify(scope)],
    )
    await expect(
      once.transaction(operation, ({ tx }) => insertOrder(tx, 'future').then(() => 1)),
    ).rejects.toMatchObject({ code: 'RESULT_UNAVAILABLE' })
    await expect(
      once.statement(operation, { text: `insert into orders (ref) values ('future') returning 1` }),
    ).rejects.toMatchObject({ code: 'RESULT_UNAVAILABLE' })
    expect(await guard.count('future')).toBe(1)
  })

  test('a damaged stored outcome is RESULT_UNAVAILABLE', async () => {
    const operation = { scope: ['acme', 'damaged'], key: 'k', payload: null }
    await once.transaction(operation, () => ({ a: 1 }))
    await guard.admin.query(`update effectively_once.operation set outcome = '{"a":' where scope = $1`, [
      JSON.stringify(operation.scope),
    ])
    await expect(once.transaction(operation, () => 1)).rejects.toMatchObject({ code: 'RESULT_UNAVAILABLE' })
  })
})
