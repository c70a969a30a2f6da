import fc from 'fast-check'
import { expect, test } from 'vitest'
import {
  checkProfile,
  KEY_LENGTH_MIN,
  type KeyCharset,
  type ProviderProfile,
  providerKey,
  providers,
} from '../../src/effect/provider/index.ts'

function limits(lengthMax: number, charset: KeyCharset): ProviderProfile {
  return { ...providers.generic, key: { ...providers.generic.key, lengthMax, charset } }
}

const CHARSETS: Readonly<Record<KeyCharset, RegExp>> = {
  'visible-ascii': /^[\x21-\x7e]+$/,
  bare: /^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+$/,
  token: /^[A-Za-z0-9_-]+$/,
  uuid: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/,
}

/** Keys of users and keys that look like ours, so that both kinds meet. */
const anyKey = fc
  .oneof(
    fc.string({ minLength: 1, unit: 'binary', maxLength: 300 }),
    fc.string({ minLength: 1, unit: 'grapheme-ascii', maxLength: 80 }),
    fc.uuid(),
    fc.nat(9).map((index) => `order-${index}`),
    fc.string({ minLength: 1, maxLength: 80 }).map((text) => `eo1-${text}`),
    fc.string({ minLength: 1, maxLength: 300 }).map((text) => providerKey(text, limits(45, 'token'))),
    fc.string({ minLength: 1, maxLength: 300 }).map((text) => providerKey(text, limits(36, 'uuid'))),
  )
  .filter((key) => key.isWellFormed())

const anyLimits = fc
  .tuple(
    fc.integer({ min: KEY_LENGTH_MIN, max: 300 }),
    fc.constantFrom<KeyCharset>('visible-ascii', 'bare', 'token', 'uuid'),
  )
  .filter(([lengthMax, charset]) => charset !== 'uuid' || lengthMax >= 36)

// These are stored at providers. A vector that changes is a second charge for whoever retries across the release.
test.each([
  ['stripeV1', 'orders.create/order-7/charge', 'orders.create/order-7/charge'],
  ['stripeV1', 'a,b;c"d', 'a,b;c"d'],
  ['stripeV1', 'bestellung-ß', 'eo1-xGX-U21fr7rAprVqo4PAtPdhFelHf-UOQNhMRgukK1Y'],
  ['stripeV1', 'x'.repeat(255), 'x'.repeat(255)],
  ['stripeV1', 'x'.repeat(256), 'eo1-7jrmFrmNujHpmDrF4C4hF104OUDRX_3mepJrbHBvRqs'],
  ['stripeV1', 'eo1-mine', 'eo1-tQcWr9BOKvju0bmtW-hexm8fIg2PCNTOuT7RHE7u8Vk'],
  ['effectivelyOnce', 'invoice-create:order-7', 'invoice-create:order-7'],
  ['effectivelyOnce', 'a,b', 'eo1-NDu43G-4b7tDOCABBthWNjjo09hVEnsxExNmBk9hQ8g'],
  ['paypal', 'x'.repeat(109), 'eo1-urMYumVdQQanb47SpC98qGlh2ef_JzsfkUySHR2aEgE'],
  ['adyen', 'x'.repeat(65), 'eo1-8V5xsVfUhjSpr5uVV0a_DKa-s5eke5guk4FFOK55Kx0'],
  ['square', 'x'.repeat(45), 'x'.repeat(45)],
  ['square', 'x'.repeat(46), 'eo1-I3TT9TrIYv7nw45TdBKDEW1LNu-v4n9PfFa9Id7_k'],
  ['square', '2c2b3c3e-6f5a-4a39-9d8e-0d2a7d1c9b11', '2c2b3c3e-6f5a-4a39-9d8e-0d2a7d1c9b11'],
] as const)('R16: %s gets a key for %s that no release changes', (name, internalKey, expected) => {
  expect(providerKey(internalKey, providers[name])).toBe(expected)
})

test.each([
  [36, 'token', 'order 7', 'eo1-NfCl5mQcrTYxj5YUVFMqFLJ2LlHGMJhs'],
  [32, 'token', 'order 7', 'eo1-NfCl5mQcrTYxj5YUVFMqFLJ2LlHG'],
  [26, 'token', 'order 7', 'eo1-NfCl5mQcrTYxj5YUVFMqFL'],
  [36, 'uuid', 'order 7', '35f0a5e6-641c-8d36-b18f-961454532a14'],
  [36, 'uuid', '2c2b3c3e-6f5a-4a39-9d8e-0d2a7d1c9b11', '2c2b3c3e-6f5a-4a39-9d8e-0d2a7d1c9b11'],
  [36, 'uuid', '2c2b3c3e-6f5a-8a39-9d8e-0d2a7d1c9b11', '5e732393-e523-8d4c-a8fe-1496916c58e6'],
  [36, 'uuid', '2C2B3C3E-6F5A-4A39-9D8E-0D2A7D1C9B11', '9528501f-b011-8a0f-84c5-bb1434d239c9'],
] as const)(
  'R16: at %i characters of %s, %s gets a key that no release changes',
  (lengthMax, charset, internalKey, expected) => {
    expect(providerKey(internalKey, limits(lengthMax, charset))).toBe(expected)
  },
)

test('R16: a key that fits is passed on unchanged, any other keeps every limit', () => {
  fc.assert(
    fc.property(anyKey, anyLimits, (key, [lengthMax, charset]) => {
      const mapped = providerKey(key, limits(lengthMax, charset))
      expect(mapped.length).toBeLessThanOrEqual(lengthMax)
      expect(mapped).toMatch(CHARSETS[charset])
      expect(providerKey(key, limits(lengthMax, charset))).toBe(mapped)
      const ours = /^eo1-/i.test(key) || (charset === 'uuid' && key[14] === '8')
      if (!ours && key.length <= lengthMax && CHARSETS[charset].test(key)) expect(mapped).toBe(key)
    }),
    { numRuns: 2_000 },
  )
})

test('R16: distinct keys stay distinct, also when one looks like the hash of another', () => {
  fc.assert(
    fc.property(fc.array(anyKey, { minLength: 2, maxLength: 20 }), anyLimits, (keys, [lengthMax, charset]) => {
      const profile = limits(lengthMax, charset)
      // A key that is what another one was mapped to is the worst case.
      const all = new Set([...keys, ...keys.map((key) => providerKey(key, profile))])
      expect(new Set([...all].map((key) => providerKey(key, profile))).size).toBe(all.size)
    }),
    { numRuns: 1_000 },
  )
})

test.each(['', '\ud800', 'a\udfff', 7 as unknown as string])(
  'R16: %j is refused, because two such keys could become one',
  (key) => {
    expect(() => providerKey(key, providers.stripeV1)).toThrow(TypeError)
  },
)

test.each([
  ['lengthMax', { key: { ...providers.aws.key, lengthMax: 25 } }],
  ['lengthMax', { key: { ...providers.aws.key, lengthMax: Number.NaN } }],
  ['charset', { key: { ...providers.aws.key, charset: 'hex' as KeyCharset } }],
  ['lengthMax', { key: { ...providers.aws.key, charset: 'uuid' as const, lengthMax: 32 } }],
  ['keyLifetimeMs', { keyLifetimeMs: 0 }],
  ['keyLifetimeMs', { keyLifetimeMs: -1 }],
  ['keyLifetimeMs', { keyLifetimeMs: 1.5 }],
  ['name', { name: 'Acme Pay' }],
])('B16: a profile with a wrong %s is refused: %j', (member, change) => {
  expect(() => checkProfile({ ...providers.aws, ...change })).toThrow(new RegExp(`profile\\..*${member}`))
})

test('every profile that is shipped is valid, says where its facts stand, and has a name of its own', () => {
  const all = Object.values(providers)
  for (const profile of all) {
    expect(checkProfile(profile)).toBe(profile)
    expect(profile.sources.length).toBeGreaterThan(0)
    expect(profile.lookUp.how).not.toBe('')
  }
  expect(new Set(all.map(({ name }) => name)).size).toBe(all.length)
})
