import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { canonicalText } from '../../src/fingerprint/canonical-text.ts'
import {
  type Fingerprint,
  fingerprint,
  fingerprintBytes,
  fingerprintParsed,
} from '../../src/fingerprint/fingerprint.ts'
import { changed, choose, json, respelled } from './spelling.ts'
import { vectorCases } from './vectors.ts'

function hex(print: Fingerprint): string {
  return Buffer.from(print.value).toString('hex')
}

function ofText(text: string): Fingerprint {
  return fingerprintBytes(Buffer.from(text, 'utf8'))
}

describe('fingerprint of a value', () => {
  test('R03 is SHA-256 over a label with mode and version, and the canonical text: stored ones stay valid', () => {
    const print = fingerprint({ order: 'o-7', amount: 4200.0, note: undefined })
    const label = 'effectively-once fingerprint 1 canonical\n'
    expect(print.mode).toBe('canonical')
    expect(print.value).toHaveLength(32)
    expect(hex(print)).toBe(createHash('sha256').update(`${label}{"amount":4200,"order":"o-7"}`).digest('hex'))
    expect(hex(print)).toBe('d6c9fab7b70d62082cbecd461a3f04c0977778d14e6adb223dd373d5b8a1fe1e')
  })

  test('text outside ASCII is hashed as UTF-8', () => {
    const text = '{"ort":"Zürich 😂"}'
    expect(hex(fingerprint({ ort: 'Zürich 😂' }))).toBe(
      createHash('sha256')
        .update(Buffer.from(`effectively-once fingerprint 1 canonical\n${text}`, 'utf8'))
        .digest('hex'),
    )
  })

  test('R04 SC11 B10: order of members, blanks, escapes and number forms make no difference', () => {
    fc.assert(
      fc.property(json, choose, (value, pick) => {
        const print = fingerprint(value)
        expect(hex(fingerprint(JSON.parse(respelled(value, pick))))).toBe(hex(print))
        expect(ofText(respelled(value, pick))).toEqual(print)
      }),
    )
  })

  test('R03 SC11 B10: any changed value is another payload', () => {
    fc.assert(
      fc.property(json, choose, (value, pick) => {
        const other = changed(value, pick)
        expect(hex(fingerprint(other))).not.toBe(hex(fingerprint(value)))
        expect(hex(ofText(respelled(other, pick)))).not.toBe(hex(ofText(respelled(value, pick))))
      }),
    )
  })

  test('SC11 B10: names differing in case, array order, null and absent, number and text are other payloads', () => {
    const values = [
      { a: 1 },
      { A: 1 },
      { a: '1' },
      { a: [1, 2] },
      { a: [2, 1] },
      { a: null },
      {},
      [],
      '',
      0,
      false,
      null,
      '\u00e9',
      'e\u0301',
    ]
    expect(new Set(values.map((value) => hex(fingerprint(value)))).size).toBe(values.length)
  })

  test('a payload that JSON cannot keep is refused', () => {
    expect(() => fingerprint({ when: new Map() })).toThrow(TypeError)
    expect(() => fingerprint(undefined)).toThrow(TypeError)
  })
})

describe('fingerprint of a body', () => {
  interface Edge {
    readonly name: string
    readonly input_hex: string
    readonly mode: 'canonical' | 'raw'
  }
  const edges = vectorCases<Edge>('jcs-edge/edge.json')

  test.each(edges)('$name: $mode, and for canonical ones equal to the value and to the parsed body', (edge) => {
    const body = Buffer.from(edge.input_hex, 'hex')
    const print = fingerprintBytes(body)
    expect(print.mode).toBe(edge.mode)
    if (edge.mode === 'raw') return
    const value: unknown = JSON.parse(body.toString('utf8'))
    expect(fingerprint(value)).toEqual(print)
  })

  test('no two of them are equal, except those that say the same', () => {
    const prints = new Map<string, string>()
    for (const edge of edges) {
      const body = Buffer.from(edge.input_hex, 'hex')
      const canonical = canonicalText(body)
      const said = canonical.lossless ? canonical.json : `raw ${edge.input_hex}`
      const print = hex(fingerprintBytes(body))
      expect(prints.get(print) ?? said).toBe(said)
      prints.set(print, said)
    }
  })

  test('for lossless JSON a parsed body equals the raw one, and says that it was parsed', () => {
    fc.assert(
      fc.property(json, choose, (value, pick) => {
        const text = respelled(value, pick)
        let print: Fingerprint
        try {
          print = fingerprintParsed(JSON.parse(text))
        } catch {
          return // whole numbers beyond 2^53 - 1 and U+FFFD: see the tests of canonicalParsedJson
        }
        expect(print).toEqual({ mode: 'parsed', value: ofText(text).value })
      }),
    )
  })

  test('SC11 B10: whole numbers above 2^53 that differ in the last digit are other payloads', () => {
    const prints = [
      '9007199254740992',
      '9007199254740993',
      '9007199254740994',
      '1234567890123456789',
      '1234567890123456788',
    ]
    expect(new Set(prints.map((id) => hex(ofText(`{"id":${id}}`)))).size).toBe(prints.length)
  })

  test('a raw body is never equal to a canonical one, even when it spells out its hash input', () => {
    const inner = '{"a":1}'
    for (const label of ['effectively-once fingerprint 1 canonical\n', 'effectively-once fingerprint 1 raw\n']) {
      expect(hex(fingerprintBytes(Buffer.from(label + inner)))).not.toBe(hex(fingerprint({ a: 1 })))
    }
    expect(hex(fingerprintBytes(Buffer.from(inner), { canonicalBytesMax: 0 }))).not.toBe(hex(fingerprint({ a: 1 })))
  })

  test('256 KiB are canonical, one byte more is raw, and the limit can be moved', () => {
    const body = (bytes: number): Buffer => Buffer.from(`{"a":"${'x'.repeat(bytes - 8)}"}`)
    expect(fingerprintBytes(body(262_144)).mode).toBe('canonical')
    expect(fingerprintBytes(body(262_145)).mode).toBe('raw')
    expect(fingerprintBytes(body(262_145), { canonicalBytesMax: 262_145 }).mode).toBe('canonical')
    expect(fingerprintBytes(body(100), { canonicalBytesMax: 99 }).mode).toBe('raw')
    expect(() => fingerprintBytes(body(100), { canonicalBytesMax: -1 })).toThrow('canonicalBytesMax takes')
  })

  test('no bytes make it throw', () => {
    fc.assert(
      fc.property(fc.uint8Array(), (bytes) => {
        expect(fingerprintBytes(bytes).value).toHaveLength(32)
      }),
      { numRuns: 2_000 },
    )
  })
})
