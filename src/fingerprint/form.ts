/**
 * Form encoding (`a=1&b=2`), decoded to bytes and not to text: `%ff` and `%fe` are both U+FFFD as text.
 *
 * @module
 */

export type FormPair = readonly [name: Buffer, value: Buffer]

/**
 * Names and values in order. As browsers and `URLSearchParams` decode: `+` is a space, a `%` without two hex digits
 * stands for itself, `a` is `a=`, empty sequences between `&` are no pair.
 */
export function formPairs(encoded: Uint8Array): FormPair[] {
  const bytes = Buffer.from(encoded.buffer, encoded.byteOffset, encoded.byteLength)
  const pairs: FormPair[] = []
  let start = 0
  while (start < bytes.length) {
    const mark = bytes.indexOf(AMPERSAND, start)
    const end = mark === -1 ? bytes.length : mark
    if (end > start) pairs.push(pair(bytes.subarray(start, end)))
    start = end + 1
  }
  return pairs
}

/** Sorted by name, equal names in the order they came in. */
export function sortedByName(pairs: readonly FormPair[]): FormPair[] {
  return pairs.toSorted((a, b) => Buffer.compare(a[0], b[0]))
}

const AMPERSAND = 0x26
const EQUALS = 0x3d
const PERCENT = 0x25
const PLUS = 0x2b
const SPACE = 0x20

function pair(bytes: Buffer): FormPair {
  const mark = bytes.indexOf(EQUALS)
  if (mark === -1) return [decoded(bytes), Buffer.alloc(0)]
  return [decoded(bytes.subarray(0, mark)), decoded(bytes.subarray(mark + 1))]
}

function decoded(bytes: Buffer): Buffer {
  const out = Buffer.alloc(bytes.length)
  let length = 0
  for (let at = 0; at < bytes.length; at++) {
    let byte = bytes[at] as number
    if (byte === PLUS) byte = SPACE
    else if (byte === PERCENT) {
      const high = hexDigit(bytes[at + 1])
      const low = hexDigit(bytes[at + 2])
      if (high !== undefined && low !== undefined) {
        byte = high * 16 + low
        at += 2
      }
    }
    out[length++] = byte
  }
  return out.subarray(0, length)
}

function hexDigit(byte: number | undefined): number | undefined {
  if (byte === undefined) return undefined
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30
  const lower = byte | 0x20
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : undefined
}
