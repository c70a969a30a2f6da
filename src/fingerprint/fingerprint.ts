/**
 * Fingerprint: what a payload is compared by, so that one key never answers for two intents. (R03, R04)
 *
 * A fingerprint is SHA-256 over a label and the payload's canonical form, or over its raw bytes when no canonical
 * form says the same. The label names form and version and no label begins another one, so forms and
 * versions never collide. It is unkeyed: the process compares with it. What is stored may be keyed (./stored.ts).
 *
 * @module
 */

import { createHash, hash } from '../shared/crypto.ts'
import { integerOption } from '../shared/options.ts'
import { canonicalText } from './canonical-text.ts'
import { canonicalJson, canonicalParsedJson } from './canonical-value.ts'

export {
  type FingerprintMatch,
  type FingerprintSecrets,
  matchesStored,
  type StoredFingerprint,
  storedFingerprint,
  validateFingerprintSecrets,
} from './stored.ts'

/**
 * What was hashed. `canonical`: canonical JSON, or another form in which spelling does not matter. `raw`: the bytes
 * as they came. `parsed`: canonical JSON of a value that somebody else had parsed; equal to `canonical` for the same
 * content, but repeated members and surplus digits could not be looked for.
 */
export type FingerprintMode = 'canonical' | 'raw' | 'parsed'

export interface Fingerprint {
  readonly mode: FingerprintMode
  /** 32 bytes: SHA-256, unkeyed. Never log it: payloads with few possible values can be guessed from it. */
  readonly value: Uint8Array
}

/** JSON bodies above this many bytes are hashed as raw bytes. */
export const CANONICAL_BYTES_MAX = 262_144

/**
 * Fingerprint of a value in this process: equal exactly when `canonicalJson` is. Member order, spelling of
 * numbers and undefined members make no difference.
 *
 * @throws {TypeError} naming the path, when the value is not plain JSON data (see `canonicalJson`).
 * @see docs/fingerprint.md
 * @example
 * fingerprint({ order: 'o-7', amount: 4200 })
 */
export function fingerprint(payload: unknown): Fingerprint {
  return { mode: 'canonical', value: sha256Text(LABEL_CANONICAL + canonicalJson(payload)) }
}

/**
 * Fingerprint of a value that a parser made from wire JSON, for frameworks that keep no raw body. Its `value` is
 * that of `fingerprintBytes` on the body when parsing lost nothing.
 *
 * @throws {TypeError} as `fingerprint`, and when a loss can be seen (whole numbers beyond 2^53 - 1, U+FFFD).
 */
export function fingerprintParsed(body: unknown): Fingerprint {
  return { mode: 'parsed', value: sha256Text(LABEL_CANONICAL + canonicalParsedJson(body)) }
}

/**
 * Fingerprint of JSON as it came over the wire: `canonical` when a canonical form says the same, else `raw`, which
 * costs at worst a false mismatch when a sender re-spells such a body. No bytes make it throw.
 *
 * For lossless JSON it equals `fingerprint(JSON.parse(body))`.
 *
 * @param options.canonicalBytesMax - Bytes; longer bodies are `raw`. Default 262_144; 0 to 67_108_864.
 * @throws {TypeError} for an option out of its bounds.
 */
export function fingerprintBytes(
  body: Uint8Array,
  options: { readonly canonicalBytesMax?: number | undefined } = {},
): Fingerprint {
  if (body.byteLength <= canonicalBytesMax(options.canonicalBytesMax)) {
    const canonical = canonicalText(body)
    if (canonical.lossless) return { mode: 'canonical', value: sha256Text(LABEL_CANONICAL + canonical.json) }
  }
  return { mode: 'raw', value: createHash('sha256').update(LABEL_RAW).update(body).digest() }
}

/** The checked option `canonicalBytesMax`, or its default. */
export function canonicalBytesMax(option: number | undefined): number {
  return integerOption('canonicalBytesMax', option, {
    min: 0,
    max: CANONICAL_BYTES_CEILING,
    default: CANONICAL_BYTES_MAX,
  })
}

const CANONICAL_BYTES_CEILING = 67_108_864

const LABEL_CANONICAL = 'effectively-once fingerprint 1 canonical\n'
const LABEL_RAW = 'effectively-once fingerprint 1 raw\n'

/** SHA-256 of UTF-8 text. One call into OpenSSL with text out: less than half the time of a Hash object. */
function sha256Text(text: string): Uint8Array {
  return Buffer.from(hash('sha256', text, 'binary'), 'latin1')
}
