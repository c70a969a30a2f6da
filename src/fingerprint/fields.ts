/**
 * Length-prefixed fields: how several texts become one hash input without a delimiter that a sender can forge.
 *
 * `a=b&c` and `a`, `b&c` joined with separators are the same bytes; with 8 bytes of length before each they are not.
 *
 * @module
 */

import { isWellFormed } from './json-string.ts'

/** Bytes of the fields, one after the other: big-endian 64-bit length, content. */
export function lengthPrefixed(fields: readonly (string | Uint8Array)[]): Buffer {
  const parts: Uint8Array[] = []
  for (const field of fields) {
    const content = typeof field === 'string' ? utf8(field) : field
    const length = Buffer.alloc(8)
    length.writeBigUInt64BE(BigInt(content.byteLength))
    parts.push(length, content)
  }
  return Buffer.concat(parts)
}

function utf8(text: string): Uint8Array {
  if (!isWellFormed(text)) throw new TypeError('request: text with a lone surrogate, which UTF-8 cannot say')
  return Buffer.from(text, 'utf8')
}
