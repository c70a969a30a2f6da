/**
 * Provider key: our key as the provider can take it.
 *
 * A key that fits is passed on unchanged, so that every layer and every log shows the same one. Any other key is replaced
 * by its hash. The mapping is stable for ever: a key made by one release is found again by the next, or a retry across a
 * deployment would be a second charge. Golden vectors in the tests hold it still.
 *
 * Distinct keys stay distinct: hashed ones start with a prefix (or, where only UUIDs fit, have version 8), and a key
 * that already looks like that is hashed although it would fit.
 *
 * @module
 */

import { hash } from '../../shared/crypto.ts'
import { describe } from '../../shared/options.ts'
import { checkProfile, type KeyCharset, type ProviderProfile } from './profile.ts'

const PREFIX = 'eo1-'
/** Keeps our hashes apart from other uses of SHA-256 over the same key. */
const DOMAIN = 'effectively-once provider key 1\n'
/** 256 bits in base64url. */
const DIGEST_CHARACTERS = 43

/** Keys that a provider's charset takes, whatever their length. */
export const KEY_FITS: Readonly<Record<KeyCharset, RegExp>> = {
  'visible-ascii': /^[!-~]+$/,
  bare: /^(?:(?![",;\\])[!-~])+$/,
  token: /^[A-Za-z0-9_-]+$/,
  uuid: /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/,
}
const MADE_HERE: Readonly<Record<KeyCharset, RegExp>> = {
  'visible-ascii': /^eo1-/i,
  bare: /^eo1-/i,
  token: /^eo1-/i,
  uuid: /^.{14}8/,
}

/**
 * The key to send to the provider for one of our keys.
 *
 * @param internalKey - Any text of well-formed Unicode; what `op.effect` derives from operation and effect.
 * @returns `internalKey` itself when it fits the provider's length and characters, else a hash of at least 128 bits
 *   (122 where only UUIDs fit). Always the same for the same key and the same limits.
 * @throws {TypeError} Empty or ill-formed text: two of these could become one key.
 */
export function providerKey(internalKey: string, profile: ProviderProfile): string {
  const { lengthMax, charset } = checkProfile(profile).key
  if (typeof internalKey !== 'string' || internalKey === '' || !internalKey.isWellFormed()) {
    throw new TypeError(`providerKey takes a non-empty key of well-formed Unicode, got ${describe(internalKey)}`)
  }
  const fits = internalKey.length <= lengthMax && KEY_FITS[charset].test(internalKey)
  if (fits && !MADE_HERE[charset].test(internalKey)) return internalKey
  return charset === 'uuid' ? hashedUuid(internalKey) : hashedToken(internalKey, lengthMax)
}

function hashedToken(internalKey: string, lengthMax: number): string {
  const room = Math.min(DIGEST_CHARACTERS, lengthMax - PREFIX.length)
  return PREFIX + hash('sha256', DOMAIN + internalKey, 'base64url').slice(0, room)
}

/** Version 8 of RFC 9562: 122 bits of the hash. */
function hashedUuid(internalKey: string): string {
  const hex = hash('sha256', DOMAIN + internalKey, 'hex')
  const variant = ((Number.parseInt(hex.slice(16, 17), 16) & 0x3) | 0x8).toString(16)
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    variant + hex.slice(17, 20),
    hex.slice(20, 32),
  ].join('-')
}
