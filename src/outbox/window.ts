/**
 * Window: what one owner of a lane has in memory, and every decision about it that needs no I/O.
 *
 * A row is in exactly one place: read ahead, in flight, confirmed, or on its way aside. All of them are left out of
 * the next read. Nothing here survives the owner: a new one starts from the rows.
 *
 * @module
 */

import type { PublishResult } from '../broker/contract.ts'
import type { ParkedRow, Parking, ParkReason, PendingRow, Quarantining, StoppedKey } from '../store/outbox.ts'

/** One message in flight. Its payload is not kept: a resend reads the row again. */
export interface Flight {
  readonly seq: number
  readonly id: string
  readonly topic: string
  readonly orderingKey: string | null
  readonly bytes: number
  /** Attempts so far of a message that comes from the parked rows; undefined = from the outbox. */
  readonly attempts: number | undefined
  /** Position in the order of sending. */
  readonly turn: number
  /** Monotonic milliseconds. */
  readonly sentAt: number
}

/** How a failing message is dealt with. */
export interface Choice {
  readonly delayMs: (attempt: number) => number
  readonly stopsKey: (topic: string) => boolean
  /** A message without an answer for so long, while later ones were confirmed, is itself the trouble. */
  readonly patienceMs: number
  readonly now: () => number
}

/** What an answer came to, for the events. */
export type Landing =
  | { readonly kind: 'confirmed' | 'lost'; readonly flight: Flight }
  | {
      readonly kind: 'parked'
      readonly flight: Flight
      readonly reason: ParkReason
      readonly delayMs: number
      readonly attempt: number
    }
  | { readonly kind: 'quarantined'; readonly flight: Flight }

/** Rows that must be moved, by kind of move. */
export interface Aside {
  readonly park: Parking[]
  readonly quarantine: Quarantining[]
  readonly behind: number[]
  /** Confirmed messages that came from the parked rows. */
  readonly sentParked: Flight[]
}

/** Longest stored error text. */
const ERROR_CHARS_MAX = 500

export class Window {
  /** Read and not yet sent, lowest seq first, from `#next` on. */
  #ahead: PendingRow[] = []
  #next = 0
  #aheadBytes = 0
  readonly #flights: Map<number, Flight> = new Map()
  #flightBytes = 0
  /** Keys with an unconfirmed message; only kept in strict order. */
  readonly #busyKeys: Set<string> = new Set()
  readonly #strict: boolean
  /** Lowest parked or stopping row of a key: later rows of the key go behind it. */
  readonly #stopped: Map<string, number> = new Map()
  #confirmed: number[] = []
  #aside: Aside = { park: [], quarantine: [], behind: [], sentParked: [] }
  /** Every seq that is ours at the moment: a read leaves it out. */
  readonly #held: Set<number> = new Set()
  #disconnected: string | undefined
  #turns = 0
  /** Highest turn that was confirmed since the connection was made. */
  #confirmedTurn = -1
  #stops = 0

  constructor(strict: boolean) {
    this.#strict = strict
  }

  get flights(): number {
    return this.#flights.size
  }

  /** Rows read and not sent. */
  get ahead(): number {
    return this.#ahead.length - this.#next
  }

  get confirmed(): number {
    return this.#confirmed.length
  }

  /** Bytes of payload read ahead and in flight. */
  get bytes(): number {
    return this.#aheadBytes + this.#flightBytes
  }

  get stoppedKeys(): number {
    return this.#stopped.size
  }

  /** Counts stops, so that an answer of the store that is older than the last stop can be told. */
  get stops(): number {
    return this.#stops
  }

  /** Why the connection failed a message, until `reconnected`. */
  get disconnected(): string | undefined {
    return this.#disconnected
  }

  /** Nothing is read ahead, in flight, or waiting to be settled or moved. */
  get isEmpty(): boolean {
    return this.#held.size === 0
  }

  get hasAside(): boolean {
    const { park, quarantine, behind, sentParked } = this.#aside
    return park.length + quarantine.length + behind.length + sentParked.length > 0
  }

  /** Every seq that a read must leave out. */
  held(): number[] {
    return [...this.#held]
  }

  /** Replaces what is known of stopped keys. */
  stop(keys: readonly StoppedKey[]): void {
    this.#stopped.clear()
    for (const { orderingKey, seq } of keys) this.#stopped.set(orderingKey, seq)
  }

  /** Keys whose first parked row was sent or quarantined: they flow again, but for those that have another one. */
  release(keys: readonly (string | null)[], next: readonly StoppedKey[]): void {
    for (const key of keys) if (key !== null) this.#stopped.delete(key)
    for (const { orderingKey, seq } of next) this.#stopped.set(orderingKey, seq)
  }

  /** Takes the rows of one read. */
  take(rows: readonly PendingRow[]): void {
    if (this.#next > 0) {
      this.#ahead = this.#ahead.slice(this.#next)
      this.#next = 0
    }
    for (const row of rows) {
      this.#ahead.push(row)
      this.#aheadBytes += row.payload.length
      this.#held.add(row.seq)
    }
  }

  /** Takes at most `count` rows that can be sent now; later rows of stopped keys go aside instead. */
  sendable(count: number): PendingRow[] {
    return this.#strict ? this.#sendableStrict(count) : this.#sendableInOrder(count)
  }

  #sendableInOrder(count: number): PendingRow[] {
    const rows: PendingRow[] = []
    while (rows.length < count && this.#next < this.#ahead.length) {
      const row = this.#ahead[this.#next] as PendingRow
      this.#next += 1
      this.#aheadBytes -= row.payload.length
      if (this.#isBehind(row)) this.#aside.behind.push(row.seq)
      else rows.push(row)
    }
    return rows
  }

  /** One unconfirmed message a key: the others of the key stay where they are. */
  #sendableStrict(count: number): PendingRow[] {
    const rows: PendingRow[] = []
    const kept: PendingRow[] = []
    for (let index = this.#next; index < this.#ahead.length; index += 1) {
      const row = this.#ahead[index] as PendingRow
      const { orderingKey } = row
      if (this.#isBehind(row)) {
        this.#aside.behind.push(row.seq)
        this.#aheadBytes -= row.payload.length
      } else if (rows.length === count || (orderingKey !== null && this.#busyKeys.has(orderingKey))) {
        kept.push(row)
      } else {
        if (orderingKey !== null) this.#busyKeys.add(orderingKey)
        this.#aheadBytes -= row.payload.length
        rows.push(row)
      }
    }
    this.#ahead = kept
    this.#next = 0
    return rows
  }

  /** Sends a taken row aside when its key has been stopped meanwhile. @returns whether it was. */
  divert(row: PendingRow): boolean {
    if (!this.#isBehind(row)) return false
    this.#aside.behind.push(row.seq)
    if (this.#strict && row.orderingKey !== null) this.#busyKeys.delete(row.orderingKey)
    return true
  }

  /** Marks a row as sent; `attempts` is given for one that was parked. */
  fly(row: PendingRow | ParkedRow, now: number): Flight {
    const { seq, id, topic, orderingKey, payload } = row
    const attempts = 'attempts' in row ? row.attempts : undefined
    const flight = { seq, id, topic, orderingKey, bytes: payload.length, attempts, turn: this.#turns, sentAt: now }
    this.#turns += 1
    this.#flights.set(seq, flight)
    this.#flightBytes += flight.bytes
    this.#held.add(seq)
    if (this.#strict && orderingKey !== null) this.#busyKeys.add(orderingKey)
    return flight
  }

  /** Takes an answer. A second answer, or one for a former ownership, is undefined. */
  answer(flight: Flight, result: PublishResult, choice: Choice): Landing | undefined {
    if (this.#flights.get(flight.seq) !== flight) return undefined
    this.#land(flight)
    switch (result.kind) {
      case 'confirmed':
        if (flight.turn > this.#confirmedTurn) this.#confirmedTurn = flight.turn
        if (flight.attempts === undefined) this.#confirmed.push(flight.seq)
        else this.#aside.sentParked.push(flight)
        return { kind: 'confirmed', flight }
      case 'returned':
      case 'refused':
        return this.#park(flight, result.kind, result.reason, choice)
      case 'invalid':
        return this.quarantine(flight, 'invalid', result.reason, choice.stopsKey(flight.topic))
      case 'disconnected': {
        this.#disconnected ??= result.reason
        // Later ones got through: waiting for the connection would let one dead queue hold the whole lane (B45).
        if (flight.turn < this.#confirmedTurn && choice.now() - flight.sentAt >= choice.patienceMs) {
          return this.#park(flight, 'unconfirmed', result.reason, choice)
        }
        this.#held.delete(flight.seq)
        return { kind: 'lost', flight }
      }
    }
  }

  #park(flight: Flight, reason: ParkReason, error: string, choice: Choice): Landing {
    const counts = reason !== 'unconfirmed'
    const attempt = (flight.attempts ?? 0) + (counts ? 1 : 0)
    const delayMs = choice.delayMs(Math.max(1, attempt))
    this.#aside.park.push({ seq: flight.seq, reason, error: error.slice(0, ERROR_CHARS_MAX), delayMs, counts })
    this.#stop(flight)
    return { kind: 'parked', flight, reason, delayMs, attempt }
  }

  /** A row that can never be sent. */
  quarantine(flight: Flight, reason: Quarantining['reason'], error: string, stopsKey: boolean): Landing {
    this.#land(flight)
    this.#aside.quarantine.push({ seq: flight.seq, reason, error: error.slice(0, ERROR_CHARS_MAX), stopsKey })
    if (stopsKey) this.#stop(flight)
    return { kind: 'quarantined', flight }
  }

  /** What is to be settled now; call `settled` when it is, else it is offered again. */
  toSettle(max: number): number[] {
    return this.#confirmed.slice(0, max)
  }

  settled(batch: readonly number[]): void {
    this.#confirmed = this.#confirmed.slice(batch.length)
    for (const seq of batch) this.#held.delete(seq)
  }

  takeAside(): Aside {
    const aside = this.#aside
    this.#aside = { park: [], quarantine: [], behind: [], sentParked: [] }
    return aside
  }

  /** What was moved is no longer ours to leave out. */
  left(rows: readonly { readonly seq: number }[]): void {
    for (const { seq } of rows) this.#held.delete(seq)
  }

  /** The statement failed: the rows are moved with a later one. */
  giveBack(aside: Aside): void {
    this.#aside.park.unshift(...aside.park)
    this.#aside.quarantine.unshift(...aside.quarantine)
    this.#aside.behind.unshift(...aside.behind)
    this.#aside.sentParked.unshift(...aside.sentParked)
  }

  /** The connection is back: what was read ahead is read again, from the lowest seq. */
  reconnected(): void {
    this.#disconnected = undefined
    this.#confirmedTurn = -1
    this.dropAhead()
  }

  /** Forgets what was read and not sent. */
  dropAhead(): void {
    for (let index = this.#next; index < this.#ahead.length; index += 1) {
      this.#held.delete((this.#ahead[index] as PendingRow).seq)
    }
    this.#ahead = []
    this.#next = 0
    this.#aheadBytes = 0
  }

  #land(flight: Flight): void {
    if (!this.#flights.delete(flight.seq)) return
    this.#flightBytes -= flight.bytes
    if (flight.orderingKey !== null) this.#busyKeys.delete(flight.orderingKey)
  }

  #isBehind(row: PendingRow): boolean {
    if (this.#stopped.size === 0 || row.orderingKey === null) return false
    const stop = this.#stopped.get(row.orderingKey)
    return stop !== undefined && stop < row.seq
  }

  /** Stops a key at this message: later rows of it that were read ahead go behind when their turn comes. */
  #stop({ orderingKey, seq }: Flight): void {
    this.#stops += 1
    if (orderingKey === null) return
    const known = this.#stopped.get(orderingKey)
    if (known === undefined || seq < known) this.#stopped.set(orderingKey, seq)
  }
}
