/**
 * Stored fingerprints: what goes into the database, and how a payload is compared with it.
 *
 * An unkeyed hash of a card number or an amount can be guessed by whoever reads the table (T4), so with
 * secrets the HMAC of the fingerprint is stored, together with the id of its key. Rotation: add the new key, make it
 * current, and keep the old one as long as records made with it live. A record whose key is gone is unreadable:
 * then nothing is known about its payload, and it is neither replayed nor run again.
 *
 * @module
 */

import type { KeyObject } from 'node:crypto'
import { createHmac, createSecretKey, timingSafeEqual } from '../shared/crypto.ts'
import { describe, refuseUnknownOptions } from '../shared/options.ts'
import type { Fingerprint, FingerprintMode } from './fingerprint.ts'

/** Keys for stored fingerprints. Read once, at first use; rotate by passing a new object. */
export interface FingerprintSecrets {
  /** Id of the key for new records. */
  readonly current: string
  /** Keys by id, at least 16 bytes each; ids are 1 to 32 letters, digits, `.`, `_`, `-`. */
  readonly keys: Readonly<Record<string, Uint8Array>>
}

export interface StoredFingerprint {
  /** 32 bytes: the fingerprint, or its HMAC-SHA-256 when `keyId` is not null. */
  readonly value: Uint8Array
  readonly mode: FingerprintMode
  /** Id of the key; null = stored without a key. */
  readonly keyId: string | null
}

/** `unreadable`: the stored one cannot be compared (its key is not in the ring, or it is damaged). Fail closed. */
export type FingerprintMatch = 'same' | 'other' | 'unreadable'

/**
 * Checks secrets where they are configured, so that a wrong ring stops the start and not the first request.
 *
 * @throws {TypeError} naming the option, never a secret.
 */
export function validateFingerprintSecrets(secrets: FingerprintSecrets): void {
  ringOf(secrets)
}

/**
 * The form that is stored with a record.
 *
 * @throws {TypeError} when `secrets` are malformed.
 */
export function storedFingerprint(print: Fingerprint, secrets: FingerprintSecrets | undefined): StoredFingerprint {
  if (secrets === undefined) return { value: print.value, mode: print.mode, keyId: null }
  const ring = ringOf(secrets)
  return { value: keyed(print, ring.current), mode: print.mode, keyId: ring.currentId }
}

/**
 * Whether a payload is the one that a record was made with. Compares in constant time. Records stored without a key
 * stay comparable after secrets are introduced.
 *
 * @throws {TypeError} when `secrets` are malformed.
 */
export function matchesStored(
  print: Fingerprint,
  stored: Pick<StoredFingerprint, 'value' | 'keyId'>,
  secrets: FingerprintSecrets | undefined,
): FingerprintMatch {
  if (stored.value.byteLength !== FINGERPRINT_BYTES) return 'unreadable'
  if (stored.keyId === null) return timingSafeEqual(print.value, stored.value) ? 'same' : 'other'
  const key = secrets === undefined ? undefined : ringOf(secrets).keys.get(stored.keyId)
  if (key === undefined) return 'unreadable'
  return timingSafeEqual(keyed(print, key), stored.value) ? 'same' : 'other'
}

const FINGERPRINT_BYTES = 32
const SECRET_BYTES_MIN = 16
const KEY_ID = /^[A-Za-z0-9._-]{1,32}$/
/** Keeps these HMACs apart from others that somebody makes with the same secret. */
const LABEL_STORED = 'effectively-once stored fingerprint 1\n'

function keyed(print: Fingerprint, key: KeyObject): Uint8Array {
  return createHmac('sha256', key).update(LABEL_STORED).update(print.value).digest()
}

interface Ring {
  readonly currentId: string
  readonly current: KeyObject
  /** A Map: no key id from a row can reach a prototype. (T10) */
  readonly keys: ReadonlyMap<string, KeyObject>
}

const rings = new WeakMap<FingerprintSecrets, Ring>()

function ringOf(secrets: FingerprintSecrets): Ring {
  const known = rings.get(secrets)
  if (known !== undefined) return known
  const ring = ringFrom(secrets)
  rings.set(secrets, ring)
  return ring
}

function ringFrom(secrets: FingerprintSecrets): Ring {
  if (typeof secrets !== 'object' || secrets === null) {
    throw new TypeError(`secrets takes { current, keys }, got ${describe(secrets)}`)
  }
  refuseUnknownOptions('secrets', secrets, ['current', 'keys'])
  if (typeof secrets.keys !== 'object' || secrets.keys === null) {
    throw new TypeError(`secrets.keys takes an object of bytes by key id, got ${describe(secrets.keys)}`)
  }
  const keys = new Map<string, KeyObject>()
  for (const [id, bytes] of Object.entries(secrets.keys)) {
    if (!KEY_ID.test(id)) throw new TypeError(`secrets.keys: ids must match ${KEY_ID.source}, got ${describe(id)}`)
    keys.set(id, secretKey(id, bytes))
  }
  const current = typeof secrets.current === 'string' ? keys.get(secrets.current) : undefined
  if (current === undefined) {
    throw new TypeError(`secrets.current must be the id of one of secrets.keys, got ${describe(secrets.current)}`)
  }
  return { currentId: secrets.current, current, keys }
}

function secretKey(id: string, bytes: Uint8Array): KeyObject {
  if (!(bytes instanceof Uint8Array)) {
    throw new TypeError(
      `secrets.keys.${id} takes a Uint8Array of at least ${SECRET_BYTES_MIN} bytes, got ${describe(bytes)}`,
    )
  }
  if (bytes.byteLength < SECRET_BYTES_MIN) {
    throw new TypeError(`secrets.keys.${id} needs at least ${SECRET_BYTES_MIN} bytes, got ${bytes.byteLength}`)
  }
  return createSecretKey(bytes)
}
