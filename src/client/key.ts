/**
 * The key: names the intent, made once.
 *
 * @module
 */

const KEY = /^[\x21-\x7e]{1,255}$/
/** What cannot stand in a key that is sent without quotes. */
const NEEDS_QUOTES = /["\\,;]/

/**
 * A random UUID (version 4). Made from random bytes because `crypto.randomUUID` exists on secure pages only.
 */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}

/** Whether a key may go over HTTP at all. */
export function isKey(value: unknown): value is string {
  return typeof value === 'string' && KEY.test(value)
}

/**
 * The header's value. Plain where that is unambiguous, as nearly every API documents it; else as a Structured Field
 * String, which is also what `quoted` asks for always.
 *
 * @see draft-ietf-httpapi-idempotency-key-header, section 2.1; RFC 9651, section 3.3.3
 */
export function keyHeader(key: string, quoted: boolean): string {
  if (!quoted && !NEEDS_QUOTES.test(key)) return key
  return `"${key.replaceAll(/["\\]/g, '\\$&')}"`
}
