/**
 * Errors: one class, a stable code, a hint that says what to do next.
 *
 * Codes are stable between majors; messages are free to improve. A message names the thing, the numbers
 * and the state, never a payload, a key or a secret. Wrong arguments are not here: they are `TypeError`s
 * that name the option.
 *
 * @module
 */

/** Stable between majors. */
export type ErrorCode =
  | 'IDEMPOTENCY_KEY_MISSING'
  | 'IDEMPOTENCY_KEY_INVALID'
  | 'IDEMPOTENCY_KEY_REUSED'
  | 'OPERATION_IN_PROGRESS'
  | 'COMMIT_UNRESOLVED'
  | 'OUTCOME_UNKNOWN'
  | 'NOT_APPLIED'
  | 'RESULT_UNAVAILABLE'
  | 'KEY_EXPIRED'
  | 'STORE_UNAVAILABLE'
  | 'TOO_BUSY'
  | 'LEASE_LOST'
  | 'OPERATION_PARKED'
  | 'STEP_CHANGED'
  | 'RESPONSE_NOT_STORABLE'
  | 'NOT_A_TRANSACTION'
  | 'NESTED_OPERATION'
  | 'OUTCOME_NOT_REPRESENTABLE'
  | 'OUTCOME_TOO_LARGE'
  | 'SCHEMA_MISSING'
  | 'SCHEMA_NEWER'
  | 'REPLICA_REFUSED'
  | 'HORIZON_TOO_SHORT'

/** What an error code promises to the code that receives it. */
export interface ErrorFacts {
  /** Status an HTTP adapter answers with; null = the handler's own status stands. */
  readonly status: number | null
  /** Whether the same call, with the same key and payload, may succeed later. */
  readonly retryable: boolean
  /** Whether the answer carries Retry-After (`retryAfterMs` on the error). */
  readonly retryAfter: boolean
  /** Whether a NEW key for the same intent is safe; null = the question does not arise. */
  readonly safeNewKey: boolean | null
  /** When it happens. */
  readonly when: string
  /** What to do about it. */
  readonly hint: string
}

const facts = (
  status: number | null,
  retryable: boolean,
  retryAfter: boolean,
  safeNewKey: boolean | null,
  when: string,
  hint: string,
): ErrorFacts => ({ status, retryable, retryAfter, safeNewKey, when, hint })

/** The one table of codes. docs/errors.md is generated from it; a check fails when either side has a code the other lacks. */
export const ERRORS: Readonly<Record<ErrorCode, ErrorFacts>> = {
  IDEMPOTENCY_KEY_MISSING: facts(
    400,
    false,
    false,
    true,
    'A key is required and none was given.',
    'Send a key that names the intent, made once by the caller and stored before the first attempt.',
  ),
  IDEMPOTENCY_KEY_INVALID: facts(
    400,
    false,
    false,
    true,
    'The key is malformed, repeated, holds control characters or is over its limit.',
    'Use 1 to 255 bytes of UTF-8 without control characters (visible ASCII over HTTP); a UUID is a good key.',
  ),
  IDEMPOTENCY_KEY_REUSED: facts(
    422,
    false,
    false,
    false,
    'The same scope and key were used with another payload.',
    'A key names one intent: send a new key for a new intent, or the original payload for a retry.',
  ),
  OPERATION_IN_PROGRESS: facts(
    409,
    true,
    true,
    false,
    'A live owner holds the operation.',
    'Retry with the same key after retryAfterMs, or choose whenInProgress: "wait".',
  ),
  COMMIT_UNRESOLVED: facts(
    503,
    true,
    true,
    false,
    'The answer to our COMMIT was lost and could not be decided in time.',
    'Retry with the same key: it gets the committed outcome, or runs the work if nothing was committed.',
  ),
  OUTCOME_UNKNOWN: facts(
    409,
    false,
    false,
    false,
    'An external effect may or may not have happened; it waits for reconciliation or a person.',
    'Do not send a new key. Reconcile the effect with the provider, then resolve the operation.',
  ),
  NOT_APPLIED: facts(
    409,
    false,
    false,
    true,
    'The operation is proven not applied, and that is final.',
    'Start a new intent with a new key if the work is still wanted.',
  ),
  RESULT_UNAVAILABLE: facts(
    409,
    false,
    false,
    false,
    'The operation completed, but its stored result is expired, too big, streamed or unreadable.',
    'Read the resource that the operation made; do not repeat the operation under a new key.',
  ),
  KEY_EXPIRED: facts(
    412,
    false,
    false,
    false,
    'A time-ordered key is older than the window in which repeats are recognised.',
    'Check whether the intent was fulfilled before making a new key for it.',
  ),
  STORE_UNAVAILABLE: facts(
    503,
    true,
    true,
    false,
    'The store cannot be reached or does not answer in time.',
    'Retry with the same key. If it lasts, look at the database connection and the pool.',
  ),
  TOO_BUSY: facts(
    503,
    true,
    true,
    false,
    "One of this process's own limits is reached: concurrent transactions, waiters or time.",
    'Retry with the same key; raise the limit named in the message if the machine has room.',
  ),
  LEASE_LOST: facts(
    503,
    true,
    true,
    false,
    'This owner was replaced while it worked; nothing of its late work is stored.',
    'Raise leaseMs, or renew more often inside long loops.',
  ),
  OPERATION_PARKED: facts(
    409,
    false,
    false,
    false,
    'The operation died or failed too often and waits for a person.',
    'Look at its history, mend the cause, then redrive it.',
  ),
  STEP_CHANGED: facts(
    500,
    false,
    false,
    false,
    'Resumed code does not match the stored history of the operation.',
    'Deploy the code that started the operation, or give the kind a new version.',
  ),
  RESPONSE_NOT_STORABLE: facts(
    null,
    false,
    false,
    false,
    'The response is a stream, SSE or has trailers, and the route did not opt in.',
    'Answer with a bounded body, or opt in for the route and accept that it cannot be replayed.',
  ),
  NOT_A_TRANSACTION: facts(
    500,
    false,
    false,
    null,
    'The handle given has no open transaction, or the work ended the transaction it was given.',
    'Pass the client on which BEGIN has run, not the pool, and leave COMMIT and ROLLBACK of tx to us.',
  ),
  NESTED_OPERATION: facts(
    500,
    false,
    false,
    null,
    'An operation was started inside the work of another one, on a second connection.',
    'Use once.in(tx) inside a work, or start the second operation after the first has returned.',
  ),
  OUTCOME_NOT_REPRESENTABLE: facts(
    500,
    false,
    false,
    null,
    'The outcome holds a value that JSON cannot keep unchanged (BigInt, Date, Buffer, undefined, ...).',
    'Return plain data: strings for dates and big integers, base64 for bytes. Nothing was committed.',
  ),
  OUTCOME_TOO_LARGE: facts(
    500,
    false,
    false,
    null,
    'The encoded outcome is larger than outcomeBytesMax.',
    'Return a reference to the resource instead of its content, or raise outcomeBytesMax. Nothing was committed.',
  ),
  SCHEMA_MISSING: facts(
    500,
    false,
    false,
    null,
    'The database does not have our tables, has an older version of them, or does not let the role use them.',
    'Run once.migrate() or `npx effectively-once migrate` against this database; the message names 42501 when rights lack.',
  ),
  SCHEMA_NEWER: facts(
    500,
    false,
    false,
    null,
    'The schema was migrated by a newer release in a way that this release cannot work with.',
    'Deploy the newer release everywhere, or restore the database to the version this release knows.',
  ),
  REPLICA_REFUSED: facts(
    500,
    false,
    false,
    null,
    'The connection leads to a standby or read-only server; decisions need the primary.',
    'Point the pool at the primary (target_session_attrs=read-write).',
  ),
  HORIZON_TOO_SHORT: facts(
    500,
    false,
    false,
    null,
    'Retention is configured below the time in which a repeat can still come.',
    'Raise the retention above broker retention, redeliveries and manual replays.',
  ),
}

/** Extra facts for one occurrence. */
export interface OnceErrorOptions {
  /** Milliseconds after which a retry is worth it; default for codes with Retry-After: 1000. */
  readonly retryAfterMs?: number | undefined
  readonly cause?: unknown
}

const DOCS = 'docs/errors.md'
const BRAND = Symbol.for('effectively-once.OnceError')
const RETRY_AFTER_DEFAULT_MS = 1_000

/** The one error class. Narrow it by `code`. */
export class OnceError extends Error {
  readonly code: ErrorCode
  readonly retryable: boolean
  /** Status an HTTP adapter answers with; null = the handler's own. */
  readonly status: number | null
  /** Whether a new key for the same intent is safe; null = the question does not arise. */
  readonly safeNewKey: boolean | null
  /** Milliseconds to wait before the same call is worth repeating; undefined when it is not. */
  readonly retryAfterMs: number | undefined
  readonly hint: string
  /** Where the code is explained. */
  readonly docs: string

  constructor(code: ErrorCode, message: string, options: OnceErrorOptions = {}) {
    super(`${message} [${code}]`, options.cause === undefined ? undefined : { cause: options.cause })
    const known = ERRORS[code]
    this.name = 'OnceError'
    this.code = code
    this.retryable = known.retryable
    this.status = known.status
    this.safeNewKey = known.safeNewKey
    this.retryAfterMs = known.retryAfter ? (options.retryAfterMs ?? RETRY_AFTER_DEFAULT_MS) : undefined
    this.hint = known.hint
    this.docs = `${DOCS}#${code.toLowerCase()}`
    Object.defineProperty(this, BRAND, { value: true })
  }

  /** Two installed copies of the package agree on what a OnceError is. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && BRAND in value
  }
}

/** Whether `error` is a OnceError, optionally with that code. */
export function isOnceError(error: unknown, code?: ErrorCode): error is OnceError {
  return error instanceof OnceError && (code === undefined || error.code === code)
}
