/**
 * Inner: claims, outcomes and messages in a transaction that the caller already has.
 *
 * The caller owns BEGIN and COMMIT, so the caller also owns an answer to COMMIT that never came:
 * `verifyCommit(claim)` decides it. Rejections are not offered here: they need a rollback in between.
 *
 * @module
 */

import { type Outbox, OutboxBuffer } from '../outbox/buffer.ts'
import type { Message } from '../outbox/message.ts'
import { OnceError } from '../shared/errors.ts'
import { integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { Attempt, CommitVerdict } from '../store/operation.ts'
import { type Engine, refuseOwnClaim } from './engine.ts'
import { newAttempt, newRecord, type Operation, type Outcome, outcomeOf, ownOutcome, reused } from './operation.ts'
import { RETENTION_DEFAULT_MS, RETENTION_MAX_MS } from './retention.ts'

/** A claim that this transaction holds until it ends. Opaque; hand it to `succeed` and `verifyCommit`. */
export interface Claim {
  readonly attempt: Attempt
  readonly transactionId: string
}

/** Answer to `claim`. `busy`: roll back and come again; `mismatch`: same key, other payload. */
export type ClaimResult =
  | { readonly kind: 'claimed'; readonly claim: Claim }
  | { readonly kind: 'replay'; readonly outcome: Outcome<unknown, unknown> }
  | { readonly kind: 'busy'; readonly retryAfterMs: number }
  | { readonly kind: 'mismatch' }

/** What `once.in(tx)` gives. */
export interface InTransaction {
  /**
   * Takes the operation for this transaction, without waiting for anybody.
   *
   * @throws {OnceError} NOT_A_TRANSACTION, IDEMPOTENCY_KEY_MISSING, IDEMPOTENCY_KEY_INVALID, SCHEMA_MISSING;
   *   NESTED_OPERATION in the work of the very operation that it claims; OUTCOME_UNKNOWN, OPERATION_PARKED for a leased operation in that state.
   */
  claim(operation: Operation): Promise<ClaimResult>
  /**
   * Stores the outcome with the transaction's own COMMIT, which is the caller's to send.
   *
   * @returns the outcome as every replay will see it.
   * @throws {OnceError} NOT_A_TRANSACTION when this is no longer the transaction that claimed;
   *   OPERATION_IN_PROGRESS when another attempt was faster (roll back and call again);
   *   OUTCOME_NOT_REPRESENTABLE, OUTCOME_TOO_LARGE.
   */
  succeed<T>(claim: Claim, value: T, options?: SucceedOptions): Promise<Outcome<T>>
  /** Adds messages to this transaction at once. The relay finds them by its poll, or earlier with `once.wake()`. */
  readonly outbox: Outbox
  /** Decides whether the transaction that held the claim was committed, on a connection of its own. */
  verifyCommit(claim: Claim, options?: { readonly boundMs?: number | undefined }): Promise<CommitVerdict>
}

export interface SucceedOptions {
  /** How long the outcome is kept and the key stays taken, milliseconds. Default 30 days. */
  readonly retentionMs?: number | undefined
}

const RETRY_AFTER_MS = 1_000
const VERIFY = { min: 1, max: 60_000, default: 10_000 }

/** The API over `tx`; every call first makes sure that a transaction is open on it. */
export function inTransaction<Tx>(engine: Engine<Tx>, tx: Tx): InTransaction {
  const { operations } = engine.store
  return {
    async claim(operation) {
      const attempt = newAttempt(operation)
      refuseOwnClaim(attempt.id)
      await operations.assertTransaction(tx)
      let answer = await operations.claimIn(tx, attempt)
      // One refusal of the key's lock alone may be an accident of timing; a second one is not.
      if (answer.verdict === 'otherPayload') answer = await operations.claimIn(tx, attempt)
      if (answer.verdict === 'claimed' && answer.transactionId !== undefined) {
        return { kind: 'claimed', claim: { attempt, transactionId: answer.transactionId } }
      }
      const record = await operations.lookupIn(tx, attempt.id)
      if (record === undefined) {
        return answer.verdict === 'otherPayload' ? { kind: 'mismatch' } : { kind: 'busy', retryAfterMs: RETRY_AFTER_MS }
      }
      try {
        return { kind: 'replay', outcome: outcomeOf(record, attempt.fingerprint, engine.secrets) }
      } catch (error) {
        if (error instanceof OnceError && error.code === reused().code) return { kind: 'mismatch' }
        if (error instanceof OnceError && error.code === 'OPERATION_IN_PROGRESS') {
          return { kind: 'busy', retryAfterMs: error.retryAfterMs ?? RETRY_AFTER_MS }
        }
        throw error
      }
    },
    async succeed<T>(claim: Claim, value: T, options: SucceedOptions = {}) {
      refuseUnknownOptions('succeed', options, ['retentionMs'])
      const retentionMs = integerOption('retentionMs', options.retentionMs, {
        min: 1,
        max: RETENTION_MAX_MS,
        default: RETENTION_DEFAULT_MS,
      })
      checkClaim('succeed', claim)
      const { secrets, outcomeBytesMax } = engine
      const record = newRecord(claim.attempt, 'succeeded', value, { secrets, retentionMs, bytesMax: outcomeBytesMax })
      await operations.assertTransaction(tx)
      switch (await operations.succeedIn(tx, record, claim.transactionId)) {
        case 'stored':
          return ownOutcome<T, never>(record)
        case 'lost':
          throw new OnceError('OPERATION_IN_PROGRESS', 'another attempt stored its outcome; roll back and call again')
        case 'fenced':
          throw new OnceError('NOT_A_TRANSACTION', 'this is not the transaction that claimed the operation')
      }
    },
    outbox: { add: ((messages: Message) => addNow(engine, tx, messages)) as Outbox['add'] },
    async verifyCommit(claim, options = {}) {
      checkClaim('verifyCommit', claim)
      refuseUnknownOptions('verifyCommit', options, ['boundMs'])
      return await operations.verifyCommit(claim.attempt, integerOption('boundMs', options.boundMs, VERIFY))
    },
  }
}

/** It is easily taken for the answer that it lies in. */
function checkClaim(where: string, claim: Claim): void {
  if (typeof claim?.attempt?.id !== 'string' || typeof claim.transactionId !== 'string') {
    throw new TypeError(`${where} takes the claim of an answer { kind: 'claimed', claim }`)
  }
}

/** One insert for what one call adds; the caller's COMMIT makes it count. */
async function addNow<Tx>(engine: Engine<Tx>, tx: Tx, messages: Message): Promise<string> {
  const buffer = new OutboxBuffer(engine.outboxLimits)
  const ids = await buffer.outbox.add(messages)
  const rows = buffer.end()
  if (rows.length > 0) {
    await engine.store.operations.assertTransaction(tx)
    await engine.store.operations.addIn(tx, rows)
  }
  return ids
}
