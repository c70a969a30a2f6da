import { createContext, runInContext } from 'node:vm'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { CANONICAL_CHARS_MAX, canonicalJson, canonicalParsedJson } from '../../src/fingerprint/canonical-value.ts'
import { json } from './spelling.ts'
import { vectorBytes, vectorCases } from './vectors.ts'

describe('RFC 8785 documents as values (R04)', () => {
  test.each(['arrays', 'french', 'structures', 'unicode', 'values', 'weird'])('%s comes out as published', (name) => {
    const text = canonicalJson(JSON.parse(vectorBytes(`jcs/input/${name}.json`).toString('utf8')))
    const bytes = Buffer.from(text, 'utf8')
    expect(bytes.toString('hex')).toBe(vectorBytes(`jcs/output/${name}.json`).toString('hex'))
    const hex = vectorBytes(`jcs/outhex/${name}.txt`).toString('latin1').replace(/\s/g, '')
    expect(bytes.toString('hex')).toBe(hex)
  })

  test('10,000 doubles get the number text of ECMAScript', () => {
    const lines = vectorBytes('jcs/es6-numbers-10k.txt').toString('latin1').trim().split('\n')
    expect(lines).toHaveLength(10_000)
    for (const line of lines) {
      const [bits = '', text] = line.split(',')
      expect(canonicalJson(Buffer.from(bits.padStart(16, '0'), 'hex').readDoubleBE()), bits).toBe(text)
    }
  })

  interface Edge {
    readonly name: string
    readonly input_hex: string
    readonly mode: string
    readonly canonical?: string
  }
  const edges = vectorCases<Edge>('jcs-edge/edge.json').filter(({ mode }) => mode === 'canonical')
  test.each(edges)('$name: the parsed value has the canonical text of the body', ({ input_hex, canonical }) => {
    expect(canonicalJson(JSON.parse(Buffer.from(input_hex, 'hex').toString('utf8')))).toBe(canonical)
  })
})

describe('what JSON leaves out or converts', () => {
  test('members that are undefined are left out, null ones stay', () => {
    expect(canonicalJson({ b: undefined, a: null, c: { d: undefined } })).toBe('{"a":null,"c":{}}')
  })

  test('Date, URL and anything with toJSON is what it says of itself', () => {
    const at = new Date(Date.UTC(2024, 0, 2, 3, 4, 5, 6))
    class Money {
      toJSON(key: string): unknown {
        return { under: key, amount: '12.50' }
      }
    }
    expect(canonicalJson({ at, site: new URL('https://example.com/a'), price: new Money() })).toBe(
      '{"at":"2024-01-02T03:04:05.006Z","price":{"amount":"12.50","under":"price"},"site":"https://example.com/a"}',
    )
    expect(canonicalJson([new Money()])).toBe('[{"amount":"12.50","under":"0"}]')
    expect(canonicalJson(new Money())).toBe('{"amount":"12.50","under":""}')
  })

  test('a member whose toJSON gives undefined is left out, in an array it is refused', () => {
    const nothing = { toJSON: () => undefined }
    expect(canonicalJson({ a: 1, nothing })).toBe('{"a":1}')
    expect(() => canonicalJson([nothing])).toThrow('payload at $[0] is undefined')
  })

  test('objects without prototype and from another realm are plain', () => {
    const foreign: unknown = runInContext('({ b: [1, { a: new Date(0) }], a: Object.create(null) })', createContext())
    expect(canonicalJson(foreign)).toBe('{"a":{},"b":[1,{"a":"1970-01-01T00:00:00.000Z"}]}')
  })

  test('for whatever is accepted, the text is that of the value after a trip through JSON', () => {
    fc.assert(
      fc.property(fc.anything({ withDate: true, withNullPrototype: true, stringUnit: 'binary' }), (value) => {
        let text: string
        try {
          text = canonicalJson(value)
        } catch (error) {
          expect(error).toBeInstanceOf(TypeError)
          return
        }
        expect(text).toBe(canonicalJson(JSON.parse(JSON.stringify(value))))
        expect(JSON.parse(text)).toEqual(JSON.parse(JSON.stringify(value)))
      }),
      { numRuns: 2_000 },
    )
  })

  test('long strings are escaped as short ones are', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.nat({ max: 60 }), (text, padding) => {
        const long = `${'x'.repeat(padding)}${text}`
        expect(canonicalJson(long)).toBe(JSON.stringify(long))
      }),
      { numRuns: 2_000 },
    )
  })

  test('many members are sorted as few are: by UTF-16 code units', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.string({ unit: 'binary' }), { maxLength: 40 }), (names) => {
        const object = Object.fromEntries(names.map((name) => [name, 0]))
        const order = [...names].sort((a, b) => Buffer.compare(utf16(a), utf16(b)))
        expect(canonicalJson(object)).toBe(`{${order.map((name) => `${JSON.stringify(name)}:0`).join(',')}}`)
      }),
    )
    function utf16(text: string): Buffer {
      return Buffer.from(text, 'utf16le').swap16()
    }
  })
})

describe('what is refused, with the path and never the value', () => {
  class Order {
    readonly secret = 'hunter2'
  }
  const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)])
  const cycle: Record<string, unknown> = {}
  cycle['self'] = { again: cycle }

  test.each<[string, unknown, string]>([
    ['undefined at the top', undefined, 'payload at $ is undefined'],
    ['undefined in an array', { list: [1, undefined] }, 'payload at $.list[1] is undefined or a hole'],
    ['a hole', { list: Array(2) }, 'payload at $.list[0] is undefined or a hole'],
    ['a function', { a: { run: () => 1 } }, 'payload at $.a.run is a function'],
    ['a symbol', { a: Symbol('hunter2') }, 'payload at $.a is a symbol'],
    ['a member under a symbol', { a: { [Symbol('x')]: 'hunter2' } }, 'payload at $.a has a member under a symbol'],
    ['a BigInt', { id: 5n }, 'payload at $.id is a BigInt'],
    ['NaN', { n: Number.NaN }, 'payload at $.n is not a finite number'],
    ['Infinity', [Number.NEGATIVE_INFINITY], 'payload at $[0] is not a finite number'],
    ['a lone surrogate', { a: 'hunter2\ud800' }, 'payload at $.a holds a lone surrogate'],
    ['a lone surrogate in a long text', [`${'hunter2'.repeat(9)}\udc00`], 'payload at $[0] holds a lone surrogate'],
    ['a lone surrogate in a key', { a: { '\udead': 1 } }, 'payload at $.a["\\udead"] holds a lone surrogate'],
    ['an invalid Date', { at: new Date(Number.NaN) }, 'payload at $.at is an invalid Date'],
    ['a Map', { m: new Map([['hunter2', 1]]) }, 'payload at $.m is neither'],
    ['a Set', new Set(['hunter2']), 'payload at $ is neither'],
    ['a RegExp', { r: /hunter2/ }, 'payload at $.r is neither'],
    ['an Error', { e: new Error('hunter2') }, 'payload at $.e is neither'],
    ['a forgotten await', { p: Promise.resolve('hunter2') }, 'payload at $.p is neither'],
    ['a boxed text', { s: Object('hunter2') }, 'payload at $.s is neither'],
    ['a boxed BigInt', { s: Object(5n) }, 'payload at $.s is neither'],
    ['a class instance', { o: new Order() }, 'payload at $.o is neither'],
    ['a subclass of Array', { o: new (class List extends Array {})() }, 'payload at $.o is neither'],
    ['inherited members', { o: Object.create({ hunter2: 1 }) }, 'payload at $.o is neither'],
    ['a Buffer', { b: Buffer.from('hunter2') }, 'payload at $.b holds bytes'],
    ['a Uint8Array', { b: new Uint8Array(3) }, 'payload at $.b holds bytes'],
    ['a Float64Array', [new Float64Array(3)], 'payload at $[0] holds bytes'],
    ['an ArrayBuffer', [new ArrayBuffer(3)], 'payload at $[0] is neither'],
    ['a Map from toJSON', { m: { toJSON: () => new Map() } }, 'payload at $.m is neither'],
    ['129 levels', deep(129), 'is nested deeper than 128, or refers to itself'],
    ['a cycle', cycle, 'payload at $.self.again.self.again'],
  ])('%s', (_, value, message) => {
    const run = (): string => canonicalJson(value)
    expect(run).toThrow(TypeError)
    expect(run).toThrow(message)
    expect(run).not.toThrow('hunter2')
  })

  test('128 levels are taken', () => {
    expect(canonicalJson(deep(128))).toBe(`${'['.repeat(128)}1${']'.repeat(128)}`)
  })

  test('a path names siblings right after nested ones', () => {
    expect(() => canonicalJson({ a: { b: [1, { c: 2 }] }, d: [{}, [[]], Number.NaN] })).toThrow('$.d[2] is not')
  })

  test('long keys are cut in a message', () => {
    expect(() => canonicalJson({ ['k'.repeat(500)]: { x: Number.NaN } })).toThrow(`$["${'k'.repeat(64)}"].x is not`)
  })

  test('a value that refers to one part many times is bounded by the length of its text', () => {
    let bomb: unknown = 'x'.repeat(1_048_576)
    for (let level = 0; level < 100; level++) bomb = [bomb, bomb]
    expect(() => canonicalJson(bomb)).toThrow(`more than ${CANONICAL_CHARS_MAX} characters`)
  })
})

describe('T10: prototype pollution', () => {
  const corpus = [
    '{"__proto__":{"polluted":true}}',
    '{"__proto__":null}',
    '{"__proto__":[1]}',
    '{"constructor":{"prototype":{"polluted":true}}}',
    '{"a":{"__proto__":{"toJSON":1,"toString":2}}}',
    '{"hasOwnProperty":1,"isPrototypeOf":2,"propertyIsEnumerable":3,"valueOf":4}',
    '{"__defineGetter__":1,"__lookupSetter__":2,"length":3,"then":4}',
    '{"\\u005f_proto__":{"x":1}}',
    '[{"__proto__":{"0":"x"}},{"prototype":{}}]',
  ]
  test.each(corpus)('%s keeps every member and changes no prototype', (text) => {
    const before = Object.getOwnPropertyNames(Object.prototype)
    const canonical = canonicalJson(JSON.parse(text))
    expect(canonical).toHaveLength(text.replace('\\u005f', '_').length)
    expect(canonicalJson(JSON.parse(canonical))).toBe(canonical)
    expect(Object.getOwnPropertyNames(Object.prototype)).toEqual(before)
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined()
  })

  test('members that a polluted prototype adds are not in the text', () => {
    const prototype = Object.prototype as Record<string, unknown>
    try {
      prototype['polluted'] = 'yes'
      prototype['toJSON'] = { not: 'a function' }
      expect(canonicalJson({ a: [{}] })).toBe('{"a":[{}]}')
    } finally {
      delete prototype['polluted']
      delete prototype['toJSON']
    }
  })
})

describe('values that a parser made', () => {
  test('have the text of the same value in the process', () => {
    fc.assert(
      fc.property(json, (value) => {
        let text: string
        try {
          text = canonicalParsedJson(value)
        } catch (error) {
          expect(JSON.stringify(value)).toMatch(/\ufffd|[0-9]{16}|e\+/)
          expect(error).toBeInstanceOf(TypeError)
          return
        }
        expect(text).toBe(canonicalJson(value))
      }),
    )
  })

  test.each<[string, string]>([
    ['{"id":9007199254740993}', 'parsed body at $.id is a whole number beyond 2^53 - 1'],
    ['{"id":1e400}', 'parsed body at $.id is not a finite number'],
    ['{"name":"\ufffd"}', 'parsed body at $.name holds U+FFFD'],
    ['{"\ufffd":1}', 'parsed body at $["\ufffd"] holds U+FFFD'],
    ['["\\ud800"]', 'parsed body at $[0] holds a lone surrogate'],
  ])('%s is refused because a loss shows', (text, message) => {
    expect(() => canonicalParsedJson(JSON.parse(text))).toThrow(message)
  })

  test('the refusal says how to keep the raw body', () => {
    expect(() => canonicalParsedJson([2 ** 53])).toThrow('express.json({ verify })')
  })

  test('the largest safe numbers, fractions and U+FFFE are taken', () => {
    const value = [Number.MAX_SAFE_INTEGER, -Number.MAX_SAFE_INTEGER, 1e-7, 0.1, '\ufffe']
    expect(canonicalParsedJson(value)).toBe(canonicalJson(value))
  })
})
