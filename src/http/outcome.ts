/**
 * Outcome: what a handler's answer means for the operation, and the part of it that stays as long as the key is taken.
 *
 * @module
 */

import { Ending } from '../operation/ending.ts'
import { OnceError } from '../shared/errors.ts'
import type { Policy } from './policy.ts'
import { headerOf, keptHeaders, type Produced, type UnstorableReason } from './response.ts'
import { encodeResponse } from './stored.ts'

/**
 * What becomes of the operation:
 * - `commit`: the writes count, the answer is stored;
 * - `reject`: the writes are rolled back, the answer is stored by a second short transaction;
 * - `release`: the writes are rolled back and nothing is stored, so that the same key may be sent again.
 */
export type Fate = 'commit' | 'reject' | 'release'

/** Refusals that say nothing about the operation: who asks, how often, when. */
const RELEASED: ReadonlySet<number> = new Set([401, 403, 407, 408, 425, 429])

export function fateOf(status: number, policy: Pick<Policy<unknown>, 'storeIf' | 'commitOn'>): Fate {
  if (status >= 500 || RELEASED.has(status)) return 'release'
  if (status < 400) return 'commit'
  if (policy.commitOn?.(status) === true) return 'commit'
  return policy.storeIf === undefined || policy.storeIf(status) ? 'reject' : 'release'
}

/** Why there is no body in the store; `kept` when there was one. */
export type BodyState = 'kept' | 'not-kept' | UnstorableReason

/** Format of ResponseMeta written now. A higher one comes with a reader of each earlier one, and with stored rows (test/fixtures/stored). */
export const META_VERSION = 1

/** Stored as the record's outcome. */
export interface ResponseMeta {
  /** Format of this object. */
  readonly http: typeof META_VERSION
  readonly status: number
  readonly body: BodyState
  readonly reference?: string
}

const REFERENCE_LENGTH_MAX = 2_048

/**
 * The ending for a handler's answer; undefined = release.
 *
 * @throws {OnceError} RESPONSE_NOT_STORABLE for an answer that cannot be kept, unless the route lets it pass.
 */
export function endingOf<Req>(produced: Produced, id: string, policy: Policy<Req>): Ending | undefined {
  const { status, headers } = produced.kind === 'whole' ? produced.response : produced
  const fate = fateOf(status, policy)
  if (fate === 'release') return undefined
  if (produced.kind === 'unstorable' && !policy.passUnstorable) {
    throw new OnceError('RESPONSE_NOT_STORABLE', `the answer cannot be kept: ${produced.reason}`)
  }
  const whole = produced.kind === 'whole' && policy.keepResponse ? produced.response : undefined
  const reference =
    policy.reference === undefined || produced.kind !== 'whole'
      ? headerOf(headers, 'location')
      : policy.reference(produced.response)
  const meta: ResponseMeta = {
    http: META_VERSION,
    status,
    body: produced.kind === 'unstorable' ? produced.reason : policy.keepResponse ? 'kept' : 'not-kept',
    ...(reference !== undefined && reference.length <= REFERENCE_LENGTH_MAX ? { reference } : {}),
  }
  const kept =
    whole === undefined
      ? undefined
      : {
          bytes: encodeResponse({ ...whole, headers: keptHeaders(headers, policy.keepHeaders) }, id, policy.ring),
          retentionMs: policy.responseRetentionMs,
        }
  return new Ending(fate === 'commit' ? 'succeeded' : 'rejected', meta, kept)
}

/** The stored object back; undefined when the record was not made by a route. */
export function metaOf(outcome: unknown): ResponseMeta | undefined {
  if (typeof outcome !== 'object' || outcome === null || !('http' in outcome) || outcome.http !== META_VERSION)
    return undefined
  if (!('status' in outcome) || typeof outcome.status !== 'number') return undefined
  const reference = 'reference' in outcome && typeof outcome.reference === 'string' ? outcome.reference : undefined
  const body = 'body' in outcome ? (outcome.body as BodyState) : 'not-kept'
  return { http: META_VERSION, status: outcome.status, body, ...(reference === undefined ? {} : { reference }) }
}
