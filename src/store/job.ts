/**
 * Store contract, job half: operations that are claimed by a committed lease and worked on in steps.
 *
 * A leased operation lies in the table of records from its first claim on, as `processing`, so one constraint decides
 * between every kind of attempt. The fence grows with each ownership; token and fence and a live lease are compared in
 * the very statement that writes, and the answer `fenced` means that nothing was written. Leases, ages and due times
 * are the database's; callers keep a local deadline from a monotonic clock that they started BEFORE calling.
 * (I1, I5, I11, I12, I14, I15)
 *
 * A method may be called again when its answer was lost: every one says what it found the second time.
 *
 * @module
 */

import type { StoredFingerprint } from '../fingerprint/stored.ts'
import type { JobReplacing } from './job-replace.ts'
import type { NewRecord, OperationIdentity } from './operation.ts'
import type { OutboxRow } from './outbox.ts'

/** One ownership of one operation. */
export interface Lease {
  readonly id: string
  /** Random 128-bit UUID of the attempt. */
  readonly token: string
  /** Greater than every fence given out before for this operation. */
  readonly fence: bigint
}

/** What is stored before the first claim of an operation, or by it. */
export interface NewJob extends OperationIdentity {
  readonly token: string
  readonly fingerprint: StoredFingerprint
  /** Name of the defined kind; null for a bare closure, which only a caller can resume. */
  readonly kind: string | null
  /** Version of the code that starts it. */
  readonly version: number
  /** JSON text that the kind's handler gets; null for a closure. */
  readonly payload: string | null
}

/** An unfinished operation, read from the primary. */
export interface JobRecord extends OperationIdentity {
  readonly state: 'processing' | 'unknown' | 'parked'
  readonly token: string
  readonly fence: bigint
  readonly fingerprint: StoredFingerprint
  readonly kind: string | null
  readonly version: number
  readonly payload: string | null
  /** Milliseconds until a silent owner can be replaced; null = nobody holds it. Negative values are told as null. */
  readonly leaseLeftMs: number | null
  /** Milliseconds until a worker may take it; null = no worker will. Past instants are 0. */
  readonly dueInMs: number | null
  /** Claims whose end nobody has reported: what a work that kills its process leaves behind. (I15) */
  readonly claims: number
  /** Attempts that reported a failure. */
  readonly failures: number
  /** Why it waits or is parked: a code or a name of an error, never a payload. */
  readonly reason: string | null
  /** Milliseconds since the first claim. */
  readonly ageMs: number
}

/** A job that `claimDue` took. */
export interface DueJob extends JobRecord {
  readonly lease: Lease
  /** How long the lease was taken for, milliseconds. */
  readonly leaseMs: number
}

/** A kind that a worker can run. */
export interface ClaimableKind {
  readonly kind: string
  readonly version: number
  readonly leaseMs: number
  /** Unreported claims from which on it is parked instead of claimed. */
  readonly claimsMax: number
}

/**
 * - `claimed`: this attempt is the first; its fence is 1.
 * - `exists`: there is a record or a job: look it up. An expired record has been removed: claim again.
 * - `busy`: a transaction works under this key, or has an uncommitted record or job of it: ask again later.
 * - `unresolved`: the answer was lost; whoever finds its own token there has claimed. (SC8)
 */
export type ClaimAnswer =
  | { readonly kind: 'claimed'; readonly fence: bigint }
  | { readonly kind: 'exists' | 'busy' | 'unresolved' }

/**
 * - `claimed`: the lease of a silent or gone owner is ours.
 * - `busy`: somebody holds it, was faster, or it is finished: look it up.
 * - `parked`: it has killed `claimsMax` owners and now waits for a person.
 */
export type TakeOverAnswer =
  | { readonly kind: 'claimed'; readonly fence: bigint; readonly claims: number }
  | { readonly kind: 'busy' | 'parked' | 'unresolved' }

/** `locked`: still ours, but a step is committing on it right now; ask again soon. */
export type RenewAnswer = 'renewed' | 'locked' | 'lost'

/** `fenced`: another owner, no live lease, or no longer unfinished. Nothing was written. */
export type FencedAnswer = 'stored' | 'fenced' | 'unresolved'

export type StepType = 'transaction' | 'effect' | 'memo'

/**
 * State of a stored step. Transactions and memos are stored when they are done.
 * - `intended`: an effect whose call may be on its way, or may have been lost with its owner.
 * - `done`, `refused`: it has an answer, and that is final.
 * - `unknown`: it may or may not have happened; waits for reconcile or a person.
 */
export type StepState = 'intended' | 'done' | 'refused' | 'unknown'

/** What is stored about an effect besides its result. */
export interface EffectIntent {
  /** keyed | reconciled | at-most-once | at-least-once */
  readonly delivery: string
  /** The frozen request, JSON text: exactly this is sent on every attempt. */
  readonly request: string
  /** SHA-256 of the request's canonical form, hexadecimal. */
  readonly requestHash: string
  /** The key that the provider gets. */
  readonly providerKey: string
}

export interface NewStep {
  readonly name: string
  /** Place in the order in which the handler started its steps, from 0. */
  readonly position: number
  readonly type: StepType
  readonly state: StepState
  /** JSON text; null when there is none (yet). */
  readonly result: string | null
  readonly resultVersion: number
  readonly effect?: EffectIntent | undefined
}

export interface StepRecord extends NewStep {
  /** Fence of the owner that wrote it last. */
  readonly fence: bigint
  readonly effect?: StoredEffect | undefined
}

export interface StoredEffect extends EffectIntent {
  /** Attempts that were started. */
  readonly attempts: number
  /** How often a new provider key was recorded after a proven "nothing happened". 0 at first. */
  readonly keyGeneration: number
  /** Times in a row that reconcile has said "not applied" after the last attempt had settled. */
  readonly looks: number
  /** Milliseconds, by the database clock, since the start of the first attempt with this provider key. */
  readonly firstAttemptAgeMs: number
  /** Milliseconds since the start of the last attempt. */
  readonly lastAttemptAgeMs: number
  /** Milliseconds since it became unknown; null when it is not. */
  readonly unknownAgeMs: number | null
}

/**
 * A change of an effect that is `intended` or `unknown`; one that has its answer (a webhook was faster) is `decided`,
 * and read again.
 */
export type EffectChange =
  /**
   * Counts another attempt, whose call follows, and begins a new row of looks. Refused as `expired` when the key is older
   * than `keyAgeMaxMs`. How long it has been unknown goes on counting when it becomes so again, unless the last look said
   * "not applied".
   */
  | { readonly to: 'attempt'; readonly keyAgeMaxMs: number | null }
  /** A proven "nothing happened" allows a new key. The next attempt is the first with it. */
  | { readonly to: 'newKey'; readonly providerKey: string }
  | { readonly to: 'looked'; readonly looks: number }
  | { readonly to: 'done' | 'refused'; readonly result: string | null; readonly resultVersion: number }
  | { readonly to: 'unknown' }

export type EffectAnswer = FencedAnswer | 'decided' | 'expired'

/** Why and how an owner gives an operation back before it is finished. */
export interface Release {
  readonly state: 'processing' | 'unknown' | 'parked'
  /** Milliseconds until a worker may take it; null = none will. Ignored for closures. */
  readonly dueInMs: number | null
  /** Counts a failed attempt. */
  readonly failed: boolean
  /** Code or name, at most 500 characters; for people. */
  readonly reason: string
}

/**
 * How a step's transaction ended.
 * - `stored`: the step, its outbox rows and its writes are committed.
 * - `exists`: a step of this name is stored; ours is rolled back.
 * - `fenced`: the lease is not ours any more; rolled back.
 * - `ended`: the work itself ended the transaction.
 * - `retry`: deadlock or serialization failure; rolled back, a fresh transaction may succeed.
 * - `unresolved`: the answer to COMMIT was lost: look at the steps, or run it again; the name is unique.
 */
export type StepFinish = 'stored' | 'exists' | 'fenced' | 'ended' | 'retry' | 'unresolved'

/** A transaction in which a step works. Nothing is sent before its first statement. */
export interface OpenStep<Tx> {
  /** The user's own handle; its first statement carries BEGIN and the fence's check. Dead after the end. */
  readonly tx: Tx
  /** As in an operation: the conflict by which the store has rolled the work back. */
  readonly conflict: unknown
  /** Database time, through the same transaction. */
  now(): Promise<Date>
  /** Whether the lease was live when the transaction opened; undefined while nothing was sent. */
  held(): Promise<boolean> | undefined
  /** Writes the step, the outbox rows and COMMIT, with the fence compared and the lease kept from takeover until then. */
  finish(step: NewStep, outbox: readonly OutboxRow[]): Promise<StepFinish>
  rollback(): Promise<'rolledBack' | 'lost'>
  abort(reason: Error): void
}

/** Names an effect for whoever resolves it. */
export type EffectReference =
  | { readonly id: string; readonly name: string }
  /** The key that the provider was given; webhooks carry it. */
  | { readonly providerKey: string }

/** Who acts and why; written to the audit table in the transaction of the act. (I16) */
export interface Act {
  readonly actor: string
  readonly reason: string
}

export type EffectProof =
  | { readonly state: 'done' | 'refused'; readonly result: string | null; readonly resultVersion: number }
  /**
   * Proven that nothing happened: the effect may be attempted again, with the same key. It becomes `intended`, with
   * `looks` = LOOKS_PROVEN.
   */
  | { readonly state: 'notApplied' }

/** `looks` of an effect of which it is proven that it was not applied: more than any number that can be asked for. */
export const LOOKS_PROVEN = 32_767

/**
 * - `resolved`: attached; the operation is due again unless it is parked or an owner works on it.
 * - `decided`: it had an answer already, and keeps it.
 * - `notFound`: no such effect or operation.
 * - `busy`: an owner works on it at this moment, so this act is not possible now.
 */
export type ResolveAnswer = 'resolved' | 'decided' | 'notFound' | 'busy'

/** What operators see in a list. No payload, no result. */
export interface JobSummary extends Omit<JobRecord, 'payload' | 'fingerprint' | 'token'> {
  /** Names of its effects that are unknown, with their ages in milliseconds. */
  readonly unknownEffects: readonly { readonly name: string; readonly ageMs: number }[]
}

/** One line of an operation's history: takeovers, failures, hand-backs, parking, replacing, resolutions. Oldest first. */
export interface JobEvent {
  readonly atMs: number
  readonly fence: bigint
  readonly event: 'takenOver' | 'released' | 'failed' | 'unknown' | 'parked' | 'replaced' | 'resolved' | 'redriven'
  readonly detail: string | null
}

export interface JobStore<Tx> extends JobReplacing<Tx> {
  /**
   * Claims an operation that nobody has claimed before: inserts it as `processing` under the unique constraint.
   * Claims of one moment share a statement; each has its own answer and its own error.
   */
  claim(job: NewJob, leaseMs: number): Promise<ClaimAnswer>
  /** Stores a job without claiming it; due in `delayMs`. Grouped like `claim`. */
  enqueue(job: NewJob, delayMs: number): Promise<'stored' | 'exists' | 'busy' | 'unresolved'>
  /**
   * The same in the caller's own transaction. `busy`: another transaction has an uncommitted claim on it, so nobody
   * knows yet whether it exists (B27).
   */
  enqueueIn(tx: Tx, job: NewJob, delayMs: number): Promise<'stored' | 'exists' | 'busy'>
  /** The unfinished operation; undefined when there is none, or it is finished. */
  find(id: string): Promise<JobRecord | undefined>
  /**
   * Takes an operation whose lease is over or given back, if `fence` is still its newest. Of any number of callers
   * exactly one is `claimed`. (SC3)
   */
  takeOver(job: {
    readonly id: string
    readonly fence: bigint
    readonly token: string
    readonly leaseMs: number
    readonly claimsMax: number
  }): Promise<TakeOverAnswer>
  /**
   * Claims up to `limit` due operations of these kinds and versions, oldest due first, without waiting for locks.
   * Exactly the rows that are returned were claimed (B30). Those that have killed too many owners come back as parked.
   */
  claimDue(
    kinds: readonly ClaimableKind[],
    limit: number,
  ): Promise<{
    readonly claimed: readonly DueJob[]
    readonly parked: readonly JobRecord[]
    /** Milliseconds until the next one of these kinds is due; null = none is known. */
    readonly nextDueInMs: number | null
  }>
  /**
   * Renews leases, on a connection of its own that no other work can take. One statement per thousand leases; never
   * waits for a lock.
   */
  renew(leases: readonly { readonly lease: Lease; readonly leaseMs: number }[]): Promise<readonly RenewAnswer[]>
  /** The steps of an operation in the order of their positions. */
  steps(id: string): Promise<readonly StepRecord[]>
  openStep(lease: Lease, options: { readonly idleTimeoutMs: number }): Promise<OpenStep<Tx>>
  /**
   * Stores a step that needs no transaction of the user: an intent (its first attempt is counted), a memo, an effect that is recorded afterwards. Grouped.
   * `exists`: a step of this name is there.
   */
  writeStep(lease: Lease, step: NewStep): Promise<FencedAnswer | 'exists'>
  changeEffect(lease: Lease, name: string, change: EffectChange): Promise<EffectAnswer>
  /** Writes the outcome and ends the lease. Grouped. `fenced` when the record is not this owner's to finish. */
  complete(lease: Lease, record: NewRecord): Promise<FencedAnswer>
  /**
   * Gives the operation back; the claim is counted as reported. Given back as `unknown` after one of its effects was
   * resolved during this ownership, it becomes `processing` and due at once: the proof may be the one it would wait for.
   */
  release(lease: Lease, release: Release): Promise<FencedAnswer>
  /**
   * Attaches a proven result to an effect that is unknown, or whose call has not been answered yet, also while an owner
   * works; only `notApplied` is `busy` then, for a call may be on its way. Audited.
   */
  resolveEffect(effect: EffectReference, proof: EffectProof, act: Act): Promise<ResolveAnswer>
  /**
   * Attaches an outcome to an unfinished operation that nobody holds. `record.token` is new. Audited. `busy` while an owner
   * works.
   */
  resolveOperation(record: NewRecord, act: Act): Promise<ResolveAnswer>
  /** Makes an unfinished operation that nobody holds due now, with a fresh budget of claims and failures (SC54). Audited. */
  redrive(id: string, act: Act): Promise<'redriven' | 'notFound' | 'busy'>
  /** Unfinished operations in these states, oldest first, after the one with id `after`. At most `limit`. */
  list(filter: {
    readonly states: readonly JobRecord['state'][]
    readonly limit: number
    readonly after?: string | undefined
  }): Promise<readonly JobSummary[]>
  history(id: string): Promise<readonly JobEvent[]>
}
