/**
 * Operation: what a caller hands in, and what comes back.
 *
 * @module
 */

import { type Fingerprint, fingerprint } from '../fingerprint/fingerprint.ts'
import { type FingerprintSecrets, matchesStored, storedFingerprint } from '../fingerprint/stored.ts'
import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { refuseUnknownOptions } from '../shared/options.ts'
import {
  type Attempt,
  type FoundRecord,
  isFinished,
  type NewRecord,
  type OperationRecord,
  type UnfinishedRecord,
} from '../store/operation.ts'
import { identify, type Scope } from './identity.ts'
import { decodeOutcome, encodeOutcome, OUTCOME_VERSION } from './outcome.ts'

interface Intent {
  /** Tenant and kind of operation; keys of different scopes never meet. */
  readonly scope: Scope
  /** Names the intent, not the send: made once by the caller, the same in every retry. 1 to 255 bytes. */
  readonly key: string
}

/** An operation: scope and key, bound to a payload. */
export type Operation = Intent &
  (
    | {
        /** Every value that changes the effect, as plain JSON data; null when the key says it all. */
        readonly payload: unknown
        readonly fingerprint?: undefined
      }
    | {
        readonly payload?: undefined
        /** Instead of `payload`: a fingerprint made with `fingerprint` or `requestFingerprint`. */
        readonly fingerprint: Fingerprint
      }
  )

/** The stored "yes". */
export interface Succeeded<T> {
  readonly state: 'succeeded'
  readonly value: T
  readonly rejection?: undefined
  /** true when this call did not run the work to its end: the outcome was there. */
  readonly replayed: boolean
}

/** The stored "no". */
export interface RejectedOutcome<R> {
  readonly state: 'rejected'
  readonly value?: undefined
  readonly rejection: R
  readonly replayed: boolean
}

/** What an operation came to; the same for the first caller and every retry. */
export type Outcome<T, R = never> = Succeeded<T> | ([R] extends [never] ? never : RejectedOutcome<R>)

/** A new attempt of the operation: its identity, its fingerprint and a fresh token. */
export function newAttempt(operation: Operation): Attempt {
  if (typeof operation !== 'object' || operation === null) throw new TypeError('an operation is an object')
  refuseUnknownOptions('operation', operation, ['scope', 'key', 'payload', 'fingerprint'])
  const { id, scope } = identify(operation.scope, operation.key)
  return { id, scope, token: randomUUID(), fingerprint: fingerprintOf(operation) }
}

function fingerprintOf(operation: Operation): Fingerprint {
  const given: Fingerprint | undefined = operation.fingerprint
  if (given === undefined) {
    if (!('payload' in operation) || operation.payload === undefined) {
      throw new TypeError('an operation needs a payload (null when the key says it all) or a fingerprint')
    }
    return fingerprint(operation.payload)
  }
  if (operation.payload !== undefined) throw new TypeError('give payload or fingerprint, not both')
  if (typeof given !== 'object' || given === null || !isFingerprint(given)) {
    throw new TypeError('operation.fingerprint must come from fingerprint() or requestFingerprint()')
  }
  return given
}

function isFingerprint({ value, mode }: Fingerprint): boolean {
  return value instanceof Uint8Array && value.byteLength === 32 && ['canonical', 'raw', 'parsed'].includes(mode)
}

/** The record that this attempt would leave behind. */
export function newRecord(
  attempt: Attempt,
  state: OperationRecord['state'],
  value: unknown,
  options: {
    readonly secrets: FingerprintSecrets | undefined
    readonly retentionMs: number
    readonly bytesMax: number
  },
): NewRecord {
  return {
    id: attempt.id,
    scope: attempt.scope,
    token: attempt.token,
    state,
    fingerprint: storedFingerprint(attempt.fingerprint, options.secrets),
    outcomeVersion: OUTCOME_VERSION,
    outcome: encodeOutcome(value, options.bytesMax),
    retentionMs: options.retentionMs,
  }
}

/**
 * The outcome of a stored record, for a caller with this fingerprint.
 *
 * @throws {OnceError} IDEMPOTENCY_KEY_REUSED for another payload (nothing of the outcome is told, I4);
 *   RESULT_UNAVAILABLE when the record cannot be read; for a leased operation without an outcome
 *   OPERATION_IN_PROGRESS, OUTCOME_UNKNOWN, OPERATION_PARKED; NOT_APPLIED when that was proven.
 */
export function outcomeOf<T, R>(
  record: FoundRecord,
  asked: Fingerprint,
  secrets: FingerprintSecrets | undefined,
): Outcome<T, R> {
  refuseOther(record, asked, secrets)
  if (!isFinished(record)) throw unfinished(record)
  return decodedOutcome(record, true)
}

/** Refuses a caller whose payload is not the one that the record was made with. */
export function refuseOther(
  record: Pick<FoundRecord, 'fingerprint'>,
  asked: Fingerprint,
  secrets: FingerprintSecrets | undefined,
): void {
  switch (matchesStored(asked, record.fingerprint, secrets)) {
    case 'other':
      throw reused()
    case 'unreadable':
      throw new OnceError('RESULT_UNAVAILABLE', 'the record was made with a fingerprint secret that is not in the ring')
    case 'same':
  }
}

/** Refuses what was proven never to have been applied: there is no outcome, and there will be none. */
export function refuseNotApplied(record: OperationRecord): void {
  if (record.notApplied !== true) return
  throw new OnceError('NOT_APPLIED', 'a person has proven that the operation was never applied')
}

/** Why a leased operation has no outcome to give. */
export function unfinished({ state, leaseLeftMs }: Pick<UnfinishedRecord, 'state' | 'leaseLeftMs'>): OnceError {
  switch (state) {
    case 'processing': {
      const retryAfterMs = Math.max(1, leaseLeftMs ?? 1_000)
      return new OnceError('OPERATION_IN_PROGRESS', 'the operation is leased to another attempt', { retryAfterMs })
    }
    case 'unknown':
      return new OnceError('OUTCOME_UNKNOWN', 'an effect of the operation may or may not have happened')
    case 'parked':
      return new OnceError('OPERATION_PARKED', 'the operation died or failed too often')
  }
}

/** The outcome of a record that this caller has just written: nothing has to be compared. */
export function ownOutcome<T, R>(record: OperationRecord): Outcome<T, R> {
  return decodedOutcome(record, false)
}

function decodedOutcome<T, R>(record: OperationRecord, replayed: boolean): Outcome<T, R> {
  refuseNotApplied(record)
  const decoded = decodeOutcome(record)
  return (
    record.state === 'succeeded'
      ? { state: 'succeeded', value: decoded, replayed }
      : { state: 'rejected', rejection: decoded, replayed }
  ) as Outcome<T, R>
}

/** Same scope and key, other payload. */
export function reused(): OnceError {
  return new OnceError('IDEMPOTENCY_KEY_REUSED', 'the key was used with another payload in this scope')
}
