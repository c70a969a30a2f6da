/**
 * Replay: what a repeat of a completed request gets.
 *
 * Order matters: the fingerprint first, then the caller's rights, then decryption. A caller with another payload learns
 * nothing of the outcome (I4), one whose rights were withdrawn neither (T3).
 *
 * @module
 */

import type { Fingerprint } from '../fingerprint/fingerprint.ts'
import { matchesStored } from '../fingerprint/stored.ts'
import type { Engine } from '../operation/engine.ts'
import { refuseNotApplied, reused } from '../operation/operation.ts'
import { decodeOutcome } from '../operation/outcome.ts'
import { OnceError } from '../shared/errors.ts'
import { bounded } from '../shared/waiting.ts'
import type { OperationRecord } from '../store/operation.ts'
import { readableFor } from './coding.ts'
import type { Exchange } from './exchange.ts'
import type { ReplayMeta } from './options.ts'
import { metaOf, type ResponseMeta } from './outcome.ts'
import type { Policy } from './policy.ts'
import { plainProblem, problemOf } from './problem.ts'
import type { WholeResponse } from './response.ts'
import { decodeResponse } from './stored.ts'

/**
 * The answer to a repeat with this fingerprint.
 *
 * @throws {OnceError} IDEMPOTENCY_KEY_REUSED, RESULT_UNAVAILABLE, NOT_APPLIED.
 */
export async function replayOf<Tx, Req>(
  engine: Engine<Tx>,
  policy: Policy<Req>,
  { request, headers }: Pick<Exchange<Tx, Req>, 'request' | 'headers'>,
  asked: { readonly fingerprint: Fingerprint },
  record: OperationRecord,
): Promise<WholeResponse> {
  switch (matchesStored(asked.fingerprint, record.fingerprint, engine.secrets)) {
    case 'other':
      throw reused()
    case 'unreadable':
      throw new OnceError('RESULT_UNAVAILABLE', 'the record was made with a fingerprint secret that is not in the ring')
    case 'same':
      break
  }
  const found = await storedAnswer(policy, request, record)
  switch (found.kind) {
    case 'answer': {
      const marks = [
        ['cache-control', 'no-store'],
        [policy.replayHeader, 'true'],
      ] as const
      const response = await readableFor(headers, found.response)
      return { ...response, headers: [...response.headers, ...marks] }
    }
    case 'forbidden':
      return plainProblem(policy.problems, 403, 'Forbidden', 'You may not see the answer to this request.')
    case 'unavailable':
      return unavailable(policy, found.reference)
  }
}

/** What is left of an operation's answer, for a caller of this scope. */
export type StoredAnswer =
  | { readonly kind: 'answer'; readonly response: WholeResponse }
  | { readonly kind: 'forbidden' }
  | { readonly kind: 'unavailable'; readonly reference: string | undefined }

export async function storedAnswer<Req>(
  policy: Pick<Policy<Req>, 'authorizeReplay' | 'reconstruct' | 'ring' | 'transaction'>,
  request: Req,
  record: OperationRecord,
): Promise<StoredAnswer> {
  refuseNotApplied(record)
  const stored = metaOf(decodeOutcome(record))
  if (stored === undefined) return { kind: 'unavailable', reference: undefined }
  const meta = replayMeta(record, stored)
  const decision =
    policy.authorizeReplay === undefined ? true : await inTime(policy, policy.authorizeReplay(request, meta))
  if (decision === 'receipt') return { kind: 'unavailable', reference: meta.reference }
  // Anything but a clear yes is a no.
  if (decision !== true) return { kind: 'forbidden' }
  const response = record.response === undefined ? undefined : decodeResponse(record.response, record.id, policy.ring)
  const made = response === undefined ? policy.reconstruct?.(meta, request) : undefined
  const answer = response ?? (made === undefined ? undefined : await inTime(policy, made))
  return answer === undefined
    ? { kind: 'unavailable', reference: meta.reference }
    : { kind: 'answer', response: answer }
}

/** A hook has as long as a handler. */
async function inTime<T>({ transaction }: Pick<Policy<unknown>, 'transaction'>, hook: T | Promise<T>): Promise<T> {
  if (!(hook instanceof Promise)) return hook
  const ended = await bounded(hook, transaction.timeoutMs)
  if (ended.kind === 'done') return ended.value
  throw new OnceError('TOO_BUSY', `a hook of the route ran longer than ${transaction.timeoutMs} ms (timeoutMs)`)
}

function replayMeta(record: OperationRecord, { status, reference }: ResponseMeta): ReplayMeta {
  const scope: unknown = JSON.parse(record.scope)
  return { scope: Array.isArray(scope) ? (scope as string[]) : [], state: record.state, status, reference }
}

function unavailable<Req>(policy: Policy<Req>, reference: string | undefined): WholeResponse {
  const error = new OnceError('RESULT_UNAVAILABLE', 'the stored answer is not kept or cannot be read')
  return problemOf(error, policy.problems, { members: reference === undefined ? {} : { resource: reference } })
}
