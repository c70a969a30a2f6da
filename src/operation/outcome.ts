/**
 * Outcome: what the work returned, as text that survives storage unchanged.
 *
 * The first caller gets the decoded stored form too, so that it and every replay see the same (I3). A value that JSON
 * would change silently is refused before anything is committed (B19): BigInt, Date, Buffer, undefined members,
 * NaN, class instances. Text is stored as text, so U+0000 and lone surrogates survive as escapes.
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import type { OperationRecord } from '../store/operation.ts'

/** Format written now. A higher one comes with a reader of each earlier one, and with stored rows (test/fixtures/stored). */
export const OUTCOME_VERSION = 1

/** Readers by format. */
const READERS: ReadonlyMap<number, (text: string) => unknown> = new Map([
  [1, (text: string): unknown => JSON.parse(text)],
])

/** Default of `outcomeBytesMax`: largest encoded outcome, UTF-8 bytes. */
export const OUTCOME_BYTES_MAX = 262_144
/** Deepest nesting of an outcome. */
export const OUTCOME_DEPTH_MAX = 128

/**
 * Encodes an outcome; null stands for "the work returned nothing".
 *
 * @throws {OnceError} OUTCOME_NOT_REPRESENTABLE with the path of the value, OUTCOME_TOO_LARGE.
 */
export function encodeOutcome(value: unknown, bytesMax: number = OUTCOME_BYTES_MAX): string | null {
  if (value === undefined) return null
  check(value, '', 0, [], { bytesLeft: bytesMax, bytesMax })
  const text = JSON.stringify(value)
  const bytes = Buffer.byteLength(text)
  if (bytes > bytesMax) tooLarge(bytesMax)
  return text
}

/**
 * Decodes a stored outcome.
 *
 * @throws {OnceError} RESULT_UNAVAILABLE for a format that this release does not know, or text that does not parse.
 */
export function decodeOutcome(record: Pick<OperationRecord, 'outcome' | 'outcomeVersion'>): unknown {
  const read = READERS.get(record.outcomeVersion)
  if (read === undefined) {
    throw new OnceError(
      'RESULT_UNAVAILABLE',
      `the stored outcome has format ${record.outcomeVersion}; this release reads up to ${OUTCOME_VERSION}`,
    )
  }
  if (record.outcome === null) return undefined
  try {
    return read(record.outcome)
  } catch {
    throw new OnceError('RESULT_UNAVAILABLE', 'the stored outcome cannot be read')
  }
}

/** What is left of the limit: a shared part is walked each time it appears, so the walk itself needs a bound. */
interface Budget {
  bytesLeft: number
  readonly bytesMax: number
}

function spend(budget: Budget, bytes: number): void {
  budget.bytesLeft -= bytes
  if (budget.bytesLeft < 0) tooLarge(budget.bytesMax)
}

function check(value: unknown, path: string, depth: number, above: readonly object[], budget: Budget): void {
  spend(budget, typeof value === 'string' ? value.length + 2 : 1)
  if (typeof value === 'string' || typeof value === 'boolean' || value === null) return
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) refuse(path, String(value))
    return
  }
  if (typeof value === 'object') return checkObject(value, path, depth, above, budget)
  refuse(path, value === undefined ? 'undefined' : `a ${typeof value}`)
}

function checkObject(value: object, path: string, depth: number, above: readonly object[], budget: Budget): void {
  if (depth >= OUTCOME_DEPTH_MAX) refuse(path, `nesting deeper than ${OUTCOME_DEPTH_MAX}`)
  if (above.includes(value)) refuse(path, 'a cycle')
  const inside = [...above, value]
  if (Object.getOwnPropertySymbols(value).length > 0) refuse(path, 'a symbol as member name')
  const prototype: unknown = Object.getPrototypeOf(value)
  if (Array.isArray(value)) {
    if (prototype !== Array.prototype) refuse(path, `a ${className(value)}`)
    // A gap is not undefined: JSON makes both null.
    for (let index = 0; index < value.length; index++)
      check(value[index], `${path}[${index}]`, depth + 1, inside, budget)
    if (Object.keys(value).length > value.length || 'toJSON' in value)
      refuse(path, 'a list with members besides its items')
    return
  }
  if (prototype !== Object.prototype && prototype !== null) refuse(path, `a ${className(value)}`)
  if (typeof (value as { toJSON?: unknown }).toJSON === 'function') refuse(path, 'an object with toJSON')
  for (const name of Object.keys(value)) {
    spend(budget, name.length + 3)
    check((value as Record<string, unknown>)[name], `${path}.${name.slice(0, 64)}`, depth + 1, inside, budget)
  }
}

function className(value: object): string {
  return Buffer.isBuffer(value) ? 'Buffer' : (value.constructor?.name ?? 'class instance')
}

function tooLarge(bytesMax: number): never {
  throw new OnceError('OUTCOME_TOO_LARGE', `the outcome has more than ${bytesMax} bytes (outcomeBytesMax)`)
}

function refuse(path: string, what: string): never {
  throw new OnceError(
    'OUTCOME_NOT_REPRESENTABLE',
    `the outcome holds ${what} at ${path === '' ? 'its top' : path.replace(/^\./, '')}, which JSON cannot keep unchanged`,
  )
}
