/**
 * Failure: what it means that a call threw.
 *
 * Clients throw answers too (a declined card, a 429), each in its own shape; those are read and classified as answers. What
 * is left are failures of the network, of which only those *before* the request could leave are certain: name look-up,
 * connecting, the certificate. A time-out or a reset afterwards says nothing.
 *
 * A client that repeats calls by itself throws the failure of its last attempt, and an earlier one may have got through.
 * Turn its own retries off (`maxNetworkRetries: 0`), or rely on the key.
 *
 * @module
 */

import { type AnswerHeaders, type Classified, classifyAnswer, type ProviderAnswer } from './classify.ts'
import type { ProviderProfile } from './profile.ts'

/** Codes of Node.js and undici that arise before anything of the request is sent, whatever the system call. */
const NOT_SENT: ReadonlySet<string> = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EAI_FAIL',
  'EAI_NODATA',
  'EAI_NONAME',
  'UND_ERR_CONNECT_TIMEOUT',
  'ERR_TLS_CERT_ALTNAME_INVALID',
  'CERT_HAS_EXPIRED',
  'CERT_NOT_YET_VALID',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
])
/** Codes that mean this only when they come from connecting: an open connection can break with them as well. */
const NOT_CONNECTED: ReadonlySet<string> = new Set([
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'EADDRNOTAVAIL',
  'ECONNRESET',
])
const CAUSES_MAX = 8

/**
 * What a thrown value means: an answer that it carries, a request that was never sent (`transient`), else `ambiguous`.
 * Never `applied`, unless an answer says so.
 */
export function classifyFailure(profile: ProviderProfile, thrown: unknown): Classified {
  const answer = answerOf(thrown)
  if (answer !== undefined) return classifyAnswer(profile, answer)
  const code = codesOf(thrown)[0]
  return {
    kind: neverSent(thrown) ? 'transient' : 'ambiguous',
    decides: 'attempt',
    replayed: false,
    status: undefined,
    codes: code === undefined ? [] : [code],
    retryAfterMs: undefined,
    isResult: false,
    existingId: undefined,
  }
}

/**
 * The answer that an error of a client carries, for the shapes in use: a status beside (or in `response`, `$metadata`),
 * headers, and a body, parsed or not. Undefined when there is none.
 */
export function answerOf(thrown: unknown): ProviderAnswer | undefined {
  const response = objectAt(thrown, 'response') ?? objectAt(thrown, '$response')
  const status =
    statusAt(thrown, 'statusCode', 'status', 'httpStatusCode', 'httpStatus') ??
    statusAt(response, 'status', 'statusCode') ??
    statusAt(objectAt(thrown, '$metadata'), 'httpStatusCode')
  if (status === undefined) return undefined
  const headers = objectAt(thrown, 'headers') ?? objectAt(thrown, 'responseHeaders') ?? objectAt(response, 'headers')
  return { status, headers: headers as AnswerHeaders | undefined, body: bodyOf(thrown, response) }
}

function bodyOf(thrown: unknown, response: object | undefined): unknown {
  const whole = member(thrown, 'body') ?? member(thrown, 'responseBody') ?? member(response, 'data')
  if (whole !== undefined) return whole
  // stripe: `raw` is what stood under `error`.
  const raw = objectAt(thrown, 'raw')
  if (raw !== undefined) return { error: raw }
  // AWS: the error's name is the code. Others: lists of errors beside the status.
  const name = member(thrown, 'name')
  const errors = member(thrown, 'errors')
  return { ...(typeof name === 'string' ? { __type: name } : {}), ...(Array.isArray(errors) ? { errors } : {}) }
}

/** Every failure in the chain of causes that says where it comes from says that nothing was sent. */
function neverSent(thrown: unknown): boolean {
  let error = thrown
  for (let depth = 0; depth < CAUSES_MAX && error !== undefined && error !== null; depth += 1) {
    const attempts = member(error, 'errors')
    // One error for each address that was tried.
    if (Array.isArray(attempts) && attempts.length > 0) return attempts.every(neverSent)
    const code = codeAt(error)
    if (code !== undefined) {
      return NOT_SENT.has(code) || (NOT_CONNECTED.has(code) && member(error, 'syscall') === 'connect')
    }
    error = member(error, 'cause') ?? member(error, 'detail')
  }
  return false
}

function codesOf(thrown: unknown): readonly string[] {
  let error = thrown
  for (let depth = 0; depth < CAUSES_MAX && error !== undefined && error !== null; depth += 1) {
    const code = codeAt(error)
    if (code !== undefined) return [code]
    error = member(error, 'cause') ?? member(error, 'detail')
  }
  return []
}

/** A code of the system or of undici; a DOMException has a number there. */
function codeAt(error: unknown): string | undefined {
  const code = member(error, 'code')
  return typeof code === 'string' && /^[A-Z][A-Z0-9_]{2,63}$/.test(code) ? code : undefined
}

function statusAt(value: unknown, ...names: readonly string[]): number | undefined {
  const found = names.map((name) => member(value, name)).find((status) => typeof status === 'number')
  return typeof found === 'number' && Number.isInteger(found) && found >= 100 && found <= 599 ? found : undefined
}

function objectAt(value: unknown, name: string): object | undefined {
  const found = member(value, name)
  return typeof found === 'object' && found !== null ? found : undefined
}

function member(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (Reflect.get(value, name) as unknown) : undefined
}
