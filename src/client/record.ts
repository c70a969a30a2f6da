/**
 * How an operation lies in a storage: versioned text with a checksum.
 *
 * What cannot be read in full is reported and left where it is. It is never sent: a request put together from half an
 * entry is another payload, or another request.
 *
 * @module
 */

import { checksum, fromBase64, toBase64 } from './base64.ts'
import { type HeaderPairs, unfrozen } from './headers.ts'
import { isKey } from './key.ts'
import type { UnknownReason } from './result.ts'

/** One operation with all that an attempt needs, except credentials. */
export interface OperationRecord {
  readonly key: string
  readonly method: string
  /** Absolute. */
  readonly url: string
  readonly headers: HeaderPairs
  readonly body: Uint8Array<ArrayBuffer> | null
  readonly credentials: 'omit' | 'same-origin' | 'include'
  readonly quotedKey: boolean
  readonly label: string | null
  readonly createdAt: number
  readonly lifetimeMs: number
  /** Times it was sent, or was about to be. */
  readonly attempts: number
  readonly firstSentAt: number | null
  /** The service asked not to come back before. */
  readonly notBeforeAt: number | null
  readonly unknown: UnknownReason | null
}

/**
 * - `foreign`: no entry of ours.
 * - `newer`: written by a later release.
 * - `damaged`: ours, but not whole.
 * - `origin`: whole, but for a server that is not among `origins`.
 */
export type UnreadableReason = 'foreign' | 'newer' | 'damaged' | 'origin'

const FORMAT = 'effectively-once/operation'
const VERSION = 1
const METHODS = new Set(['POST', 'PUT', 'PATCH', 'DELETE'])
const CREDENTIALS = new Set<unknown>(['omit', 'same-origin', 'include'])
const UNKNOWN = new Set<unknown>([
  'outcome-unknown',
  'result-unavailable',
  'parked',
  'key-expired',
  'lifetime',
  'redirect',
])

/** Methods that change something; the others need no key. */
export const isMethod = (value: unknown): boolean => typeof value === 'string' && METHODS.has(value)

export function encodeRecord(record: OperationRecord): string {
  const operation = JSON.stringify({ ...record, body: record.body === null ? null : toBase64(record.body) })
  return `{"format":"${FORMAT}","version":${VERSION},"check":"${checksum(operation)}","operation":${operation}}`
}

/** @param key - Under which the entry was found; an entry that says another one was moved or copied. */
export function decodeRecord(key: string, text: string): OperationRecord | UnreadableReason {
  const outer = parsed(text)
  if (outer === undefined) return text.includes(`"${FORMAT}"`) ? 'damaged' : 'foreign'
  if (outer['format'] !== FORMAT || typeof outer['version'] !== 'number') return 'foreign'
  if (outer['version'] > VERSION) return 'newer'
  const given = outer['operation']
  if (!isObject(given) || outer['check'] !== checksum(JSON.stringify(given)) || given['key'] !== key) return 'damaged'
  return recordOf(given) ?? 'damaged'
}

function recordOf(given: Readonly<Record<string, unknown>>): OperationRecord | undefined {
  const { key, method, url, headers, credentials, quotedKey, label, createdAt, lifetimeMs, attempts } = given
  const { firstSentAt, notBeforeAt, unknown } = given
  const body = given['body'] === null ? null : typeof given['body'] === 'string' ? fromBase64(given['body']) : undefined
  const whole =
    isKey(key) &&
    isMethod(method) &&
    isHttpUrl(url) &&
    isHeaders(headers) &&
    body !== undefined &&
    CREDENTIALS.has(credentials) &&
    typeof quotedKey === 'boolean' &&
    (label === null || typeof label === 'string') &&
    [createdAt, lifetimeMs, attempts].every((value) => Number.isFinite(value)) &&
    [firstSentAt, notBeforeAt].every((value) => value === null || Number.isFinite(value)) &&
    (unknown === null || UNKNOWN.has(unknown))
  if (!whole) return undefined
  return {
    key,
    method: method as string,
    url,
    headers,
    body,
    credentials: credentials as OperationRecord['credentials'],
    quotedKey,
    label,
    createdAt: createdAt as number,
    lifetimeMs: lifetimeMs as number,
    attempts: attempts as number,
    firstSentAt: firstSentAt as number | null,
    notBeforeAt: notBeforeAt as number | null,
    unknown: unknown as UnknownReason | null,
  }
}

/** Whether two records are the same request; what differs between attempts does not count. */
export function sameRequest(a: OperationRecord, b: OperationRecord): boolean {
  return requestText(a) === requestText(b)
}

function requestText({ key, method, url, headers, body, credentials, quotedKey }: OperationRecord): string {
  return JSON.stringify([key, method, url, headers, body === null ? null : toBase64(body), credentials, quotedKey])
}

function parsed(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isHttpUrl(value: unknown): value is string {
  if (typeof value !== 'string') return false
  try {
    return /^https?:$/.test(new URL(value).protocol)
  } catch {
    return false
  }
}

function isHeaders(value: unknown): value is HeaderPairs {
  if (!Array.isArray(value)) return false
  const pairs = value as readonly unknown[]
  const whole = pairs.every(
    (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((part) => typeof part === 'string'),
  )
  if (!whole || (pairs as HeaderPairs).some(([name]) => unfrozen(name) !== undefined)) return false
  try {
    return new Headers(pairs as [string, string][]) instanceof Headers
  } catch {
    return false
  }
}
