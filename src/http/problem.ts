/**
 * Problem: what a caller is told when it does not get the handler's answer (RFC 9457).
 *
 * A status alone does not say whether the same key may be sent again, so the members do. Nothing of the inside stands in
 * a problem: no message of an error, no SQL, no key, no payload (T16).
 *
 * @module
 */

import { ERRORS, type ErrorCode, type OnceError } from '../shared/errors.ts'
import { type HeaderList, NO_BODY, type WholeResponse } from './response.ts'

/** Where problems come from and are explained. */
export interface ProblemSettings {
  /** Start of `type`; the problem's name follows. */
  readonly typeBase: string
  /** Target of `Link: <...>; rel="describedby"`. */
  readonly describedBy: string
}

export const PROBLEM_TYPE_BASE = 'urn:effectively-once:problem:'
export const PROBLEM_DESCRIBED_BY = 'https://www.npmjs.com/package/effectively-once'

/** `operation_state` of a problem. `not-started`: nothing ran; `unknown`: it cannot be told. */
export type OperationState =
  | 'not-started'
  | 'in-progress'
  | 'completed'
  | 'not-applied'
  | 'parked'
  | 'unknown'
  | 'not-found'

interface ProblemText {
  /** Last part of `type`. */
  readonly name: string
  readonly title: string
  readonly state: OperationState
  readonly detail: string
}

const text = (name: string, title: string, state: OperationState, detail: string): ProblemText => ({
  name,
  title,
  state,
  detail,
})

const SETUP = text('server-error', 'The server is set up wrongly', 'unknown', 'The request was not carried out.')

const TEXTS: Readonly<Partial<Record<ErrorCode, ProblemText>>> = {
  IDEMPOTENCY_KEY_MISSING: text(
    'key-missing',
    'Idempotency-Key is missing',
    'not-started',
    'This operation needs an Idempotency-Key header: one key for each intent, the same in every retry.',
  ),
  IDEMPOTENCY_KEY_INVALID: text(
    'key-invalid',
    'Idempotency-Key is invalid',
    'not-started',
    'Send one Idempotency-Key line with 1 to 255 visible ASCII characters, quoted or bare; a UUID is a good key.',
  ),
  IDEMPOTENCY_KEY_REUSED: text(
    'key-reused',
    'Idempotency-Key was used with another request',
    'not-started',
    'The key belongs to another request. Retry with the original request, or send a new key for a new intent.',
  ),
  OPERATION_IN_PROGRESS: text(
    'in-progress',
    'The operation is in progress',
    'in-progress',
    'Another request with this key is being worked on. Retry later with the same key.',
  ),
  COMMIT_UNRESOLVED: text(
    'commit-unresolved',
    'The outcome is not known yet',
    'unknown',
    'It could not be told in time whether the operation took place. Retry with the same key.',
  ),
  OUTCOME_UNKNOWN: text(
    'outcome-unknown',
    'The outcome is unknown',
    'unknown',
    'An outside effect may or may not have happened. Do not send a new key; the operation is being looked into.',
  ),
  NOT_APPLIED: text(
    'not-applied',
    'The operation was not applied',
    'not-applied',
    'Nothing was done, and that is final. Send a new key if it is still wanted.',
  ),
  RESULT_UNAVAILABLE: text(
    'result-unavailable',
    'The operation completed; its answer is not kept',
    'completed',
    'The operation took place once. Its answer can no longer be given; read the resource instead.',
  ),
  KEY_EXPIRED: text(
    'key-expired',
    'Idempotency-Key is too old',
    'unknown',
    'Repeats of a key this old are no longer recognised. Find out whether the intent was fulfilled before a new key.',
  ),
  STORE_UNAVAILABLE: text(
    'store-unavailable',
    'The store cannot be reached',
    'unknown',
    'The operation cannot be carried out safely at the moment. Retry with the same key.',
  ),
  TOO_BUSY: text(
    'too-busy',
    'The server is too busy',
    'unknown',
    'The operation was not completed in time. Retry with the same key.',
  ),
  LEASE_LOST: text(
    'lease-lost',
    'The operation was taken over',
    'unknown',
    'Another server took the operation over. Retry with the same key.',
  ),
  OPERATION_PARKED: text(
    'operation-parked',
    'The operation waits for a person',
    'parked',
    'The operation failed too often and is being looked into. Do not send a new key.',
  ),
  RESPONSE_NOT_STORABLE: text(
    'response-not-storable',
    'The answer cannot be kept',
    'not-applied',
    'The answer is too large, a stream or has trailers, so the operation was undone.',
  ),
}

/** Members beside the fixed ones. */
export type ProblemMembers = Readonly<Record<string, string>>

/** The problem that an error of ours stands for. */
export function problemOf(
  error: OnceError,
  settings: ProblemSettings,
  options: {
    readonly status?: number | undefined
    readonly members?: ProblemMembers
    readonly headers?: HeaderList
  } = {},
): WholeResponse {
  const { name, title, state, detail } = TEXTS[error.code] ?? SETUP
  const facts = ERRORS[error.code]
  const retryAfter: HeaderList =
    error.retryAfterMs === undefined ? [] : [['retry-after', String(Math.max(1, Math.ceil(error.retryAfterMs / 1000)))]]
  return problem(settings, {
    type: settings.typeBase + name,
    title,
    status: options.status ?? error.status ?? 500,
    detail,
    members: {
      code: error.code,
      retryable: facts.retryable,
      safe_new_key: facts.safeNewKey ?? false,
      operation_state: state,
      ...options.members,
    },
    headers: [...retryAfter, ...(options.headers ?? [])],
  })
}

/** A handler that failed. Nothing of it is stored, and the same key may be sent again. */
export function failureProblem(settings: ProblemSettings, detail: string): WholeResponse {
  return plainProblem(settings, 500, 'Internal Server Error', detail, true)
}

/** An answer that is no error of ours: 403, 413 and 500. */
export function plainProblem(
  settings: ProblemSettings,
  status: number,
  title: string,
  detail: string,
  retryable = false,
): WholeResponse {
  return problem(settings, {
    type: 'about:blank',
    title,
    status,
    detail,
    members: { retryable, safe_new_key: false, operation_state: status === 413 ? 'not-started' : 'unknown' },
    headers: [],
  })
}

interface ProblemParts {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly members: Readonly<Record<string, string | boolean>>
  readonly headers: HeaderList
}

function problem(
  settings: ProblemSettings,
  { type, title, status, detail, members, headers }: ProblemParts,
): WholeResponse {
  return {
    status,
    headers: [
      ['content-type', 'application/problem+json'],
      ['cache-control', 'no-store'],
      ['link', `<${settings.describedBy}>; rel="describedby"`],
      ...headers,
    ],
    body: jsonBytes({ type, title, status, detail, ...members }),
  }
}

/** A JSON answer of ours that nobody may cache. */
export function jsonResponse(status: number, content: unknown, headers: HeaderList = []): WholeResponse {
  return {
    status,
    headers: [['content-type', 'application/json'], ['cache-control', 'no-store'], ...headers],
    body: content === undefined ? NO_BODY : jsonBytes(content),
  }
}

function jsonBytes(content: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(content), 'utf8')
}
