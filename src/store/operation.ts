/**
 * Store contract, operation half: one attempt opens lazily, is decided by the store, and is finished in one trip.
 *
 * Expected races are named results. Everything that decides is database time and the store's unique constraint;
 * a process only schedules. (I1, I4, I14)
 *
 * @module
 */

import type { Fingerprint } from '../fingerprint/fingerprint.ts'
import type { StoredFingerprint } from '../fingerprint/stored.ts'
import type { OutboxRow } from './outbox.ts'
import type { PurgeBatch, Purged } from './retention.ts'

/** What names an operation inside a store. */
export interface OperationIdentity {
  /** First 16 bytes of SHA-256 over length-prefixed scope and key, as a UUID string. */
  readonly id: string
  /** JSON list of the scope's parts. */
  readonly scope: string
}

/** One try of one operation. */
export interface Attempt extends OperationIdentity {
  /** Random 128-bit UUID; decides an ambiguous COMMIT. A new one for every attempt. */
  readonly token: string
  /** Unkeyed fingerprint, computed before the first trip. */
  readonly fingerprint: Fingerprint
}

/**
 * What the store says about an attempt.
 * - `claimed`: this attempt owns the operation until its transaction ends.
 * - `recorded`: a live record exists; look it up.
 * - `busy`: the same payload is being worked on.
 * - `otherPayload`: another payload is being worked on under this key.
 */
export type Verdict = 'claimed' | 'recorded' | 'busy' | 'otherPayload'

/** A completed operation as it is stored. */
export interface OperationRecord extends OperationIdentity {
  readonly token: string
  readonly state: 'succeeded' | 'rejected'
  /** A person has proven that it was never applied; the state is `rejected` and there is no outcome. */
  readonly notApplied?: true | undefined
  readonly fingerprint: StoredFingerprint
  readonly outcomeVersion: number
  /** JSON text; null when the work returned nothing. */
  readonly outcome: string | null
  /** Bytes kept beside the outcome for a shorter time; absent when there are none, or no longer. */
  readonly response?: Uint8Array | undefined
}

/** A leased operation that is not finished: it holds its key, and has no outcome yet (./job.ts). */
export interface UnfinishedRecord extends OperationIdentity {
  readonly token: string
  readonly state: 'processing' | 'unknown' | 'parked'
  readonly fingerprint: StoredFingerprint
  /** Milliseconds until its owner can be replaced; null = it has none at the moment. */
  readonly leaseLeftMs: number | null
}

/** What a look-up finds. */
export type FoundRecord = OperationRecord | UnfinishedRecord

export function isFinished(record: FoundRecord): record is OperationRecord {
  return record.state === 'succeeded' || record.state === 'rejected'
}

/** A record about to be written. */
export interface NewRecord extends OperationRecord {
  /** Milliseconds from now, by the store's clock, until the key is free again. */
  readonly retentionMs: number
  /** Milliseconds from now, by the store's clock, until `response` is no longer given out. Goes with `response`. */
  readonly responseRetentionMs?: number | undefined
}

/**
 * How finishing ended.
 * - `stored`: record, outbox rows and the work's writes are committed.
 * - `lost`: somebody else's record is there; ours and the work's writes are rolled back.
 * - `fenced`: the work itself ended the transaction; nothing is recorded.
 * - `retry`: serialization failure or deadlock; all rolled back, a fresh transaction may succeed.
 * - `unresolved`: the answer to COMMIT was lost; ask `verifyCommit`.
 */
export type FinishResult = 'stored' | 'lost' | 'fenced' | 'retry' | 'unresolved'

/** Result of deciding a COMMIT whose answer was lost. `other` = somebody else's record is there. */
export type CommitVerdict = 'committed' | 'notCommitted' | 'other' | 'unresolved'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

export interface OpenOptions {
  /** false = no gate before the first statement; the unique constraint decides at the end. */
  readonly gated: boolean
  readonly isolation?: Isolation | undefined
  /** Milliseconds after which the store ends a transaction whose owner is silent. */
  readonly idleTimeoutMs: number
}

/** An attempt on one connection. Nothing is sent before its first statement. */
export interface OpenOperation<Tx> {
  /** The user's own handle; its first statement carries BEGIN and the gate. Dead after finish or rollback. */
  readonly tx: Tx
  /** The deadlock or serialization failure by which the store has rolled the work back; undefined when there was none. */
  readonly conflict: unknown
  /** Database time, through the same transaction. */
  now(): Promise<Date>
  /** The store's decision; undefined while nothing was sent. Rejects when the store cannot be asked. */
  verdict(): Promise<Verdict> | undefined
  /** Opens and decides now, before any statement of the work. Rejects when the store cannot be asked. */
  decide(): Promise<Verdict>
  /**
   * Writes the record, the outbox rows and COMMIT in one trip; opens and decides first when nothing was sent yet.
   * Throws when the store refused for certain (rolled back) for another reason than a race. Without a record it
   * commits the work and the messages alone.
   */
  finish(
    record: NewRecord | undefined,
    outbox: readonly OutboxRow[],
  ): Promise<FinishResult | Exclude<Verdict, 'claimed'>>
  /** Whether the transaction is still the one that was opened: false when the work has ended it itself. */
  untouched(): Promise<boolean>
  /**
   * Ends the transaction without a trace; never throws, and gives the connection back or destroys it. `lost`: the
   * connection was gone, so the store rolls back by itself, maybe later.
   */
  rollback(): Promise<'rolledBack' | 'lost'>
  /** Cuts the connection at once (time-out): the store rolls back by itself. */
  abort(reason: Error): void
}

/** Answer to a claim in the caller's own transaction. */
export interface InnerClaim {
  readonly verdict: Verdict
  /** Names the transaction, so that `succeedIn` can tell whether it is still the same one. */
  readonly transactionId: string | undefined
}

/**
 * What an error thrown by a work looks like: `retry` = serialization failure or deadlock, `connectionLost` = some
 * connection was lost (ours, when `rollback` says so too), `other` = the work's own error.
 */
export type WorkFailure = 'retry' | 'connectionLost' | 'other'

export interface PurgedOperations extends Purged {
  /** Responses erased from records that stay. */
  readonly erased: number
}

export interface OperationStore<Tx> {
  /** Takes a connection (bounded) and prepares an attempt on it. */
  open(attempt: Attempt, options: OpenOptions): Promise<OpenOperation<Tx>>
  /** The live record, by the store's clock, from the primary; grouped with other look-ups of the same moment. */
  lookup(id: string): Promise<FoundRecord | undefined>
  /** Whether a gated attempt of some process holds the operation at this moment. Takes no lock that others could meet. */
  running(id: string): Promise<boolean>
  /**
   * Decides an ambiguous COMMIT behind the attempt's own locks, on a new connection, within `boundMs`.
   * Only meaningful for attempts that were gated.
   */
  verifyCommit(attempt: Attempt, boundMs: number): Promise<CommitVerdict>
  /** One statement of the user and the record, as one statement. Value = its rows as a JSON list. */
  statement(
    record: Omit<NewRecord, 'outcome'>,
    statement: UserStatement,
    outcomeBytesMax: number,
  ): Promise<StatementResult>
  failureOf(error: unknown): WorkFailure
  /** Refuses a handle on which no transaction is open: NOT_A_TRANSACTION. */
  assertTransaction(tx: Tx): Promise<void>
  /** Adds messages in the caller's transaction. */
  addIn(tx: Tx, rows: readonly OutboxRow[]): Promise<void>
  claimIn(tx: Tx, attempt: Attempt): Promise<InnerClaim>
  /** The live record, read through the caller's own transaction. */
  lookupIn(tx: Tx, id: string): Promise<FoundRecord | undefined>
  /** Writes the record in the caller's transaction. `fenced` = it is not the transaction that claimed. */
  succeedIn(tx: Tx, record: NewRecord, transactionId: string): Promise<'stored' | 'lost' | 'fenced'>
  /**
   * Removes records that are past their retention, and erases responses that are past theirs from records that are not,
   * at most `limit` together, the longest overdue first. Never anything else, and never a record that an attempt is
   * replacing at the moment. (I13, R40)
   */
  purge(batch: PurgeBatch): Promise<PurgedOperations>
  /** Milliseconds for which the oldest row that `purge` would take has been due; 0 = there is none. */
  overdueMs(graceMs: number): Promise<number>
}

/** The user's own single statement. */
export interface UserStatement {
  readonly text: string
  readonly values?: readonly unknown[] | undefined
}

export type StatementResult =
  | { readonly kind: 'stored'; readonly outcome: string }
  | { readonly kind: 'lost' | 'retry' | 'unresolved' }
  /** Refused for another reason, for instance a unique constraint of the user's own; a record may be there all the same. */
  | { readonly kind: 'failed'; readonly error: unknown }
