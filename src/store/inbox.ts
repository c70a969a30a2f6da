/**
 * Store contract, inbox half: one transaction around a message (mark, work, outputs), and the durable places for
 * messages that cannot be applied now: waiting and quarantine.
 *
 * Expected races are named results. Everything that decides is database time and the store's unique constraint; a
 * process only schedules. A method throws `OnceError` STORE_UNAVAILABLE, REPLICA_REFUSED or SCHEMA_MISSING when the
 * store cannot be asked: then nothing was decided and nothing may be acknowledged. (I9, I14, I15)
 *
 * @module
 */

import type { Isolation, WorkFailure } from './operation.ts'
import type { OutboxRow } from './outbox.ts'
import type { PurgeBatch, Purged } from './retention.ts'

/** What names a message to one consumer, and what it contains. */
export interface InboxMark {
  /** First 16 bytes of SHA-256 over length-prefixed consumer, source and message id, as a UUID string. */
  readonly id: string
  readonly consumer: string
  /** Namespace of the message id; '' when ids need none. */
  readonly source: string
  readonly messageId: string
  /** SHA-256 of the content. */
  readonly fingerprint: Uint8Array
}

/**
 * What the store says about one delivery.
 * - `new`: the mark is in this transaction; the work may run.
 * - `duplicate`: applied before with the same content.
 * - `mismatch`: applied before, or waiting, with other content.
 * - `expired`: applied before, but the mark's retention is over.
 * - `busy`: the same message is being worked on elsewhere; ask again later.
 * - `behind`: an earlier message of its key waits.
 */
export type InboxVerdict = 'new' | 'duplicate' | 'mismatch' | 'expired' | 'busy' | 'behind'

/** A claim on a waiting row: owner and attempts together are the fence. */
export interface WaitingClaim {
  readonly id: string
  readonly owner: string
  readonly attempts: number
}

/** One message about to be applied. */
export interface InboxRun {
  readonly mark: InboxMark
  /** Set when the message is a claimed waiting row: the row goes in the same transaction, or nothing commits. */
  readonly claim?: WaitingClaim | undefined
  /** Set to refuse the message (`behind`) while an earlier one of this key waits. */
  readonly stopKey?: string | undefined
  /** The operator's word that a mark past its retention does not stop it. */
  readonly override?: boolean | undefined
}

export interface InboxOpenOptions {
  /** Milliseconds from now, by the store's clock, until a repeat is no longer recognised. */
  readonly retentionMs: number
  /** Milliseconds after which the store ends a transaction whose owner is silent. */
  readonly idleTimeoutMs: number
  /**
   * true = the caller awaits `begin` before it uses `tx`; false = a refusal aborts the transaction, so that a first
   * statement of the work sent in the same trip does nothing. Of several runs without it either all are `new` or all
   * are `busy`: then one of them may be anything else, and asking with marks first tells. Runs with `stopKey` or
   * `override` need it.
   */
  readonly marksFirst: boolean
  readonly isolation?: Isolation | undefined
}

/**
 * How finishing ended.
 * - `committed`: marks, outputs, the work's writes and the end of the claims are durable.
 * - `fenced`: a claim was taken over; all rolled back.
 * - `ended`: the work itself ended the transaction; what it committed by itself stays.
 * - `retry`: serialization failure or deadlock; all rolled back, a fresh transaction may succeed.
 * - `unresolved`: the answer to COMMIT was lost; the mark decides when the message comes again.
 */
export type InboxFinish = 'committed' | 'fenced' | 'ended' | 'retry' | 'unresolved'

/** One transaction around one message or one batch. Nothing is sent before its first statement. */
export interface OpenInbox<Tx> {
  /** The user's own handle; its first statement carries BEGIN and the marks. Dead after finish or rollback. */
  readonly tx: Tx
  /** Database time, through the same transaction. */
  now(): Promise<Date>
  /**
   * Takes the marks and returns one verdict per run, in the order of the runs. Of the same mark twice in one
   * batch the first is `new` and the others are `duplicate` (or `mismatch`).
   */
  begin(): Promise<readonly InboxVerdict[]>
  /** The verdicts when they were asked for or a statement was sent; undefined while nothing was sent. */
  verdicts(): Promise<readonly InboxVerdict[]> | undefined
  /** Raises the entity's version; false = this version or a higher one was seen before. (R35) */
  ifNewer(consumer: string, entity: string, version: bigint): Promise<boolean>
  /** Writes the outputs, ends the claims and commits, in one trip; takes the marks first when nothing was sent yet. */
  finish(outbox: readonly OutboxRow[]): Promise<InboxFinish | readonly InboxVerdict[]>
  /** Ends without a trace. `lost` = the connection was gone before, so the failure is the store's. Never throws. */
  rollback(): Promise<'rolledBack' | 'lost'>
  /** Cuts the connection at once (time-out): the store rolls back by itself. */
  abort(reason: Error): void
}

/** A delivery as it is kept while it waits or is quarantined; enough to deliver it again byte for byte. */
export interface KeptDelivery {
  readonly queue: string
  readonly topic: string
  readonly type: string | undefined
  readonly contentType: string | undefined
  readonly orderingKey: string | undefined
  readonly sentAtMs: number | undefined
  /** JSON text: transport headers, transport message id and the ids found, see src/inbox/kept.ts. */
  readonly transport: string
  readonly body: Uint8Array
}

export type WaitingReason = 'failed' | 'no-handler' | 'behind' | 'claimed' | 'redriven'
export type InboxQuarantineReason = 'no-identity' | 'undecodable' | 'mismatch' | 'expired' | 'exhausted' | 'refused'

/** A message going to wait, straight from the broker. */
export interface NewWaiting {
  readonly mark: InboxMark
  readonly delivery: KeptDelivery
  readonly reason: 'failed' | 'no-handler' | 'behind'
  /** Attempts made: 1 after a failed run, 0 when it did not run. */
  readonly attempts: number
  readonly dueInMs: number
  /** Names the failure; bounded, without payload. */
  readonly error?: string | undefined
}

/** Due rows that were claimed, and whether there are suspects: those are left for `claimSuspect`. */
export interface ClaimedDue {
  readonly claimed: readonly ClaimedWaiting[]
  readonly suspects: boolean
}

/** A claimed waiting row. */
export interface ClaimedWaiting {
  readonly mark: InboxMark
  readonly claim: WaitingClaim
  readonly delivery: KeptDelivery
  readonly reason: WaitingReason
  readonly override: boolean
  /** The claim before this one was never given back: its consumer vanished while it ran. */
  readonly suspect: boolean
}

export interface NewQuarantine {
  /** For a message without identity: `messageId` undefined, `id` a hash of its content. */
  readonly mark: Omit<InboxMark, 'messageId'> & { readonly messageId: string | undefined }
  readonly delivery: KeptDelivery
  readonly reason: InboxQuarantineReason
  readonly attempts: number
  readonly error?: string | undefined
  /** The broker delivered it before, so an equal entry is the same message and is not written twice. */
  readonly redelivered: boolean
}

/** Answer to `claimDelivery`; `stored` = it already waits, `quarantined` = it already lies there: both may be acknowledged. */
export type DeliveryClaim =
  | { readonly kind: 'claimed'; readonly claim: WaitingClaim }
  | { readonly kind: 'duplicate' | 'mismatch' | 'expired' | 'stored' | 'quarantined' | 'busy' }

export interface ClaimDueOptions {
  readonly consumer: string
  readonly owner: string
  readonly limit: number
  readonly leaseMs: number
  /** Types that have a handler; undefined = all have. Rows that wait for a handler are claimed when theirs is here. */
  readonly types?: readonly string[] | undefined
  /** Only the earliest waiting message of a key may be claimed. */
  readonly headsOnly: boolean
  /** Ids that this consumer is working on right now and that must not be claimed again. */
  readonly except: readonly string[]
}

export interface WaitingEntry {
  readonly id: string
  readonly consumer: string
  readonly source: string
  readonly messageId: string
  readonly type: string | undefined
  readonly topic: string
  readonly orderingKey: string | undefined
  readonly reason: WaitingReason
  readonly attempts: number
  readonly dueAt: Date
  readonly claimed: boolean
  readonly lastError: string | undefined
  readonly history: readonly unknown[]
  readonly createdAt: Date
}

export interface InboxQuarantineEntry {
  readonly id: string
  readonly markId: string
  readonly consumer: string
  readonly source: string
  readonly messageId: string | undefined
  readonly type: string | undefined
  readonly topic: string
  readonly orderingKey: string | undefined
  readonly reason: InboxQuarantineReason
  readonly attempts: number
  readonly lastError: string | undefined
  readonly history: readonly unknown[]
  readonly receivedAt: Date
  readonly quarantinedAt: Date
}

export interface RedriveOptions {
  /** Run it although its mark is past its retention (B81). */
  readonly override: boolean
  /** Who does it and why, for the audit row in the same transaction. (I16) */
  readonly actor: string
  readonly reason: string
}

/**
 * How a redrive ended for one entry.
 * - `redriven`: it waits again under its own id and is due now.
 * - `no-identity`: it cannot be redriven, because nothing names it.
 * - `waiting`: a message with this id already waits.
 * - `absent`: no such entry.
 */
export type RedriveResult = 'redriven' | 'no-identity' | 'waiting' | 'absent'

export interface InboxStore<Tx> {
  /** What an error thrown by a handler means for its transaction. */
  failureOf(error: unknown): WorkFailure
  /** Takes a connection (bounded) and prepares one transaction for these runs; at least one. */
  open(runs: readonly InboxRun[], options: InboxOpenOptions): Promise<OpenInbox<Tx>>
  /** One verdict per mark from the primary, without taking anything; `new` = no mark is there. */
  lookup(marks: readonly InboxMark[]): Promise<readonly ('new' | 'duplicate' | 'mismatch' | 'expired')[]>
  /**
   * Writes down that a redelivered message is about to run, before it runs. (I15)
   * Attempt 1, claimed by `owner`, until `leaseMs` from now.
   */
  claimDelivery(
    mark: InboxMark,
    delivery: KeptDelivery,
    claim: { readonly owner: string; readonly leaseMs: number },
  ): Promise<DeliveryClaim>
  /** Puts messages into waiting, all or none. `stored` = it waits already; `mismatch` = with other content. */
  wait(rows: readonly NewWaiting[]): Promise<readonly ('waiting' | 'stored' | 'mismatch')[]>
  /** Claims due rows; each claim is committed and counted before anything of them runs. (I15, B77) */
  claimDue(options: ClaimDueOptions): Promise<ClaimedDue>
  /**
   * Claims one due row whose last claim was never given back: it may have ended its consumer's process, so it is claimed
   * when it is about to run alone, and no other message is counted with it. (SC38)
   */
  claimSuspect(options: Omit<ClaimDueOptions, 'limit'>): Promise<ClaimedWaiting | undefined>
  /** Lengthens claims; returns the ids that are still ours. */
  renew(claims: readonly WaitingClaim[], leaseMs: number): Promise<readonly string[]>
  /** A claimed message failed: it is due again later. */
  postpone(
    claim: WaitingClaim,
    next: {
      readonly reason: 'failed' | 'no-handler' | 'behind'
      readonly dueInMs: number
      readonly error?: string | undefined
    },
  ): Promise<'waiting' | 'fenced'>
  /** Gives claims back uncounted (shutdown, store trouble): due in `dueInMs`. */
  release(claims: readonly WaitingClaim[], dueInMs: number): Promise<void>
  /** A claimed message is settled without running: it was applied before. */
  discard(claim: WaitingClaim): Promise<'discarded' | 'fenced'>
  /** Moves a claimed message to quarantine. */
  quarantineClaimed(
    claim: WaitingClaim,
    why: { readonly reason: InboxQuarantineReason; readonly error?: string | undefined },
  ): Promise<'quarantined' | 'fenced'>
  /** Puts messages straight from the broker into quarantine, all or none. */
  quarantine(rows: readonly NewQuarantine[]): Promise<void>
  /** Moves quarantined messages back to waiting, ids kept (R45); with `override` past an expired mark (B81). */
  redrive(ids: readonly string[], options: RedriveOptions): Promise<readonly RedriveResult[]>
  /** Makes waiting messages due now. Returns how many. */
  hasten(consumer: string, ids?: readonly string[]): Promise<number>
  listWaiting(page: {
    readonly consumer?: string | undefined
    readonly limit: number
  }): Promise<readonly WaitingEntry[]>
  listQuarantine(page: {
    readonly consumer?: string | undefined
    readonly limit: number
    /** Entries after this id. */
    readonly after?: string | undefined
  }): Promise<readonly InboxQuarantineEntry[]>
  /** Raw bytes and transport of one quarantined message. */
  readQuarantined(id: string): Promise<KeptDelivery | undefined>
  /**
   * Removes marks whose retention ended more than `graceMs` ago, at most `limit`, and never the mark of a message
   * that waits or is quarantined (I13, B81).
   */
  purgeMarks(batch: PurgeBatch): Promise<Purged>
  /** Milliseconds for which the oldest mark that `purgeMarks` would take has been due; 0 = there is none. */
  overdueMarksMs(graceMs: number): Promise<number>
}
