/**
 * Multipart bodies part by part: fetch and undici draw a new boundary for each attempt, so the bytes of a retry
 * differ although nothing was changed.
 *
 * Only the plain form that clients write is read (RFC 2046 without preamble, padding and epilogue). Anything that
 * readers could take apart differently is not, and is then compared by its bytes.
 *
 * @module
 */

import { isToken, trimmed } from './media-type.ts'

export interface MultipartPart {
  /** Lower-case name and trimmed value, sorted by name, equal names in the order they came in. */
  readonly headers: readonly (readonly [name: string, value: Buffer])[]
  readonly content: Buffer
}

/** The parts in order, or undefined when `body` is not plainly a multipart body with this boundary. Linear. */
export function multipartParts(body: Uint8Array, boundary: string): MultipartPart[] | undefined {
  if (!BOUNDARY.test(boundary)) return undefined
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const opening = Buffer.from(`--${boundary}`, 'latin1')
  const delimiter = Buffer.from(`\r\n--${boundary}`, 'latin1')
  if (!bytes.subarray(0, opening.length).equals(opening)) return undefined
  const parts: MultipartPart[] = []
  let at = opening.length
  while (startsWith(bytes, at, LINE_END)) {
    const start = at + LINE_END.length
    const end = bytes.indexOf(delimiter, start)
    const part = end === -1 ? undefined : parsePart(bytes.subarray(start, end))
    if (part === undefined) return undefined
    parts.push(part)
    at = end + delimiter.length
  }
  const isClosed = startsWith(bytes, at, CLOSE) && parts.length > 0
  const rest = bytes.subarray(at + CLOSE.length)
  return isClosed && (rest.length === 0 || rest.equals(LINE_END)) ? parts : undefined
}

const BOUNDARY = /^[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]$/
const LINE_END = Buffer.from('\r\n')
const BLANK_LINE = Buffer.from('\r\n\r\n')
const CLOSE = Buffer.from('--')

function startsWith(bytes: Buffer, at: number, mark: Buffer): boolean {
  return bytes.subarray(at, at + mark.length).equals(mark)
}

function parsePart(part: Buffer): MultipartPart | undefined {
  if (startsWith(part, 0, LINE_END)) return { headers: [], content: part.subarray(LINE_END.length) }
  const blank = part.indexOf(BLANK_LINE)
  if (blank === -1) return undefined
  const headers: (readonly [string, Buffer])[] = []
  for (const line of part.subarray(0, blank).toString('latin1').split('\r\n')) {
    const colon = line.indexOf(':')
    const name = line.slice(0, Math.max(colon, 0)).toLowerCase()
    // A folded line has no name of its own; it and bare line ends are read in more than one way.
    if (!isToken(name) || /[\r\n\0]/.test(line)) return undefined
    headers.push([name, Buffer.from(trimmed(line.slice(colon + 1)), 'latin1')])
  }
  headers.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0))
  return { headers, content: part.subarray(blank + BLANK_LINE.length) }
}
