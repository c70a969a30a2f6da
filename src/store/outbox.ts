/**
 * Store contract, outbox half: rows that exist only while they are not settled, and lanes with one owner each.
 *
 * Every method is one atomic step. Methods that take a lease compare owner, fence and a live lease in the same
 * statement and answer `lost` when another owner is there (or nobody); then nothing was changed. Answering `done` they
 * have also renewed the lease and made durable whatever was read before, so a busy owner needs no steps of its own
 * for either. Leases are counted by the database clock; a caller keeps a local deadline from a monotonic clock that
 * it started BEFORE calling. (I5, I6, I7, I8, I14)
 *
 * A method may be called again when its answer was lost: settling, parking and moving twice is the same as once.
 *
 * @module
 */

import type { PurgeBatch, Purged } from './retention.ts'

/** One message on its way into the outbox table, in the transaction of the work that made it. */
export interface OutboxRow {
  /** UUID, made once; the transport's message id on every send (R23). */
  readonly id: string
  readonly lane: number
  readonly topic: string
  readonly orderingKey: string | null
  /** The payload as text, exactly as it goes on the wire (base64 when `encoding` says so). */
  readonly payload: string
  readonly encoding: 'text' | 'base64'
  readonly contentType: string
  /** JSON object of string headers. */
  readonly headers: string
}

/** A row as the relay reads it. Nothing is parsed yet: a row that cannot be decoded must not stop the others (B45). */
export interface PendingRow extends Omit<OutboxRow, 'encoding'> {
  /** `text` or `base64`; anything else was written by a newer release. */
  readonly encoding: string
  /** Place in the lane. Order of seq is order of publishing. */
  readonly seq: number
  /** Database time of the insert, milliseconds since 1970. */
  readonly createdAtMs: number
}

/** Why a row is parked. */
export type ParkReason = 'returned' | 'refused' | 'unconfirmed'
/** Why a row is quarantined. */
export type QuarantineReason = 'invalid' | 'undecodable' | 'poison'

/** A parked row that is due for another attempt. */
export interface ParkedRow extends PendingRow {
  /** Attempts that were answered no so far. */
  readonly attempts: number
}

/** The lowest parked (or stopped) row of an ordering key: later rows of that key are parked behind it. */
export interface StoppedKey {
  readonly orderingKey: string
  readonly seq: number
}

/** One ownership of one lane. */
export interface LaneLease {
  readonly lane: number
  /** Random id of the owner, the same for all lanes of one relay. */
  readonly owner: string
  /** Raised by every acquisition. */
  readonly fence: number
}

/** A lane as anybody sees it. */
export interface LaneView {
  readonly lane: number
  /** Its live owner; null when it is free. */
  readonly owner: string | null
  /** Milliseconds until its lease ends, by the database clock; 0 when it is free. */
  readonly leaseLeftMs: number
}

export type AcquireResult =
  | {
      readonly kind: 'acquired'
      readonly lease: LaneLease
      /** Owners in a row that ended without handing the lane back and without settling anything (SC38). */
      readonly deaths: number
    }
  | { readonly kind: 'held'; readonly retryAfterMs: number }
  /** The rows were written in another database cluster (a restored copy): publishing them needs `adoptCluster`. */
  | { readonly kind: 'foreign' }

/** Answer of a step that needs the lane. */
export type LaneStep = 'done' | 'lost'

export interface RenewResult {
  readonly kind: LaneStep
  /** Another relay without a lane asks for this one. */
  readonly wanted: boolean
}

export interface ReadResult {
  /** Lowest seq first. */
  readonly rows: readonly PendingRow[]
  /**
   * false: a row may be visible before it is on disk (a writer with asynchronous commit). Nothing of this read may be
   * published before a step with the lease, called after it, was answered `done`.
   */
  readonly durable: boolean
  /** true: rows may have been left out because of their bytes, although fewer than `limit` are here. */
  readonly more?: boolean | undefined
}

/** What a read that travels with a settling asks for; the rows that are settled are among `inFlight`. */
export interface NextRead {
  readonly inFlight: readonly number[]
  readonly limit: number
  readonly bytesMax: number
}

/** A message that was answered no, on its way to the parked rows. */
export interface Parking {
  readonly seq: number
  readonly reason: ParkReason
  /** One line, without payload. */
  readonly error: string
  /** Milliseconds until the next attempt. A row whose key has an earlier parked row waits for that one too. */
  readonly delayMs: number
  /** Whether this counts as an attempt of the message. */
  readonly counts: boolean
}

export interface Quarantining {
  readonly seq: number
  readonly reason: QuarantineReason
  readonly error: string
  /** Later rows of its key wait until it is redriven or discarded. */
  readonly stopsKey: boolean
}

/** What a settling of parked rows left of their keys. */
export interface Released {
  readonly kind: LaneStep
  /** The lowest row that is still parked, for each key that has one; the other keys flow again. */
  readonly next: readonly StoppedKey[]
  /** Rows that went back to their place. */
  readonly moved: number
}

/** What is pending, for health and alerts. Pending is outbox plus parked. */
export interface PendingView {
  /** Age of the oldest row that is not parked, milliseconds; null when there is none. */
  readonly oldestMs: number | null
  /** Age of the oldest parked row. */
  readonly oldestParkedMs: number | null
  /** Age of the oldest quarantined row since it got there. */
  readonly oldestQuarantinedMs: number | null
  /** Whether any lane has a live owner. */
  readonly relayAlive: boolean
  /** Lanes that hold pending rows and have no live owner. */
  readonly lanesWithoutOwner: readonly number[]
}

/** Who acts, and why: written to the audit table in the transaction of the act (I16). */
export interface OperatorAct {
  readonly actor: string
  readonly reason: string
}

/** A quarantined message, without its payload. */
export interface QuarantinedView {
  readonly lane: number
  readonly seq: number
  readonly id: string
  readonly topic: string
  readonly attempts: number
  readonly reason: QuarantineReason
  readonly lastError: string | null
  readonly stopsKey: boolean
  /** JSON: claims, attempts and errors from before. */
  readonly history: string
  readonly createdAtMs: number
  readonly quarantinedAtMs: number
}

/** Rings when work was committed; a hint, never what delivery depends on. */
export interface OutboxBell {
  /** Called after a commit that left messages. Never throws, never waits. */
  ring(): void
  /**
   * Calls `onRing` for commits of this process, and of others where the store can tell.
   * @param onState - Told when the store stops or starts to hear other processes; polling goes on either way.
   */
  listen(onRing: () => void, onState?: (state: BellState) => void): BellListener
}

export type BellState = { readonly kind: 'hearing' } | { readonly kind: 'deaf'; readonly reason: string }

export interface BellListener {
  close(): Promise<void>
}

export interface OutboxStore {
  readonly bell: OutboxBell

  /** Lanes that exist, and lanes that rows were written for. */
  lanes(): Promise<readonly LaneView[]>

  /**
   * Takes a lane that is free or whose lease has ended. Refuses a standby each time (REPLICA_REFUSED).
   * Of any number of callers one gets it, with a fence above every fence before. (SC30)
   */
  acquire(lane: number, owner: string, leaseMs: number): Promise<AcquireResult>

  /** Keeps the lane. `settled`: nothing is left that could have killed an owner, so deaths are forgotten. */
  renew(lease: LaneLease, leaseMs: number, settled: boolean): Promise<RenewResult>

  /** Hands the lane back. What was claimed alone and was not sent is not counted. */
  release(lease: LaneLease): Promise<LaneStep>

  /** Asks the owner of the most lanes for one, when it has at least two more than `owner`. */
  askForLane(owner: string, waitMs: number): Promise<void>

  /**
   * Pending rows of a lane, always from the lowest seq, without those in flight. Never from a position: a lower seq
   * may commit later (B37). At most `limit` rows and `bytesMax` bytes of payload, but at least one row if there is one.
   */
  read(lane: number, inFlight: readonly number[], limit: number, bytesMax: number): Promise<ReadResult>

  /** Removes confirmed rows, or moves them to the history. `progress`: deaths are forgotten. */
  settle(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
  ): Promise<LaneStep>

  /**
   * `settle` and then `read`, in one trip where the store can. With `lost` nothing was changed and no rows are answered.
   */
  settleAndRead(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
    next: NextRead,
  ): Promise<ReadResult & { readonly kind: LaneStep }>

  /** Keys with parked rows or stopped by quarantine; also makes due what waits for a row that is no longer there. */
  stoppedKeys(
    lease: LaneLease,
    leaseMs: number,
  ): Promise<{ readonly kind: LaneStep; readonly keys: readonly StoppedKey[] }>

  /** Moves failing rows aside, wherever they are, keeping seq. */
  park(lease: LaneLease, leaseMs: number, rows: readonly Parking[]): Promise<LaneStep>

  /** Moves later rows of stopped keys behind them. */
  parkBehind(lease: LaneLease, leaseMs: number, seqs: readonly number[]): Promise<LaneStep>

  /**
   * Parked rows that are due now and have no earlier parked row of their key, without those in flight; and how long
   * until the next one is due.
   */
  due(
    lane: number,
    inFlight: readonly number[],
    limit: number,
    bytesMax: number,
  ): Promise<{ readonly rows: readonly ParkedRow[]; readonly nextInMs: number | null }>

  /**
   * Settles parked rows and sends at most `limit` rows of their keys back to their place; of what stays, the lowest
   * of each key is due at once.
   */
  settleParked(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean; readonly limit: number },
  ): Promise<Released>

  /**
   * Moves rows that can never be sent to the quarantine, wherever they are. Of rows parked behind them the lowest of
   * each key is due at once, unless `stopsKey`. Deaths are forgotten when one of them is the `poison`.
   */
  quarantine(lease: LaneLease, leaseMs: number, rows: readonly Quarantining[]): Promise<Omit<Released, 'moved'>>

  /**
   * Counts that `seq` is about to be sent alone (SC38), once per ownership.
   * @returns how many ownerships have claimed it, this one included; 0 when the lane is lost.
   */
  claimAlone(lease: LaneLease, leaseMs: number, seq: number): Promise<number>

  /** Takes back this ownership's claim: the connection failed, so the message is not to blame (B55). */
  unclaimAlone(lease: LaneLease, leaseMs: number): Promise<LaneStep>

  pending(): Promise<PendingView>

  /** Oldest first. */
  quarantined(limit: number): Promise<readonly QuarantinedView[]>

  /**
   * Sends messages back to their place, with id and seq kept and a fresh attempt budget (SC29, R45, B122).
   * Quarantined ones return to the outbox, parked ones are due at once. Once per message, however often asked.
   * @returns ids that were moved.
   */
  redrive(ids: readonly string[], act: OperatorAct): Promise<readonly string[]>

  /** Deletes quarantined messages for good; rows stopped behind them go on. @returns ids that were deleted. */
  discard(ids: readonly string[], act: OperatorAct): Promise<readonly string[]>

  /** Accepts that the rows now live in this database cluster (restore, upgrade). What was in flight may be sent again. */
  adoptCluster(act: OperatorAct): Promise<void>

  /** Deletes history that was published more than `graceMs` ago, at most `limit` rows. */
  purgeHistory(batch: PurgeBatch): Promise<Purged>
  /** Milliseconds for which the oldest row that `purgeHistory` would take has been due; 0 = there is none. */
  overdueHistoryMs(graceMs: number): Promise<number>
}
