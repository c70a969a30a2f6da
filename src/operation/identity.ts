/**
 * Identity: scope and key name one intent; the record's id is a hash of both.
 *
 * @module
 */

import { hash } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { describe } from '../shared/options.ts'
import type { OperationIdentity } from '../store/operation.ts'

/**
 * Within which the key is unique: tenant and kind of operation, for instance `['acme', 'orders.create']`. A string is
 * a list of one. Two scopes never meet. (R02, T1)
 */
export type Scope = string | readonly string[]

/** Longest key, UTF-8 bytes (B18). */
export const KEY_BYTES_MAX = 255
/** Longest part of a scope, UTF-8 bytes. */
export const SCOPE_PART_BYTES_MAX = 255
/** Most parts of a scope. */
export const SCOPE_PARTS_MAX = 8

/** C0 controls, DEL and C1 controls. */
const CONTROL = /\p{Cc}/u

/**
 * Checks scope and key and hashes them: the first 16 bytes of SHA-256 over length-prefixed parts, so that no
 * choice of delimiters makes two operations one. No secret takes part: rotating one must not orphan records.
 *
 * @throws {TypeError} for a scope that is missing or malformed.
 * @throws {OnceError} IDEMPOTENCY_KEY_MISSING, IDEMPOTENCY_KEY_INVALID.
 */
export function identify(scope: Scope, key: string): OperationIdentity {
  const parts = scopeParts(scope)
  checkKey(key)
  return { id: uuidOf(parts, key), scope: JSON.stringify(parts) }
}

function scopeParts(scope: Scope): readonly string[] {
  const parts: unknown = typeof scope === 'string' ? [scope] : scope
  if (!Array.isArray(parts) || parts.length === 0 || parts.length > SCOPE_PARTS_MAX) {
    throw new TypeError(`scope takes a string or a list of 1 to ${SCOPE_PARTS_MAX} strings, got ${describe(scope)}`)
  }
  for (const part of parts as readonly unknown[]) {
    if (typeof part !== 'string' || part === '') {
      throw new TypeError(`scope takes non-empty strings, got ${part === '' ? 'an empty one' : describe(part)}`)
    }
    if (Buffer.byteLength(part) > SCOPE_PART_BYTES_MAX || CONTROL.test(part) || !part.isWellFormed()) {
      throw new TypeError(`a part of scope is longer than ${SCOPE_PART_BYTES_MAX} bytes or holds control characters`)
    }
  }
  return parts as readonly string[]
}

function checkKey(key: unknown): asserts key is string {
  if (key === undefined || key === null || key === '') {
    throw new OnceError('IDEMPOTENCY_KEY_MISSING', 'an operation needs a key')
  }
  if (typeof key !== 'string') {
    throw new OnceError('IDEMPOTENCY_KEY_INVALID', `the key must be a string, got ${describe(key)}`)
  }
  const bytes = Buffer.byteLength(key)
  if (bytes > KEY_BYTES_MAX) {
    throw new OnceError('IDEMPOTENCY_KEY_INVALID', `the key has ${bytes} bytes, more than ${KEY_BYTES_MAX}`)
  }
  if (CONTROL.test(key) || !key.isWellFormed()) {
    throw new OnceError('IDEMPOTENCY_KEY_INVALID', 'the key holds control characters or lone surrogates')
  }
}

/** Each part goes in behind its length, so `['a', 'b']` and `['a b']` never share bytes. */
function uuidOf(parts: readonly string[], key: string): string {
  let text = `${parts.length}:`
  for (const part of parts) text += `${Buffer.byteLength(part)}:${part}`
  text += `${Buffer.byteLength(key)}:${key}`
  const hex = hash('sha256', text, 'hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}
