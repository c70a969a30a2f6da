/**
 * Key time: the instant inside a time-ordered key (UUIDv7, ULID). A key older than the window in which repeats are
 * recognised may be one whose record is gone; running it would run the intent a second time.
 *
 * @module
 */

const UUID_V7 = /^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/i
const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/i
const CROCKFORD = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'

/** Milliseconds since 1970; undefined for a key without an instant. */
export function keyTimeMs(key: string): number | undefined {
  const uuid = UUID_V7.exec(key)
  if (uuid !== null) return Number.parseInt(`${uuid[1]}${uuid[2]}`, 16)
  if (!ULID.test(key)) return undefined
  let ms = 0
  for (const digit of key.slice(0, 10).toUpperCase()) ms = ms * 32 + CROCKFORD.indexOf(digit)
  return ms
}
