import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { readJson, readText, UndecodableBody } from '../../src/inbox/body.ts'
import { DeliveredMessage } from '../../src/inbox/message.ts'
import { delivered } from './delivered.ts'

const bytes = (text: string) => Buffer.from(text, 'utf8')

describe('JSON bodies', () => {
  test.each([
    '{"__proto__":{"admin":true}}',
    '{"a":[{"__proto__":1}]}',
    '{"\\u005f_proto__":{"admin":true}}',
    '{"\\u005f\\u005f\\u0070roto\\u005f_":{"admin":true}}',
    '{"constructor":{"prototype":{"admin":true}}}',
    '{"a":{"c\\u006fnstructor":{"prototype":{}}}}',
    '[[["x",{"constructor":{"prototype":null}}]]]',
  ])('T10: %s is refused', (text) => {
    expect(() => readJson(bytes(text))).toThrow(UndecodableBody)
    expect(({} as Record<string, unknown>)['admin']).toBeUndefined()
  })

  test.each([
    ['{"constructor":"Ltd"}', { constructor: 'Ltd' }],
    ['{"text":"__proto__"}', { text: '__proto__' }],
    ['{"constructor":{"name":"a"}}', { constructor: { name: 'a' } }],
    ['"\\u005f_proto__"', '__proto__'],
  ])('T10: %s is harmless', (text, value) => {
    expect(readJson(bytes(text))).toEqual(value)
  })

  test('T10: depth is no danger', () => {
    const depth = 50_000
    const deep = `${'['.repeat(depth)}"\\u0061"${']'.repeat(depth)}`
    expect(Array.isArray(readJson(bytes(deep)))).toBe(true)
  })

  test('R34: every JSON value comes back', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = JSON.stringify(value)
        if (text.includes('__proto__')) return
        expect(readJson(bytes(text))).toEqual(JSON.parse(text))
      }),
    )
  })

  test.each(['', '{', 'nope', '{"a":1}}'])('R34: %j is undecodable, and the error does not show it', (text) => {
    const error = ((): unknown => {
      try {
        return readJson(bytes(text))
      } catch (thrown) {
        return thrown
      }
    })()
    expect(error).toBeInstanceOf(UndecodableBody)
    if (text.length > 1) expect(String(error)).not.toContain(text)
  })

  test('R34: bytes that are no UTF-8 are undecodable instead of being replaced', () => {
    expect(() => readText(Buffer.from([0x22, 0xff, 0x22]))).toThrow(UndecodableBody)
  })

  test('R34: a byte order mark is no part of the text', () => {
    expect(readJson(Buffer.from([0xef, 0xbb, 0xbf, 0x31]))).toBe(1)
  })

  test('R34: a body is a part of a larger buffer', () => {
    expect(readJson(Buffer.from('xx{"a":1}yy').subarray(2, 9))).toEqual({ a: 1 })
  })
})

describe('the body of a message', () => {
  const message = (body: Uint8Array, decode: 'json' | 'text' | 'bytes') =>
    new DeliveredMessage(delivered({ body }), undefined, { id: 'm', source: '' }, decode)

  test('R34: it is read once, at the first access', () => {
    const one = message(bytes('{"a":1}'), 'json')
    expect(one.body).toEqual({ a: 1 })
    expect(one.body).toBe(one.body)
  })

  test('R34: what cannot be read throws every time, and is remembered', () => {
    const one = message(bytes('{'), 'json')
    expect(one.undecodable).toBeUndefined()
    expect(() => one.body).toThrow(UndecodableBody)
    expect(() => one.body).toThrow(UndecodableBody)
    expect(one.undecodable).toBeInstanceOf(UndecodableBody)
  })

  test('R34: text and bytes are given as such', () => {
    expect(message(bytes('{'), 'text').body).toBe('{')
    expect(message(bytes('{'), 'bytes').body).toEqual(bytes('{'))
  })
})
