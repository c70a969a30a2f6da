/**
 * Outbox in memory: the same lanes, parking and quarantine as on a database, readable in one go.
 *
 * A row is in exactly one of `pending`, `parked` and `quarantine` while it is not settled, under its seq, so moving is
 * deleting here and setting there. Every step for a lane looks first whether the caller owns it (./lanes.ts): a late owner
 * changes nothing.
 *
 * @module
 */

import { LocalBell } from '../../outbox/bell.ts'
import type {
  AcquireResult,
  LaneLease,
  LaneStep,
  LaneView,
  NextRead,
  OperatorAct,
  OutboxRow,
  OutboxStore,
  ParkedRow,
  Parking,
  ParkReason,
  PendingRow,
  PendingView,
  QuarantinedView,
  Quarantining,
  ReadResult,
  Released,
  RenewResult,
  StoppedKey,
} from '../../store/outbox.ts'
import type { PurgeBatch, Purged } from '../../store/retention.ts'
import type { MemoryDatabase } from './database.ts'
import { MemoryLanes } from './lanes.ts'
import { batchOf, overdueMs } from './retention.ts'
import { bySeq, keysOf, pendingOf, take, upTo } from './rows.ts'

interface Parked extends ParkedRow {
  readonly parkedAtMs: number
  /** When it is tried again; null = waits for an earlier row of its key. */
  readonly nextAtMs: number | null
  readonly reason: ParkReason | 'behind' | 'redriven'
  readonly lastError: string | null
}

type Quarantined = PendingRow & QuarantinedView

const publishedAtMs = (row: { readonly publishedAtMs: number }): number => row.publishedAtMs

/** An act of an operator. */
export interface MemoryAudit extends OperatorAct {
  readonly act: string
  readonly subject: string
}

export class MemoryOutbox implements OutboxStore {
  readonly bell: LocalBell = new LocalBell()
  /** Settled rows, for relays that keep a history. */
  readonly history: (PendingRow & { readonly publishedAtMs: number })[] = []
  readonly audit: MemoryAudit[] = []
  readonly ownership: MemoryLanes
  readonly #database: MemoryDatabase
  readonly #pending: Map<number, PendingRow> = new Map()
  readonly #parked: Map<number, Parked> = new Map()
  readonly #quarantine: Map<number, Quarantined> = new Map()
  #seq = 0

  constructor(database: MemoryDatabase) {
    this.#database = database
    this.ownership = new MemoryLanes(database)
  }

  /** Rows of one commit: they appear together, in order. */
  insert(rows: readonly OutboxRow[]): void {
    for (const row of rows) {
      this.#seq += 1
      this.#pending.set(this.#seq, { ...row, seq: this.#seq, createdAtMs: this.#now() })
    }
  }

  async lanes(): Promise<readonly LaneView[]> {
    for (const lane of [0, ...[...this.#pending.values()].map((row) => row.lane)]) this.ownership.of(lane)
    return this.ownership.views()
  }

  async acquire(lane: number, owner: string, leaseMs: number): Promise<AcquireResult> {
    return this.ownership.acquire(lane, owner, leaseMs)
  }

  async renew(lease: LaneLease, leaseMs: number, settled: boolean): Promise<RenewResult> {
    return this.ownership.renew(lease, leaseMs, settled)
  }

  async release(lease: LaneLease): Promise<LaneStep> {
    return this.ownership.release(lease)
  }

  async askForLane(owner: string, waitMs: number): Promise<void> {
    this.ownership.ask(owner, waitMs)
  }

  async read(lane: number, inFlight: readonly number[], limit: number, bytesMax: number): Promise<ReadResult> {
    const sent = new Set(inFlight)
    const rows = bySeq(this.#pending).filter((row) => row.lane === lane && !sent.has(row.seq))
    return { rows: upTo(rows, limit, bytesMax), durable: true }
  }

  async settle(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
  ): Promise<LaneStep> {
    if (this.ownership.own(lease, leaseMs, options.progress) === undefined) return 'lost'
    for (const row of take(this.#pending, lease.lane, seqs)) this.#keep(row, options.history)
    return 'done'
  }

  async settleAndRead(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
    { inFlight, limit, bytesMax }: NextRead,
  ): Promise<ReadResult & { readonly kind: LaneStep }> {
    const kind = await this.settle(lease, leaseMs, seqs, options)
    if (kind === 'lost') return { kind, rows: [], durable: true }
    return { kind, ...(await this.read(lease.lane, inFlight, limit, bytesMax)) }
  }

  async stoppedKeys(
    lease: LaneLease,
    leaseMs: number,
  ): Promise<{ readonly kind: LaneStep; readonly keys: readonly StoppedKey[] }> {
    if (this.ownership.own(lease, leaseMs) === undefined) return { kind: 'lost', keys: [] }
    const keys = new Set(
      [...this.#parked.values(), ...this.#quarantine.values()].map((row) =>
        row.lane === lease.lane ? row.orderingKey : null,
      ),
    )
    const stopped = [...keys].flatMap((orderingKey): StoppedKey[] => {
      if (orderingKey === null) return []
      const parked = this.#lowestParked(lease.lane, orderingKey)
      const stop = this.#stopOf(lease.lane, orderingKey)
      if (parked?.nextAtMs === null && !(stop !== undefined && stop < parked.seq)) this.#makeDue(parked)
      const seq = Math.min(parked?.seq ?? Number.POSITIVE_INFINITY, stop ?? Number.POSITIVE_INFINITY)
      return Number.isFinite(seq) ? [{ orderingKey, seq }] : []
    })
    return { kind: 'done', keys: stopped }
  }

  async park(lease: LaneLease, leaseMs: number, rows: readonly Parking[]): Promise<LaneStep> {
    if (this.ownership.own(lease, leaseMs) === undefined) return 'lost'
    const now = this.#now()
    for (const { seq, reason, error, delayMs, counts } of rows) {
      const known = this.#parked.get(seq)
      const row = known ?? take(this.#pending, lease.lane, [seq])[0]
      if (row === undefined) continue
      const attempts = (known?.attempts ?? 0) + (counts ? 1 : 0)
      const parkedAtMs = known?.parkedAtMs ?? now
      this.#parked.set(seq, { ...row, attempts, parkedAtMs, nextAtMs: now + delayMs, reason, lastError: error })
    }
    return 'done'
  }

  async parkBehind(lease: LaneLease, leaseMs: number, seqs: readonly number[]): Promise<LaneStep> {
    if (this.ownership.own(lease, leaseMs) === undefined) return 'lost'
    const parkedAtMs = this.#now()
    for (const row of take(this.#pending, lease.lane, seqs)) {
      this.#parked.set(row.seq, { ...row, attempts: 0, parkedAtMs, nextAtMs: null, reason: 'behind', lastError: null })
    }
    return 'done'
  }

  async due(
    lane: number,
    inFlight: readonly number[],
    limit: number,
    bytesMax: number,
  ): Promise<{ readonly rows: readonly ParkedRow[]; readonly nextInMs: number | null }> {
    const now = this.#now()
    const parked = bySeq(this.#parked).filter((row) => row.lane === lane)
    const rows = parked.filter(
      (row) =>
        row.nextAtMs !== null && row.nextAtMs <= now && !inFlight.includes(row.seq) && !this.#waitsForEarlier(row),
    )
    const later = parked.flatMap((row) => (row.nextAtMs !== null && row.nextAtMs > now ? [row.nextAtMs - now] : []))
    return {
      rows: upTo(rows, limit, bytesMax).map(attemptOf),
      nextInMs: later.length === 0 ? null : Math.min(...later),
    }
  }

  async settleParked(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean; readonly limit: number },
  ): Promise<Released> {
    if (this.ownership.own(lease, leaseMs, options.progress) === undefined) return { kind: 'lost', next: [], moved: 0 }
    const settled = take(this.#parked, lease.lane, seqs)
    for (const row of settled) this.#keep(row, options.history)
    const keys = keysOf(settled)
    const behind = bySeq(this.#parked)
      .filter((row) => row.lane === lease.lane && row.orderingKey !== null && keys.includes(row.orderingKey))
      .slice(0, options.limit)
    for (const row of behind) {
      this.#parked.delete(row.seq)
      this.#pending.set(row.seq, pendingOf(row))
    }
    return { kind: 'done', next: this.#goOn(lease.lane, keys), moved: behind.length }
  }

  async quarantine(lease: LaneLease, leaseMs: number, rows: readonly Quarantining[]): Promise<Omit<Released, 'moved'>> {
    const lane = this.ownership.own(lease, leaseMs)
    if (lane === undefined) return { kind: 'lost', next: [] }
    const waitedFor: Parked[] = []
    for (const { seq, reason, error, stopsKey } of rows) {
      const [parked] = take(this.#parked, lease.lane, [seq])
      const row = parked ?? take(this.#pending, lease.lane, [seq])[0]
      if (row === undefined) continue
      if (parked !== undefined && !stopsKey) waitedFor.push(parked)
      const claimedAt = reason === 'poison' ? lane.alone?.claims : undefined
      const { attempts, lastError, parkedAtMs } = parked ?? {}
      this.#quarantine.set(seq, {
        ...pendingOf(row),
        // The last claim is the one that quarantines it; it was not sent again.
        attempts: claimedAt === undefined ? (attempts ?? 0) : claimedAt.length - 1,
        reason,
        lastError: error,
        stopsKey: stopsKey && row.orderingKey !== null,
        history: JSON.stringify({ claimedAt, parked: parked && { attempts, lastError, parkedAt: parkedAtMs } }),
        quarantinedAtMs: this.#now(),
      })
    }
    if (rows.some((row) => row.reason === 'poison')) lane.deaths = 0
    return { kind: 'done', next: this.#goOn(lease.lane, keysOf(waitedFor)) }
  }

  async claimAlone(lease: LaneLease, leaseMs: number, seq: number): Promise<number> {
    return this.ownership.claimAlone(lease, leaseMs, seq)
  }

  async unclaimAlone(lease: LaneLease, leaseMs: number): Promise<LaneStep> {
    return this.ownership.unclaimAlone(lease, leaseMs)
  }

  async pending(): Promise<PendingView> {
    const now = this.#now()
    const oldest = (instants: number[]) => (instants.length === 0 ? null : now - Math.min(...instants))
    const unsettled = [...this.#pending.values(), ...this.#parked.values()]
    const alive = this.ownership.live().map((lane) => lane.lane)
    return {
      oldestMs: oldest([...this.#pending.values()].map((row) => row.createdAtMs)),
      oldestParkedMs: oldest([...this.#parked.values()].map((row) => row.createdAtMs)),
      oldestQuarantinedMs: oldest([...this.#quarantine.values()].map((row) => row.quarantinedAtMs)),
      relayAlive: alive.length > 0,
      lanesWithoutOwner: [...new Set(unsettled.map((row) => row.lane))]
        .filter((lane) => !alive.includes(lane))
        .sort((one, other) => one - other),
    }
  }

  async quarantined(limit: number): Promise<readonly QuarantinedView[]> {
    return [...this.#quarantine.values()]
      .sort((one, other) => one.quarantinedAtMs - other.quarantinedAtMs || one.seq - other.seq)
      .slice(0, limit)
      .map(
        ({
          orderingKey: _key,
          payload: _payload,
          encoding: _encoding,
          contentType: _type,
          headers: _headers,
          ...view
        }) => view,
      )
  }

  async redrive(ids: readonly string[], act: OperatorAct): Promise<readonly string[]> {
    const redriven = [...this.#quarantine.values(), ...this.#parked.values()].filter(
      (row) => ids.includes(row.id) && row.reason !== 'redriven',
    )
    for (const row of redriven) {
      // When others of its key wait behind it, it is tried from the parked rows, so that they still do.
      const aside = this.#parked.has(row.seq) || ('stopsKey' in row && row.stopsKey) || this.#hasParked(row)
      this.#quarantine.delete(row.seq)
      if (aside) this.#parked.set(row.seq, this.#fresh(row))
      else this.#pending.set(row.seq, pendingOf(row))
      this.#audit('outbox.redrive', row.id, act)
    }
    return redriven.map((row) => row.id)
  }

  async discard(ids: readonly string[], act: OperatorAct): Promise<readonly string[]> {
    const discarded = [...this.#quarantine.values()].filter((row) => ids.includes(row.id))
    for (const row of discarded) {
      this.#quarantine.delete(row.seq)
      this.#audit('outbox.discard', row.id, act)
    }
    return discarded.map((row) => row.id)
  }

  async adoptCluster(act: OperatorAct): Promise<void> {
    this.ownership.adopt()
    this.#audit('outbox.adopt', this.ownership.cluster, act)
  }

  async purgeHistory(batch: PurgeBatch): Promise<Purged> {
    const rows = new Map(this.history.map((row) => [row, row]))
    const { taken, after } = batchOf(rows, publishedAtMs, this.#now() - batch.graceMs, batch)
    for (const [row] of taken) this.history.splice(this.history.indexOf(row), 1)
    return { removed: taken.length, after }
  }

  async overdueHistoryMs(graceMs: number): Promise<number> {
    return overdueMs(this.history, publishedAtMs, this.#now() - graceMs)
  }

  #now(): number {
    return this.#database.now()
  }

  #audit(act: string, subject: string, { actor, reason }: OperatorAct): void {
    this.audit.push({ act, subject, actor, reason })
  }

  /** A parked row that is due now, with nothing counted. */
  #fresh(row: PendingRow): Parked {
    const now = this.#now()
    return { ...pendingOf(row), attempts: 0, parkedAtMs: now, nextAtMs: now, reason: 'redriven', lastError: null }
  }

  #keep(row: PendingRow, history: boolean): void {
    if (history) this.history.push({ ...pendingOf(row), publishedAtMs: this.#now() })
  }

  #hasParked(row: PendingRow): boolean {
    return row.orderingKey !== null && this.#lowestParked(row.lane, row.orderingKey) !== undefined
  }

  #lowestParked(lane: number, orderingKey: string): Parked | undefined {
    return bySeq(this.#parked).find((row) => row.lane === lane && row.orderingKey === orderingKey)
  }

  /** Lowest quarantined row that stops the key. */
  #stopOf(lane: number, orderingKey: string): number | undefined {
    return bySeq(this.#quarantine).find((row) => row.stopsKey && row.lane === lane && row.orderingKey === orderingKey)
      ?.seq
  }

  #waitsForEarlier({ lane, orderingKey, seq }: PendingRow): boolean {
    if (orderingKey === null) return false
    const stop = this.#stopOf(lane, orderingKey)
    return this.#lowestParked(lane, orderingKey)?.seq !== seq || (stop !== undefined && stop < seq)
  }

  #makeDue(row: Parked): void {
    this.#parked.set(row.seq, { ...row, nextAtMs: this.#now() })
  }

  /** The lowest row that is left of each key is due at once. */
  #goOn(lane: number, keys: readonly string[]): readonly StoppedKey[] {
    return keys.flatMap((orderingKey) => {
      const row = this.#lowestParked(lane, orderingKey)
      if (row === undefined) return []
      this.#makeDue(row)
      return [{ orderingKey, seq: row.seq }]
    })
  }
}

function attemptOf(row: Parked): ParkedRow {
  return { ...pendingOf(row), attempts: row.attempts }
}
