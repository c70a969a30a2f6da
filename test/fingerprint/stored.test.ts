import { createHmac } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import {
  type FingerprintSecrets,
  fingerprint,
  fingerprintParsed,
  matchesStored,
  storedFingerprint,
  validateFingerprintSecrets,
} from '../../src/fingerprint/fingerprint.ts'

const oldKey = Buffer.alloc(32, 1)
const newKey = Buffer.alloc(16, 2)
const before: FingerprintSecrets = { current: '2023', keys: { '2023': oldKey } }
const rotated: FingerprintSecrets = { current: '2024', keys: { '2023': oldKey, '2024': newKey } }
const afterwards: FingerprintSecrets = { current: '2024', keys: { '2024': newKey } }

const payload = fingerprint({ card: '4242', amount: 5 })
const otherPayload = fingerprint({ card: '4243', amount: 5 })

describe('without secrets', () => {
  test('R03: the fingerprint itself is stored, and only the same payload matches it', () => {
    const stored = storedFingerprint(payload, undefined)
    expect(stored).toEqual({ value: payload.value, mode: 'canonical', keyId: null })
    expect(matchesStored(payload, stored, undefined)).toBe('same')
    expect(matchesStored(otherPayload, stored, undefined)).toBe('other')
  })

  test('a parsed body matches what was stored of the same body in canonical mode', () => {
    const stored = storedFingerprint(fingerprintParsed({ amount: 5, card: '4242' }), undefined)
    expect(stored.mode).toBe('parsed')
    expect(matchesStored(payload, stored, undefined)).toBe('same')
  })

  test('bytes of another length are unreadable and throw nothing', () => {
    for (const bytes of [0, 16, 31, 33]) {
      expect(matchesStored(payload, { value: Buffer.alloc(bytes), keyId: null }, undefined)).toBe('unreadable')
    }
  })
})

describe('with secrets', () => {
  test('R03 T4: what is stored cannot be recomputed from the payload without the key', () => {
    const stored = storedFingerprint(payload, before)
    expect(stored.keyId).toBe('2023')
    expect(stored.value).toHaveLength(32)
    expect(Buffer.from(stored.value).equals(payload.value)).toBe(false)
    const expected = createHmac('sha256', oldKey)
      .update('effectively-once stored fingerprint 1\n')
      .update(payload.value)
    expect(Buffer.from(stored.value).toString('hex')).toBe(expected.digest('hex'))
  })

  test('R03 T4: another key gives another stored value for the same payload', () => {
    const [a, b] = [storedFingerprint(payload, before), storedFingerprint(payload, afterwards)]
    expect(Buffer.from(a.value).equals(b.value)).toBe(false)
  })

  test('SC23: after rotation old records still match, new ones carry the new key', () => {
    const old = storedFingerprint(payload, before)
    expect(matchesStored(payload, old, rotated)).toBe('same')
    expect(matchesStored(otherPayload, old, rotated)).toBe('other')
    expect(storedFingerprint(payload, rotated).keyId).toBe('2024')
  })

  test('SC23: once the key is gone the record is unreadable, for the same payload too', () => {
    const old = storedFingerprint(payload, before)
    expect(matchesStored(payload, old, afterwards)).toBe('unreadable')
    expect(matchesStored(payload, old, undefined)).toBe('unreadable')
  })

  test('records stored before there were secrets stay comparable', () => {
    const unkeyed = storedFingerprint(payload, undefined)
    expect(matchesStored(payload, unkeyed, before)).toBe('same')
    expect(matchesStored(otherPayload, unkeyed, before)).toBe('other')
  })

  test('a keyed value passed off as unkeyed, or the reverse, does not match', () => {
    const stored = storedFingerprint(payload, before)
    expect(matchesStored(payload, { ...stored, keyId: null }, before)).toBe('other')
    expect(matchesStored(payload, { value: payload.value, keyId: '2023' }, before)).toBe('other')
  })

  test.each(['__proto__', 'constructor', 'toString', '', '2023 '])('T10: key id %j of a row finds no key', (keyId) => {
    expect(matchesStored(payload, { value: payload.value, keyId }, before)).toBe('unreadable')
  })
})

describe('malformed secrets are a TypeError that names the option and shows no secret', () => {
  test.each<[string, unknown, string]>([
    ['no object', 'hunter2hunter2hunter2', 'secrets takes { current, keys }'],
    ['null', null, 'secrets takes { current, keys }, got null'],
    ['no keys', { current: 'a' }, 'secrets.keys takes an object'],
    ['an empty ring', { current: 'a', keys: {} }, 'secrets.current must be the id of one of secrets.keys'],
    ['current not in the ring', { current: 'b', keys: { a: oldKey } }, 'secrets.current must be the id'],
    ['current inherited', { current: 'toString', keys: { a: oldKey } }, 'secrets.current must be the id'],
    ['15 bytes', { current: 'a', keys: { a: Buffer.alloc(15) } }, 'secrets.keys.a needs at least 16 bytes, got 15'],
    [
      '15 bytes beside the current key',
      { current: 'a', keys: { a: oldKey, b: Buffer.alloc(15) } },
      'secrets.keys.b needs',
    ],
    ['text as key', { current: 'a', keys: { a: 'hunter2hunter2hunter2' } }, 'secrets.keys.a takes a Uint8Array'],
    ['an id with a space', { current: 'a b', keys: { 'a b': oldKey } }, 'ids must match'],
    ['an id of 33 characters', { current: 'a'.repeat(33), keys: { ['a'.repeat(33)]: oldKey } }, 'ids must match'],
    ['a misspelt option', { current: 'a', keys: { a: oldKey }, key: 1 }, 'secrets: unknown option "key"'],
  ])('%s', (_, secrets, message) => {
    const validate = (): void => validateFingerprintSecrets(secrets as FingerprintSecrets)
    expect(validate).toThrow(TypeError)
    expect(validate).toThrow(message)
    expect(validate).not.toThrow('hunter2')
    expect(() => storedFingerprint(payload, secrets as FingerprintSecrets)).toThrow(message)
  })

  test('a good ring passes', () => {
    expect(() => validateFingerprintSecrets(rotated)).not.toThrow()
  })
})
