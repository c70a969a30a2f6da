/**
 * Length-prefixed fields: how several texts become one hash input without a delimiter that a sender can forge.
 *
 * `a=b&c` and `a`, `b&c` joined with separators are the same bytes; with 8 bytes of length before each they are not.
 *
 * @module
 */

import { isWellFormed } from './json-string.ts'

const LENGTH_BYTES = 8
const TWO_32 = 2 ** 32

/** Bytes of the fields, one after the other: big-endian 64-bit length, content. */
export function lengthPrefixed(fields: readonly (string | Uint8Array)[]): Buffer {
  const sizes = fields.map(sizeOf)
  const bytes = Buffer.allocUnsafe(sizes.reduce((sum, size) => sum + LENGTH_BYTES + size, 0))
  let at = 0
  for (const [index, field] of fields.entries()) {
    const size = sizes[index] as number
    bytes.writeUInt32BE(Math.floor(size / TWO_32), at)
    bytes.writeUInt32BE(size % TWO_32, at + 4)
    at += LENGTH_BYTES
    if (typeof field === 'string') bytes.write(field, at, size, 'utf8')
    else bytes.set(field, at)
    at += size
  }
  return bytes
}

function sizeOf(field: string | Uint8Array): number {
  if (typeof field !== 'string') return field.byteLength
  if (!isWellFormed(field)) throw new TypeError('request: text with a lone surrogate, which UTF-8 cannot say')
  return Buffer.byteLength(field)
}
