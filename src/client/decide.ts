/**
 * What an answer means: the problem's `code` first, then its `retryable`, then the status.
 *
 * The status alone is not enough: 409 says "still running", "outcome unknown" and "not applied".
 *
 * @module
 */

import type { Problem } from './problem.ts'
import type { LaterReason, UnknownReason } from './result.ts'

/** What a decision looks at. */
export interface Seen {
  readonly status: number
  /** The answer was a redirect that the browser does not let us see. */
  readonly opaque: boolean
  readonly retryAfterMs: number | null
  /** Where a 202 says that the outcome will be found; null without one that may be asked. */
  readonly statusUrl: string | null
  /** A 202 whose body says that the operation goes on behind the answer. */
  readonly accepted: boolean
  readonly problem: Problem | undefined
}

export type Decision =
  /** The operation was done. */
  | { readonly kind: 'completed' }
  /** A final no. */
  | { readonly kind: 'refused'; readonly safeNewKey: boolean | null }
  /** Neither yes nor no, and asking again will not tell. */
  | { readonly kind: 'unknown'; readonly reason: UnknownReason }
  /** The same again, not before `floorMs`. */
  | { readonly kind: 'again'; readonly floorMs: number | null }
  /** Accepted; the outcome is found there. */
  | { readonly kind: 'ask'; readonly statusUrl: string; readonly floorMs: number | null }
  /** The operation was not judged; the same can be sent when somebody has mended the cause. */
  | { readonly kind: 'later'; readonly reason: LaterReason }

type Rule = 'again' | 'refused' | 'fault' | UnknownReason

/** Every code that an effectively-once service answers with. */
const CODES: Readonly<Record<string, Rule>> = {
  OPERATION_IN_PROGRESS: 'again',
  COMMIT_UNRESOLVED: 'again',
  STORE_UNAVAILABLE: 'again',
  TOO_BUSY: 'again',
  LEASE_LOST: 'again',
  IDEMPOTENCY_KEY_MISSING: 'refused',
  IDEMPOTENCY_KEY_INVALID: 'refused',
  IDEMPOTENCY_KEY_REUSED: 'refused',
  NOT_APPLIED: 'refused',
  OUTCOME_UNKNOWN: 'outcome-unknown',
  RESULT_UNAVAILABLE: 'result-unavailable',
  KEY_EXPIRED: 'key-expired',
  OPERATION_PARKED: 'parked',
  // The work ended the transaction that it was given, so a part of it may be committed.
  NOT_A_TRANSACTION: 'outcome-unknown',
  // Wrong set-up or code of the service: nothing was committed, and after a repair the same key goes on.
  RESPONSE_NOT_STORABLE: 'fault',
  STEP_CHANGED: 'fault',
  NESTED_OPERATION: 'fault',
  OUTCOME_NOT_REPRESENTABLE: 'fault',
  OUTCOME_TOO_LARGE: 'fault',
  SCHEMA_MISSING: 'fault',
  SCHEMA_NEWER: 'fault',
  REPLICA_REFUSED: 'fault',
  HORIZON_TOO_SHORT: 'fault',
}

/** A new key is safe for these only; a problem that says otherwise is not believed. */
const NEW_KEY_IS_SAFE = new Set(['IDEMPOTENCY_KEY_MISSING', 'IDEMPOTENCY_KEY_INVALID', 'NOT_APPLIED'])

/** An accepted operation is worth asking about after this time, when the service says none. */
const ACCEPTED_MS = 1_000

/** The codes of the table above, for the test that compares it with the service's. */
export const knownCodes: readonly string[] = Object.keys(CODES)

export function decide(seen: Seen): Decision {
  const code = seen.problem?.code
  const rule = code !== undefined && Object.hasOwn(CODES, code) ? CODES[code] : undefined
  if (rule !== undefined) return byRule(rule, seen, code !== undefined && NEW_KEY_IS_SAFE.has(code))
  if (seen.opaque) return { kind: 'unknown', reason: 'redirect' }
  return byStatus(seen)
}

function byRule(rule: Rule, seen: Seen, safeNewKey: boolean): Decision {
  if (rule === 'again') return { kind: 'again', floorMs: seen.retryAfterMs }
  if (rule === 'refused') return { kind: 'refused', safeNewKey }
  return rule === 'fault' ? { kind: 'later', reason: rule } : { kind: 'unknown', reason: rule }
}

function byStatus(seen: Seen): Decision {
  const { status, retryAfterMs, statusUrl, accepted, problem } = seen
  const again: Decision = { kind: 'again', floorMs: retryAfterMs }
  if (status < 400) {
    if (status === 202 && statusUrl !== null) return { kind: 'ask', statusUrl, floorMs: retryAfterMs }
    if (status === 202 && accepted) return { kind: 'again', floorMs: retryAfterMs ?? ACCEPTED_MS }
    // These ask to send the request elsewhere; whoever answered has not done it.
    if (status === 301 || status === 307 || status === 308) return { kind: 'refused', safeNewKey: null }
    return { kind: 'completed' }
  }
  // Not judged for want of credentials: with fresh ones the same key is right.
  if (status === 401 || status === 407) return { kind: 'later', reason: 'login' }
  if (problem?.retryable === true) return again
  if (status >= 500) {
    // Without a code it is the frame around a crash that speaks, and after a crash the same key is right.
    const isFault = problem?.retryable === false && problem.code !== undefined
    return isFault ? { kind: 'later', reason: 'fault' } : again
  }
  if (problem?.retryable === false) return { kind: 'refused', safeNewKey: problem.safeNewKey ?? null }
  if (status === 408 || status === 425 || status === 429) return again
  // Services that name no code mean "still running" when they say when to come back.
  if (status === 409 && retryAfterMs !== null) return again
  // A stored no is given to every retry, so a corrected request needs another key.
  return { kind: 'refused', safeNewKey: problem?.safeNewKey ?? (status === 409 || status === 412 ? null : true) }
}
