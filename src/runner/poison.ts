/**
 * Poison: what no later delivery of the same job can change, and what a later delivery alone can.
 *
 * @module
 */

import { type ErrorCode, isOnceError, type OnceError } from '../shared/errors.ts'

/** Why a job must not be tried again. */
export type Poison = OnceError

/** Waits for a person, or is wrong for good. */
const POISON: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  'OPERATION_PARKED',
  'STEP_CHANGED',
  'IDEMPOTENCY_KEY_REUSED',
  'IDEMPOTENCY_KEY_MISSING',
  'IDEMPOTENCY_KEY_INVALID',
  'NOT_APPLIED',
  'RESULT_UNAVAILABLE',
  'KEY_EXPIRED',
])

/** Not this job's fault: it comes again, and no attempt should be used up where the runner has a way. */
const AGAIN: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  'OPERATION_IN_PROGRESS',
  'LEASE_LOST',
  'STORE_UNAVAILABLE',
  'COMMIT_UNRESOLVED',
])

export function isPoison(error: unknown): error is OnceError {
  return isOnceError(error) && POISON.has(error.code)
}

export function comesAgain(error: unknown): error is OnceError {
  return isOnceError(error) && AGAIN.has(error.code)
}
