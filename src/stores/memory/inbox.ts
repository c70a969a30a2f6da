/**
 * Inbox in memory: the same marks, waiting and quarantine as on a database, readable in one go.
 *
 * @module
 */

import type {
  ClaimDueOptions,
  ClaimedDue,
  ClaimedWaiting,
  DeliveryClaim,
  InboxMark,
  InboxOpenOptions,
  InboxQuarantineEntry,
  InboxQuarantineReason,
  InboxRun,
  InboxStore,
  KeptDelivery,
  NewQuarantine,
  NewWaiting,
  OpenInbox,
  RedriveOptions,
  RedriveResult,
  WaitingClaim,
  WaitingEntry,
  WaitingReason,
} from '../../store/inbox.ts'
import type { WorkFailure } from '../../store/operation.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import type { PurgeBatch, Purged } from '../../store/retention.ts'
import { same } from './bytes.ts'
import type { MemoryDatabase, MemoryTx } from './database.ts'
import { MemoryOpenInbox } from './inbox-open.ts'
import { batchOf, overdueMs } from './retention.ts'

interface Mark {
  readonly fingerprint: Uint8Array
  readonly expiresAtMs: number
}

interface Waiting {
  readonly seq: number
  readonly mark: InboxMark
  readonly delivery: KeptDelivery
  reason: WaitingReason
  attempts: number
  dueAtMs: number
  owner: string | undefined
  readonly override: boolean
  lastError: string | undefined
  readonly history: unknown[]
  readonly createdAtMs: number
}

interface Quarantined {
  readonly id: number
  readonly mark: NewQuarantine['mark']
  readonly delivery: KeptDelivery
  readonly reason: InboxQuarantineReason
  readonly attempts: number
  readonly lastError: string | undefined
  readonly history: unknown[]
  readonly receivedAtMs: number
  readonly quarantinedAtMs: number
}

/** Takes the rows of a commit. */
type InsertRows = (rows: readonly OutboxRow[]) => void
/** Writes down an act of an operator. */
type Audit = (act: string, subject: string, by: { readonly actor: string; readonly reason: string }) => void

const expiresAtMs = (mark: Mark): number => mark.expiresAtMs

/** Entries of a history that are kept. */
const HISTORY_MAX = 50

export class MemoryInbox implements InboxStore<MemoryTx> {
  readonly database: MemoryDatabase
  readonly insert: InsertRows
  readonly marks: Map<string, Mark> = new Map()
  readonly waiting: Map<string, Waiting> = new Map()
  /** Messages that an open transaction works on. */
  readonly working: Set<string> = new Set()
  readonly versions: Map<string, bigint> = new Map()
  readonly locks: Map<string, Promise<void>> = new Map()
  readonly #quarantine: Map<number, Quarantined> = new Map()
  readonly #audit: Audit
  #seq = 0
  #entries = 0

  constructor(database: MemoryDatabase, insert: InsertRows, audit: Audit) {
    this.database = database
    this.insert = insert
    this.#audit = audit
  }

  failureOf(): WorkFailure {
    return 'other'
  }

  async open(runs: readonly InboxRun[], options: InboxOpenOptions): Promise<OpenInbox<MemoryTx>> {
    if (runs.length === 0) throw new TypeError('an inbox transaction needs at least one run')
    if (runs.length > 1 && runs.some((run) => run.claim !== undefined)) {
      throw new TypeError('a claimed message runs in a transaction of its own')
    }
    return new MemoryOpenInbox(this, runs, options)
  }

  async lookup(marks: readonly InboxMark[]): Promise<readonly ('new' | 'duplicate' | 'mismatch' | 'expired')[]> {
    return marks.map((mark) => this.known(mark) ?? 'new')
  }

  async claimDelivery(
    mark: InboxMark,
    delivery: KeptDelivery,
    { owner, leaseMs }: { readonly owner: string; readonly leaseMs: number },
  ): Promise<DeliveryClaim> {
    if (this.working.has(mark.id)) return { kind: 'busy' }
    const known = this.known(mark)
    if (known !== undefined) return { kind: known }
    for (const { mark: other } of this.#quarantine.values()) {
      if (other.id === mark.id && other.messageId !== undefined && same(other.fingerprint, mark.fingerprint)) {
        return { kind: 'quarantined' }
      }
    }
    const there = this.waiting.get(mark.id)
    if (there !== undefined) {
      return { kind: same(there.mark.fingerprint, mark.fingerprint) ? 'stored' : 'mismatch' }
    }
    this.#put({ mark, delivery, reason: 'claimed', attempts: 1, dueInMs: leaseMs, owner })
    return { kind: 'claimed', claim: { id: mark.id, owner, attempts: 1 } }
  }

  async wait(rows: readonly NewWaiting[]): Promise<readonly ('waiting' | 'stored' | 'mismatch')[]> {
    return rows.map(({ mark, delivery, reason, attempts, dueInMs, error }) => {
      const there = this.waiting.get(mark.id)
      if (there !== undefined) return same(there.mark.fingerprint, mark.fingerprint) ? 'stored' : 'mismatch'
      const row = this.#put({ mark, delivery, reason, attempts, dueInMs, owner: undefined })
      if (error !== undefined) this.#failed(row, error)
      return 'waiting'
    })
  }

  async claimDue(options: ClaimDueOptions): Promise<ClaimedDue> {
    const due = this.#due(options)
    const suspects = due.some(({ owner }) => owner !== undefined)
    const claimed = due
      .filter(({ owner }) => owner === undefined)
      .slice(0, options.limit)
      .sort((a, b) => a.seq - b.seq)
      .map((row) => this.#claim(row, options))
    return { claimed, suspects }
  }

  async claimSuspect(options: Omit<ClaimDueOptions, 'limit'>): Promise<ClaimedWaiting | undefined> {
    const row = this.#due(options).find(({ owner }) => owner !== undefined)
    if (row === undefined) return undefined
    remember(row.history, { attempt: row.attempts, at: this.database.now(), event: 'vanished' })
    return this.#claim(row, options)
  }

  async renew(claims: readonly WaitingClaim[], leaseMs: number): Promise<readonly string[]> {
    return claims.flatMap((claim) => {
      const row = this.held(claim)
      if (row === undefined) return []
      row.dueAtMs = this.database.now() + leaseMs
      return [claim.id]
    })
  }

  async postpone(
    claim: WaitingClaim,
    next: {
      readonly reason: 'failed' | 'no-handler' | 'behind'
      readonly dueInMs: number
      readonly error?: string | undefined
    },
  ): Promise<'waiting' | 'fenced'> {
    const row = this.held(claim)
    if (row === undefined) return 'fenced'
    if (next.error !== undefined) this.#failed(row, next.error)
    if (next.reason !== 'failed') row.attempts -= 1
    row.reason = next.reason
    row.owner = undefined
    row.dueAtMs = this.database.now() + next.dueInMs
    return 'waiting'
  }

  async release(claims: readonly WaitingClaim[], dueInMs: number): Promise<void> {
    for (const claim of claims) {
      const row = this.held(claim)
      if (row === undefined) continue
      row.attempts -= 1
      row.owner = undefined
      row.dueAtMs = this.database.now() + dueInMs
    }
  }

  async discard(claim: WaitingClaim): Promise<'discarded' | 'fenced'> {
    if (this.held(claim) === undefined) return 'fenced'
    this.waiting.delete(claim.id)
    return 'discarded'
  }

  async quarantineClaimed(
    claim: WaitingClaim,
    why: { readonly reason: InboxQuarantineReason; readonly error?: string | undefined },
  ): Promise<'quarantined' | 'fenced'> {
    const row = this.held(claim)
    if (row === undefined) return 'fenced'
    this.waiting.delete(claim.id)
    const { mark, delivery, attempts, history, createdAtMs } = row
    this.#shutAway({ mark, delivery, attempts, history, createdAtMs, ...why, error: why.error ?? row.lastError })
    return 'quarantined'
  }

  async quarantine(rows: readonly NewQuarantine[]): Promise<void> {
    for (const row of rows) {
      const twin = [...this.#quarantine.values()].some(
        ({ mark }) => mark.id === row.mark.id && same(mark.fingerprint, row.mark.fingerprint),
      )
      if (twin && (row.mark.messageId !== undefined || row.redelivered)) continue
      this.#shutAway({ ...row, history: [], createdAtMs: this.database.now() })
    }
  }

  async redrive(ids: readonly string[], options: RedriveOptions): Promise<readonly RedriveResult[]> {
    return ids.map((id): RedriveResult => {
      const entry = this.#quarantine.get(Number(id))
      if (entry === undefined) return 'absent'
      const { messageId } = entry.mark
      if (messageId === undefined) return 'no-identity'
      if (this.waiting.has(entry.mark.id)) return 'waiting'
      const { delivery, history, lastError } = entry
      const { actor, reason, override } = options
      remember(history, { at: this.database.now(), event: 'redriven', by: actor, reason, override })
      const mark = { ...entry.mark, messageId }
      const row = this.#put(
        { mark, delivery, reason: 'redriven', attempts: 0, dueInMs: 0, owner: undefined },
        override,
        history,
      )
      row.lastError = lastError
      this.#quarantine.delete(Number(id))
      this.#audit('inbox.redrive', `${mark.consumer}/${mark.id}`, options)
      return 'redriven'
    })
  }

  async hasten(consumer: string, ids?: readonly string[]): Promise<number> {
    const now = this.database.now()
    const rows = [...this.waiting.values()].filter(
      ({ mark, owner, dueAtMs }) =>
        mark.consumer === consumer && owner === undefined && dueAtMs > now && (ids?.includes(mark.id) ?? true),
    )
    for (const row of rows) row.dueAtMs = now
    return rows.length
  }

  async listWaiting(page: {
    readonly consumer?: string | undefined
    readonly limit: number
  }): Promise<readonly WaitingEntry[]> {
    return [...this.waiting.values()]
      .filter(({ mark }) => page.consumer === undefined || mark.consumer === page.consumer)
      .sort((a, b) => a.seq - b.seq)
      .slice(0, page.limit)
      .map(({ mark, delivery, reason, attempts, dueAtMs, owner, lastError, history, createdAtMs }) => ({
        id: mark.id,
        consumer: mark.consumer,
        source: mark.source,
        messageId: mark.messageId,
        type: delivery.type,
        topic: delivery.topic,
        orderingKey: delivery.orderingKey,
        reason,
        attempts,
        dueAt: new Date(dueAtMs),
        claimed: owner !== undefined,
        lastError,
        history: [...history],
        createdAt: new Date(createdAtMs),
      }))
  }

  async listQuarantine(page: {
    readonly consumer?: string | undefined
    readonly limit: number
    readonly after?: string | undefined
  }): Promise<readonly InboxQuarantineEntry[]> {
    const after = Number(page.after ?? 0)
    return [...this.#quarantine.values()]
      .filter(({ id, mark }) => id > after && (page.consumer === undefined || mark.consumer === page.consumer))
      .slice(0, page.limit)
      .map(({ id, mark, delivery, reason, attempts, lastError, history, receivedAtMs, quarantinedAtMs }) => ({
        id: String(id),
        markId: mark.id,
        consumer: mark.consumer,
        source: mark.source,
        messageId: mark.messageId,
        type: delivery.type,
        topic: delivery.topic,
        orderingKey: delivery.orderingKey,
        reason,
        attempts,
        lastError,
        history: [...history],
        receivedAt: new Date(receivedAtMs),
        quarantinedAt: new Date(quarantinedAtMs),
      }))
  }

  async readQuarantined(id: string): Promise<KeptDelivery | undefined> {
    return this.#quarantine.get(Number(id))?.delivery
  }

  async purgeMarks(batch: PurgeBatch): Promise<Purged> {
    const { taken, after } = batchOf(this.#unneeded(), expiresAtMs, this.database.now() - batch.graceMs, batch)
    for (const [id] of taken) this.marks.delete(id)
    return { removed: taken.length, after }
  }

  async overdueMarksMs(graceMs: number): Promise<number> {
    return overdueMs(this.#unneeded().values(), expiresAtMs, this.database.now() - graceMs)
  }

  /** Marks of messages that neither wait nor are quarantined. */
  #unneeded(): Map<string, Mark> {
    const needed = new Set([...this.waiting.keys(), ...[...this.#quarantine.values()].map(({ mark }) => mark.id)])
    return new Map([...this.marks].filter(([id]) => !needed.has(id)))
  }

  /** What is known of a message that was applied before. */
  known(mark: InboxMark): 'duplicate' | 'mismatch' | 'expired' | undefined {
    const there = this.marks.get(mark.id)
    if (there === undefined) return undefined
    if (!same(there.fingerprint, mark.fingerprint)) return 'mismatch'
    return there.expiresAtMs <= this.database.now() ? 'expired' : 'duplicate'
  }

  /** Whether an earlier message of the key waits. */
  isBehind(mark: InboxMark, key: string | undefined): boolean {
    if (key === undefined) return false
    const own = this.waiting.get(mark.id)?.seq ?? Number.POSITIVE_INFINITY
    return [...this.waiting.values()].some(
      (row) => row.mark.consumer === mark.consumer && row.delivery.orderingKey === key && row.seq < own,
    )
  }

  /** The row, while the claim on it is the newest. */
  held(claim: WaitingClaim): Waiting | undefined {
    const row = this.waiting.get(claim.id)
    return row?.owner === claim.owner && row.attempts === claim.attempts ? row : undefined
  }

  #due({ consumer, types, headsOnly, except }: Omit<ClaimDueOptions, 'limit'>): Waiting[] {
    const now = this.database.now()
    return [...this.waiting.values()]
      .filter(({ mark, dueAtMs }) => mark.consumer === consumer && dueAtMs <= now && !except.includes(mark.id))
      .filter(({ reason, delivery }) => reason !== 'no-handler' || types?.includes(delivery.type ?? '') !== false)
      .filter((row) => !headsOnly || !this.isBehind(row.mark, row.delivery.orderingKey))
      .sort((a, b) => a.dueAtMs - b.dueAtMs || a.seq - b.seq)
  }

  #claim(row: Waiting, { owner, leaseMs }: Pick<ClaimDueOptions, 'owner' | 'leaseMs'>): ClaimedWaiting {
    const { mark, delivery, reason, override } = row
    const suspect = row.owner !== undefined
    row.attempts += 1
    row.owner = owner
    row.dueAtMs = this.database.now() + leaseMs
    return { mark, claim: { id: mark.id, owner, attempts: row.attempts }, delivery, reason, override, suspect }
  }

  #put(
    row: Pick<Waiting, 'mark' | 'delivery' | 'reason' | 'attempts' | 'owner'> & { readonly dueInMs: number },
    override = false,
    history: unknown[] = [],
  ): Waiting {
    const { mark, delivery, reason, attempts, owner, dueInMs } = row
    const now = this.database.now()
    this.#seq += 1
    const made: Waiting = {
      seq: this.#seq,
      mark,
      delivery,
      reason,
      attempts,
      owner,
      override,
      history,
      dueAtMs: now + dueInMs,
      lastError: undefined,
      createdAtMs: now,
    }
    this.waiting.set(mark.id, made)
    return made
  }

  #failed(row: Waiting, error: string): void {
    row.lastError = error
    remember(row.history, { attempt: row.attempts, at: this.database.now(), event: 'failed', error })
  }

  #shutAway(
    row: Pick<NewQuarantine, 'mark' | 'delivery' | 'reason' | 'attempts' | 'error'> & {
      readonly history: unknown[]
      readonly createdAtMs: number
    },
  ): void {
    const { mark, delivery, reason, attempts, error, history, createdAtMs } = row
    const now = this.database.now()
    remember(history, { attempt: attempts, at: now, event: 'quarantined', reason, error })
    this.#entries += 1
    this.#quarantine.set(this.#entries, {
      id: this.#entries,
      mark,
      delivery,
      reason,
      attempts,
      history,
      lastError: error,
      receivedAtMs: createdAtMs,
      quarantinedAtMs: now,
    })
  }
}

function remember(history: unknown[], entry: object): void {
  history.push(entry)
  if (history.length > HISTORY_MAX) history.shift()
}
