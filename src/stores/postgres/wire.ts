/**
 * Wire: several prepared statements as one piece of PostgreSQL's protocol (version 3), with one Sync at the end or none.
 *
 * Nothing is described: the sender knows what its own statements answer. Values travel as text, bytes and `PgArray`s as
 * they are.
 *
 * @module
 */

import { ELEMENT_TYPES, PgArray } from './array.ts'

/** One statement of a batch. */
export interface WireStatement {
  /** Text to parse first; undefined when the server knows the name. */
  readonly parse: string | undefined
  /** Name of the prepared statement; empty = the unnamed one. */
  readonly name: string
  readonly values: readonly unknown[]
}

/**
 * Encodes Parse (where wanted), Bind and Execute of each statement, then Sync, unless what is sent behind it brings one.
 *
 * @throws {TypeError} for a value that has no text form.
 */
export function encodeBatch(statements: readonly WireStatement[], sync = true): Buffer {
  end = 0
  batch(statements)
  if (sync) bytes(SYNC)
  return encoded()
}

/** Encodes a batch and, under its own name, the user's statement behind it, whose rows are described, under one Sync. */
export function encodeLed(statements: readonly WireStatement[], { parse, name, values }: WireStatement): Buffer {
  end = 0
  batch(statements)
  if (parse !== undefined) {
    const parsing = open(PARSE)
    cstring(name)
    cstring(parse)
    int16(0)
    close(parsing)
  }
  const bind = open(BIND)
  byte(0)
  cstring(name)
  encodeValues(values)
  int16(0)
  close(bind)
  bytes(DESCRIBE_PORTAL)
  bytes(EXECUTE_ALL)
  bytes(SYNC)
  return encoded()
}

/** Whether the driver sends the value in the same way as we do. */
export function isPlainValue(value: unknown): boolean {
  return (
    value === null || value instanceof Uint8Array || ['string', 'number', 'boolean', 'undefined'].includes(typeof value)
  )
}

function encoded(): Buffer {
  const copy = Buffer.from(scratch.subarray(0, end))
  if (scratch.length > SCRATCH_BYTES_MAX) scratch = Buffer.allocUnsafe(SCRATCH_BYTES)
  return copy
}

function batch(statements: readonly WireStatement[]): void {
  for (const { parse, name, values } of statements) {
    if (parse !== undefined) encodeParse(name, parse)
    const bind = open(BIND)
    byte(0)
    statementName(name)
    encodeValues(values)
    // No list of result formats: every column comes as text.
    int16(0)
    close(bind)
    bytes(EXECUTE_ALL)
  }
}

/** Encodes one statement without values as a simple query, which has its own end. */
export function encodeQuery(text: string): Buffer {
  end = 0
  const query = open(QUERY)
  cstring(text)
  close(query)
  return Buffer.from(scratch.subarray(0, end))
}

const BIND = 0x42
const CLOSE = 0x43
const PARSE = 0x50
const QUERY = 0x51
const STATEMENT = 0x53
/** Execute of the unnamed portal, without a limit of rows. */
const EXECUTE_ALL = Buffer.from([0x45, 0, 0, 0, 9, 0, 0, 0, 0, 0])
/** Describe of the unnamed portal. */
const DESCRIBE_PORTAL = Buffer.from([0x44, 0, 0, 0, 6, 0x50, 0])
const SYNC = Buffer.from([0x53, 0, 0, 0, 4])
const TEXT = 0
const BINARY = 1

const SCRATCH_BYTES = 16_384
/** A scratch buffer that grew beyond this is not kept. */
const SCRATCH_BYTES_MAX = 1_048_576

// One encoding is made from start to end without a turn of the event loop in between.
let scratch: Buffer = Buffer.allocUnsafe(SCRATCH_BYTES)
let end = 0

/** Closing a name that is not there is no error, so whatever an earlier attempt left behind is gone before it is parsed. */
function encodeParse(name: string, text: string): void {
  if (name !== '') {
    const closing = open(CLOSE)
    byte(STATEMENT)
    statementName(name)
    close(closing)
  }
  const parsing = open(PARSE)
  statementName(name)
  cstring(text)
  int16(0)
  close(parsing)
}

function encodeValues(values: readonly unknown[]): void {
  int16(values.length)
  for (const value of values) int16(value instanceof Uint8Array || value instanceof PgArray ? BINARY : TEXT)
  int16(values.length)
  for (const value of values) {
    if (value === null || value === undefined) {
      int32(-1)
    } else if (value instanceof Uint8Array) {
      int32(value.byteLength)
      bytes(value)
    } else if (value instanceof PgArray) {
      const start = end
      int32(0)
      encodeArray(value)
      setInt32(end - start - 4, start)
    } else {
      const start = end
      int32(0)
      utf8(textOf(value))
      setInt32(end - start - 4, start)
    }
  }
}

/** One dimension that counts from 1, without nulls; each element with its length in front. */
function encodeArray({ type, values }: PgArray): void {
  int32(values.length === 0 ? 0 : 1)
  int32(0)
  int32(ELEMENT_TYPES[type])
  if (values.length === 0) return
  int32(values.length)
  int32(1)
  for (const value of values) {
    if (type === 'uuid') {
      int32(UUID_BYTES)
      uuid(value as string)
    } else if (typeof value === 'string') {
      const start = end
      int32(0)
      utf8(value)
      setInt32(end - start - 4, start)
    } else {
      int32(value.byteLength)
      bytes(value)
    }
  }
}

function textOf(value: unknown): string {
  if (typeof value === 'string') return value
  if (typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean') return String(value)
  if (Array.isArray(value)) return arrayText(value)
  throw new TypeError('a value of this kind cannot be sent with a statement of ours')
}

/** An array in PostgreSQL's text form: every element quoted, so that none is taken for syntax. */
function arrayText(values: readonly unknown[]): string {
  const elements = values.map((value) =>
    value === null || value === undefined ? 'null' : `"${textOf(value).replace(/["\\]/g, '\\$&')}"`,
  )
  return `{${elements.join(',')}}`
}

/** Starts a message; its length is filled in by `close`. */
function open(type: number): number {
  byte(type)
  const start = end
  int32(0)
  return start
}

function close(start: number): void {
  setInt32(end - start, start)
}

function room(size: number): void {
  if (end + size <= scratch.length) return
  const larger = Buffer.allocUnsafe(2 * (end + size))
  scratch.copy(larger, 0, 0, end)
  scratch = larger
}

function byte(value: number): void {
  room(1)
  scratch[end] = value
  end += 1
}

function int16(value: number): void {
  room(2)
  scratch[end] = value >> 8
  scratch[end + 1] = value
  end += 2
}

function int32(value: number): void {
  room(4)
  end += 4
  setInt32(value, end - 4)
}

function setInt32(value: number, at: number): void {
  scratch[at] = value >> 24
  scratch[at + 1] = value >> 16
  scratch[at + 2] = value >> 8
  scratch[at + 3] = value
}

function bytes(value: Uint8Array): void {
  room(value.byteLength)
  scratch.set(value, end)
  end += value.byteLength
}

const UUID_BYTES = 16
const DASHES_MAX = 4
const DASH = 0x2d

function uuid(text: string): void {
  // Digits of a text that is longer are looked at, but never more bytes than these are written.
  room(UUID_BYTES)
  let written = 0
  let wrong = text.length > 2 * UUID_BYTES + DASHES_MAX
  for (let index = 0; index < text.length && written < UUID_BYTES; index += 2) {
    if (text.charCodeAt(index) === DASH) index += 1
    const byteValue = ((DIGITS[text.charCodeAt(index)] ?? -1) << 4) | (DIGITS[text.charCodeAt(index + 1)] ?? -1)
    if (byteValue < 0) wrong = true
    scratch[end + written] = byteValue
    written += 1
  }
  if (wrong || written < UUID_BYTES) throw new TypeError('a value that is no uuid cannot be sent as one')
  end += UUID_BYTES
}

/** Values of hexadecimal digits by character code; -1 = none. */
const DIGITS: Int8Array = Int8Array.from({ length: 128 }, (_, code) => {
  const digit = Number.parseInt(String.fromCharCode(code), 16)
  return Number.isNaN(digit) ? -1 : digit
})

/** Texts up to this length are copied here while they are ASCII: for a short one the call to `write` costs more. */
const SHORT_TEXT = 64

/** At most three bytes for each code unit. */
function utf8(text: string): void {
  room(3 * text.length)
  if (text.length <= SHORT_TEXT) {
    let index = 0
    for (; index < text.length; index++) {
      const code = text.charCodeAt(index)
      if (code > 0x7f) break
      scratch[end + index] = code
    }
    if (index === text.length) {
      end += index
      return
    }
  }
  end += scratch.write(text, end)
}

/**
 * Names of ours in a batch are not the driver's, which keeps a list of its own of what it has prepared: they end
 * differently.
 */
const NAME_SUFFIX = '_b'

function statementName(name: string): void {
  utf8(name)
  if (name !== '') utf8(NAME_SUFFIX)
  byte(0)
}

function cstring(text: string): void {
  utf8(text)
  byte(0)
}
