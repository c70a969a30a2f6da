import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type CanonicalText, canonicalText, type LossReason } from '../../src/fingerprint/canonical-text.ts'
import { canonicalJson } from '../../src/fingerprint/canonical-value.ts'
import { changed, choose, json, respelled } from './spelling.ts'
import { vectorBytes, vectorCases } from './vectors.ts'

function canonical(text: string): CanonicalText {
  return canonicalText(Buffer.from(text, 'utf8'))
}

function bytesOf(result: CanonicalText): string {
  return result.lossless ? Buffer.from(result.json, 'utf8').toString('hex') : `lossy: ${result.reason}`
}

describe('bodies at the edge (R04, SC11)', () => {
  interface Edge {
    readonly name: string
    readonly input_hex: string
    readonly mode: 'canonical' | 'raw'
    readonly canonical_hex?: string
    readonly reason?: LossReason
  }
  test.each(vectorCases<Edge>('jcs-edge/edge.json'))('$name: $mode $reason', (edge) => {
    const result = canonicalText(Buffer.from(edge.input_hex, 'hex'))
    expect(bytesOf(result)).toBe(edge.mode === 'canonical' ? edge.canonical_hex : `lossy: ${edge.reason}`)
  })
})

describe('RFC 8785 documents as text (R04)', () => {
  test.each(['arrays', 'french', 'structures', 'unicode', 'weird'])(
    '%s comes out as published, byte for byte',
    (name) => {
      const result = canonicalText(vectorBytes(`jcs/input/${name}.json`))
      expect(bytesOf(result)).toBe(vectorBytes(`jcs/output/${name}.json`).toString('hex'))
    },
  )

  test('values is lossy only through 333333333.33333329, whose last digit no double keeps', () => {
    const input = vectorBytes('jcs/input/values.json').toString('utf8')
    expect(canonical(input)).toEqual({ lossless: false, reason: 'number-precision' })
    const result = canonical(input.replace('333333333.33333329', '333333333.3333333'))
    expect(bytesOf(result)).toBe(vectorBytes('jcs/output/values.json').toString('hex'))
  })

  test('10,000 number texts of ECMAScript are their own canonical form', () => {
    const texts = vectorBytes('jcs/es6-numbers-10k.txt')
      .toString('utf8')
      .trim()
      .split('\n')
      .map((line) => line.split(',')[1])
    expect(texts).toHaveLength(10_000)
    const list = `[${texts.join(',')}]`
    expect(canonical(list)).toEqual({ lossless: true, json: list })
  })
})

describe('JSON parsing suite: no text is canonicalised that a strict parser refuses or understands otherwise', () => {
  interface Parsing {
    readonly file: string
    readonly expect: 'accept' | 'reject' | 'either' | 'transform'
    readonly hex: string
  }
  const suite = vectorCases<Parsing>('json-parsing/json-test-suite.json')

  const repeated = ['test_parsing/y_object_duplicated_key.json', 'test_parsing/y_object_duplicated_key_and_value.json']

  test.each(suite)('$file ($expect)', ({ file, expect: expected, hex }) => {
    const bytes = Buffer.from(hex, 'hex')
    const result = canonicalText(bytes)
    if (expected === 'reject') expect(result.lossless).toBe(false)
    if (expected === 'accept') {
      expect(bytesOf(result)).toBe(
        repeated.includes(file) ? 'lossy: duplicate-key' : Buffer.from(canonicalJson(parsed(bytes))).toString('hex'),
      )
    }
    if (result.lossless) expect(result.json).toBe(canonicalJson(parsed(bytes)))
  })

  function parsed(bytes: Buffer): unknown {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes))
  }

  test('93 of the 95 documents that must be accepted are canonical', () => {
    const accepted = suite.filter((document) => document.expect === 'accept')
    expect(accepted).toHaveLength(95)
    expect(accepted.filter(({ hex }) => canonicalText(Buffer.from(hex, 'hex')).lossless)).toHaveLength(93)
  })

  test('100,000 open arrays, and 50,000 open arrays and objects, are too deep', () => {
    expect(canonical('['.repeat(100_000))).toEqual({ lossless: false, reason: 'depth' })
    expect(canonical('[{"":'.repeat(50_000))).toEqual({ lossless: false, reason: 'depth' })
  })
})

describe('depth', () => {
  test('128 levels of arrays and objects are canonical, 129 are not', () => {
    const nested = (levels: number): string => '[{"a":'.repeat(levels / 2) + '1' + '}]'.repeat(levels / 2)
    expect(canonical(nested(128))).toEqual({ lossless: true, json: nested(128) })
    expect(canonical(`[${nested(128)}]`)).toEqual({ lossless: false, reason: 'depth' })
  })

  test('129 arrays alone and 129 objects alone are too deep', () => {
    expect(canonical(`${'['.repeat(129)}${']'.repeat(129)}`)).toEqual({ lossless: false, reason: 'depth' })
    expect(canonical(`${'{"a":'.repeat(128)}{}${'}'.repeat(128)}`)).toEqual({ lossless: false, reason: 'depth' })
    expect(canonical(`${'{"a":'.repeat(127)}{}${'}'.repeat(127)}`).lossless).toBe(true)
  })

  test('what follows a closed level does not count as deeper', () => {
    const wide = `[${Array.from({ length: 1_000 }, () => '[[1]]').join(',')}]`
    expect(canonical(wide)).toEqual({ lossless: true, json: wide })
  })
})

describe('strings: every unit of ASCII, in short and long ones', () => {
  test.each(Array.from({ length: 128 }, (_, unit) => unit))('unit %i', (unit) => {
    const character = String.fromCharCode(unit)
    for (const [before, after] of [
      ['', ''],
      ['0'.repeat(40), ''],
      ['0'.repeat(40), '0'.repeat(40)],
    ] as const) {
      const escaped = `"${before}\\u${unit.toString(16).padStart(4, '0')}${after}"`
      const json = JSON.stringify(before + character + after)
      expect(canonical(escaped)).toEqual({ lossless: true, json })
      expect(canonicalJson(before + character + after)).toBe(json)
      const standsForItself = unit >= 0x20 && character !== '"' && character !== '\\'
      expect(canonical(`"${before}${character}${after}"`).lossless).toBe(standsForItself)
    }
  })
})

describe('numbers: a double must keep every digit', () => {
  test.each([
    ['1', '1'],
    ['-1.50e+002', '-150'],
    ['100000000000000000000000', '1e+23'],
    ['0e999999999999999999999', '0'],
    ['-0.000', '0'],
    ['5e-324', '5e-324'],
    ['1.7976931348623157e308', '1.7976931348623157e+308'],
    [`0.${'0'.repeat(400)}1e401`, '1'],
    [`1${'0'.repeat(300)}`, '1e+300'],
    ['9007199254740994', '9007199254740994'],
  ])('%s is %s', (written, text) => {
    expect(canonical(written)).toEqual({ lossless: true, json: text })
  })

  test.each([
    ['4.9e-324', 'number-precision'],
    ['9007199254740993', 'number-precision'],
    ['-9007199254740993', 'number-precision'],
    ['9007199254740993.0', 'number-precision'],
    ['0.30000000000000004441', 'number-precision'],
    ['1e-400', 'number-precision'],
    [`1e-${'9'.repeat(400)}`, 'number-precision'],
    ['1e309', 'number-range'],
    ['-1e309', 'number-range'],
    [`1e${'9'.repeat(400)}`, 'number-range'],
  ])('%s has no canonical form: %s', (written, reason) => {
    expect(canonical(`[${written}]`)).toEqual({ lossless: false, reason })
  })

  test('any two different whole numbers around 2^53 stay different or fall back to bytes', () => {
    const seen = new Set<string>()
    for (let n = 2n ** 53n - 50n; n < 2n ** 53n + 50n; n++) {
      const result = canonical(String(n))
      const form = result.lossless ? result.json : `raw ${n}`
      expect(seen.has(form)).toBe(false)
      seen.add(form)
    }
  })
})

describe('properties', () => {
  test('SC11 B10: another order of members, other blanks, escapes and number forms give the same canonical text', () => {
    fc.assert(
      fc.property(json, choose, (value, pick) => {
        expect(canonical(respelled(value, pick))).toEqual({ lossless: true, json: canonicalJson(value) })
      }),
      { numRuns: 1_000 },
    )
  })

  test('SC11: another value gives another canonical text', () => {
    fc.assert(
      fc.property(json, choose, (value, pick) => {
        const other = changed(value, pick)
        expect(canonical(respelled(other, pick))).not.toEqual(canonical(respelled(value, pick)))
      }),
      { numRuns: 1_000 },
    )
  })

  test('canonical text is its own canonical form', () => {
    fc.assert(
      fc.property(json, (value) => {
        const text = canonicalJson(value)
        expect(canonical(text)).toEqual({ lossless: true, json: text })
      }),
    )
  })

  test('broken text never throws, and is canonical only if JSON.parse agrees on what it says', () => {
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 40 }),
      fc
        .string({ unit: fc.constantFrom(...Array.from('{}[]",:\\u0123dDeE+-.ntrfalse \n\u0000é')) })
        .map((text) => Buffer.from(text)),
      fc.tuple(json, fc.nat(), fc.nat({ max: 255 })).map(([value, at, byte]) => {
        const text = Buffer.from(JSON.stringify(value))
        text[at % text.length] = byte
        return text
      }),
    )
    fc.assert(
      fc.property(bytes, (input) => {
        const result = canonicalText(input)
        if (!result.lossless) return
        const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(input)
        expect(result.json).toBe(canonicalJson(JSON.parse(text)))
      }),
      { numRuns: 5_000 },
    )
  })
})

// Sizes at which anything quadratic takes far longer than the time-out of a test.
describe('T6: hostile bodies take linear time', () => {
  const lossy = (reason: LossReason): CanonicalText => ({ lossless: false, reason })
  const many = (count: number, each: (index: number) => string): string =>
    Array.from({ length: count }, (_, i) => each(i)).join(',')

  test('200,000 members in reverse order are sorted', () => {
    const result = canonical(`{${many(200_000, (index) => `"${String(999_999 - index)}":0`)}}`)
    expect(result.lossless && result.json.startsWith('{"800000":0,"800001":0')).toBe(true)
  })

  test('a repeated name among 200,000 is found', () => {
    expect(canonical(`{${many(200_000, (index) => `"k${index % 199_999}":0`)}}`)).toEqual(lossy('duplicate-key'))
  })

  test('2,000 names with 2,000 equal characters in front are sorted', () => {
    const prefix = 'p'.repeat(2_000)
    expect(canonical(`{${many(2_000, (index) => `"${prefix}${9_999 - index}":0`)}}`).lossless).toBe(true)
  })

  test('a number of 4,000,000 digits', () => {
    expect(canonical('1'.repeat(4_000_000))).toEqual(lossy('number-range'))
    expect(canonical(`0.${'1'.repeat(4_000_000)}`)).toEqual(lossy('number-precision'))
  })

  test('zeros around one digit, 4,000,000 of them', () => {
    expect(canonical(`1${'0'.repeat(4_000_000)}e-4000000`)).toEqual({ lossless: true, json: '1' })
    expect(canonical(`0.${'0'.repeat(4_000_000)}1e4000001`)).toEqual({ lossless: true, json: '1' })
    expect(canonical(`${'0'.repeat(4_000_000)}1`)).toEqual(lossy('syntax'))
  })

  test('20,000,000 blanks and a string without end', () => {
    expect(canonical(' '.repeat(20_000_000))).toEqual(lossy('syntax'))
    expect(canonical(`"${'a'.repeat(20_000_000)}`)).toEqual(lossy('syntax'))
  })

  test('500,000 escapes in one string', () => {
    expect(canonical(`"${'\\u0061'.repeat(500_000)}"`)).toEqual({ lossless: true, json: `"${'a'.repeat(500_000)}"` })
    expect(canonical(`"${'\\n'.repeat(500_000)}`)).toEqual(lossy('syntax'))
  })

  test('500,000 short values in one array, half of them empty arrays', () => {
    const list = `[${many(500_000, (index) => (index % 2 === 0 ? '[]' : '""'))}]`
    expect(canonical(list)).toEqual({ lossless: true, json: list })
  })

  test('127 levels with 10,000 members each', () => {
    const members = many(10_000, (index) => `"${index}":0`)
    const text = `${`{${members},"z":`.repeat(127)}0${'}'.repeat(127)}`
    expect(canonical(text).lossless).toBe(true)
  })
})
