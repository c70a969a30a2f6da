/**
 * Window: what one owner of a lane has in memory, and every decision about it that needs no I/O.
 *
 * A row is in exactly one place: read ahead, in flight, confirmed, or on its way aside. All of them are left out of
 * the next read. Nothing here survives the owner: a new one starts from the rows.
 *
 * @module
 */

import type { PublishResult } from '../broker/contract.ts'
import type { ParkedRow, Parking, PendingRow, Quarantining, StoppedKey } from '../store/outbox.ts'

/** One message in flight. */
export interface Flight {
  readonly row: PendingRow
  /** Set for a message that comes from the parked rows. */
  readonly attempts: number | undefined
}

/** How a failing message is dealt with. */
export interface Choice {
  readonly delayMs: (attempt: number) => number
  readonly stopsKey: (topic: string) => boolean
  readonly reason: Quarantining['reason']
}

/** What a batch of answers asks for. */
export interface Aside {
  readonly park: Parking[]
  readonly quarantine: Quarantining[]
  readonly behind: number[]
  readonly confirmedParked: number[]
}

export class Window {
  /** Read and not yet sent, lowest seq first. */
  #ahead: PendingRow[] = []
  readonly #flights: Map<number, Flight> = new Map()
  readonly #keysInFlight: Map<string, number> = new Map()
  /** Lowest parked or stopping row of a key: later rows of the key go behind it. */
  readonly #stopped: Map<string, number> = new Map()
  /** Rows on their way aside that stop their key, with that key. */
  readonly #stopping: Map<number, string> = new Map()
  #confirmed: number[] = []
  #aside: Aside = { park: [], quarantine: [], behind: [], confirmedParked: [] }
  /** Confirmed rows whose settling is under way. */
  readonly #settling: Set<number> = new Set()
  /** Rows on their way aside. */
  readonly #leaving: Set<number> = new Set()
  #disconnected: string | undefined

  get flights(): number {
    return this.#flights.size
  }

  get ahead(): number {
    return this.#ahead.length
  }

  get confirmed(): number {
    return this.#confirmed.length
  }

  /** Why the connection failed a message, until `reconnected`. */
  get disconnected(): string | undefined {
    return this.#disconnected
  }

  /** Nothing is read ahead, in flight, or waiting to be settled or moved. */
  get isEmpty(): boolean {
    return this.#ahead.length === 0 && this.#flights.size === 0 && this.#settling.size === 0 && !this.hasWork
  }

  /** Answers that ask for a statement. */
  get hasWork(): boolean {
    return this.#confirmed.length > 0 || this.hasAside
  }

  get hasAside(): boolean {
    const { park, quarantine, behind, confirmedParked } = this.#aside
    return park.length + quarantine.length + behind.length + confirmedParked.length > 0
  }

  /** Every seq that a read must leave out. */
  held(): number[] {
    const held = [...this.#flights.keys(), ...this.#settling, ...this.#leaving]
    for (const row of this.#ahead) held.push(row.seq)
    for (const seq of this.#confirmed) held.push(seq)
    return held
  }

  /** Replaces what is known of stopped keys; rows on their way aside stop theirs although the store has not said so. */
  stop(keys: readonly StoppedKey[]): void {
    this.#stopped.clear()
    for (const { orderingKey, seq } of keys) this.#stopped.set(orderingKey, seq)
    for (const [seq, orderingKey] of this.#stopping) this.#lower(orderingKey, seq)
  }

  /** Takes rows of one read; those of stopped keys go aside at once. */
  take(rows: readonly PendingRow[]): void {
    for (const row of rows) {
      if (this.#isBehind(row)) this.#sendBehind(row)
      else this.#ahead.push(row)
    }
  }

  /** The next row to send, without taking it. */
  next(strict: boolean): PendingRow | undefined {
    if (!strict) return this.#ahead[0]
    return this.#ahead.find((row) => row.orderingKey === null || !this.#keysInFlight.has(row.orderingKey))
  }

  /** Marks a row as sent. */
  send(row: PendingRow): void {
    if (this.#ahead[0] === row) this.#ahead.shift()
    else this.#ahead.splice(this.#ahead.indexOf(row), 1)
    this.#fly({ row, attempts: undefined })
  }

  /** Takes up to `count` rows from the front at once; for windows without strict order. */
  takeAhead(count: number): PendingRow[] {
    return this.#ahead.splice(0, count)
  }

  /** Marks a taken row as sent; false when its key was stopped by a row taken before it, and it goes behind that. */
  fly(row: PendingRow): boolean {
    if (this.#isBehind(row)) {
      this.#sendBehind(row)
      return false
    }
    this.#fly({ row, attempts: undefined })
    return true
  }

  /** Marks a due parked row as sent. */
  retry(row: ParkedRow): void {
    this.#fly({ row, attempts: row.attempts })
  }

  /** A row that cannot be sent at all. */
  quarantine(row: PendingRow, reason: Quarantining['reason'], error: string, stopsKey: boolean): void {
    this.#leaving.add(row.seq)
    this.#aside.quarantine.push({ seq: row.seq, reason, error: error.slice(0, ERROR_CHARS_MAX), stopsKey })
    if (stopsKey) this.#stop(row)
  }

  /** Takes an answer. Unknown seqs (a former ownership) are ignored. */
  answer(seq: number, result: PublishResult, choose: Choice): (Flight & { readonly delayMs?: number }) | undefined {
    const flight = this.#flights.get(seq)
    if (flight === undefined) return undefined
    this.#land(flight)
    const { row, attempts } = flight
    switch (result.kind) {
      case 'confirmed':
        if (attempts === undefined) this.#confirmed.push(seq)
        else {
          this.#leaving.add(seq)
          this.#aside.confirmedParked.push(seq)
        }
        break
      case 'returned':
      case 'refused': {
        const delayMs = choose.delayMs((attempts ?? 0) + 1)
        this.#leaving.add(seq)
        this.#aside.park.push({
          seq,
          reason: result.kind,
          error: result.reason.slice(0, ERROR_CHARS_MAX),
          delayMs,
          counts: true,
        })
        this.#stop(row)
        return { ...flight, delayMs }
      }
      case 'invalid':
        this.quarantine(row, choose.reason, result.reason, choose.stopsKey(row.topic))
        break
      case 'disconnected':
        // It stays pending, and its key must not be overtaken by what is read ahead: that is dropped on reconnect.
        this.#disconnected = result.reason
        break
    }
    return flight
  }

  /** Everything that is to be settled now. */
  takeConfirmed(max: number): number[] {
    const batch = this.#confirmed.splice(0, max)
    for (const seq of batch) this.#settling.add(seq)
    return batch
  }

  settled(batch: readonly number[]): void {
    for (const seq of batch) this.#settling.delete(seq)
  }

  /** The statement failed: they are settled with a later one. */
  unsettled(batch: readonly number[]): void {
    for (const seq of batch) this.#settling.delete(seq)
    this.#confirmed.unshift(...batch)
  }

  takeAside(): Aside {
    const aside = this.#aside
    this.#aside = { park: [], quarantine: [], behind: [], confirmedParked: [] }
    return aside
  }

  /** What was moved aside is no longer ours to leave out. */
  left(aside: Aside): void {
    const failed = [...aside.park, ...aside.quarantine].map(({ seq }) => seq)
    for (const seq of failed) this.#stopping.delete(seq)
    for (const seq of [...failed, ...aside.behind, ...aside.confirmedParked]) this.#leaving.delete(seq)
  }

  /** The statement failed: the rows are moved with a later one. */
  giveBack(aside: Aside): void {
    this.#aside.park.unshift(...aside.park)
    this.#aside.quarantine.unshift(...aside.quarantine)
    this.#aside.behind.unshift(...aside.behind)
    this.#aside.confirmedParked.unshift(...aside.confirmedParked)
  }

  /** The connection is back: what was read ahead is read again, from the lowest seq. */
  reconnected(): void {
    this.#disconnected = undefined
    this.#ahead = []
  }

  /** Forgets what was read and not sent. */
  dropAhead(): void {
    this.#ahead = []
  }

  #isBehind(row: PendingRow): boolean {
    if (row.orderingKey === null) return false
    const stop = this.#stopped.get(row.orderingKey)
    return stop !== undefined && stop < row.seq
  }

  /** Stops a key at this row: later rows of it that were read ahead go behind. */
  #stop(row: PendingRow): void {
    if (row.orderingKey === null) return
    this.#stopping.set(row.seq, row.orderingKey)
    this.#lower(row.orderingKey, row.seq)
    const kept: PendingRow[] = []
    for (const ahead of this.#ahead) {
      if (this.#isBehind(ahead)) this.#sendBehind(ahead)
      else kept.push(ahead)
    }
    this.#ahead = kept
  }

  #lower(orderingKey: string, seq: number): void {
    const known = this.#stopped.get(orderingKey)
    if (known === undefined || seq < known) this.#stopped.set(orderingKey, seq)
  }

  #sendBehind(row: PendingRow): void {
    this.#leaving.add(row.seq)
    this.#aside.behind.push(row.seq)
  }

  #fly(flight: Flight): void {
    const { seq, orderingKey } = flight.row
    this.#flights.set(seq, flight)
    if (orderingKey !== null) this.#keysInFlight.set(orderingKey, (this.#keysInFlight.get(orderingKey) ?? 0) + 1)
  }

  #land(flight: Flight): void {
    const { seq, orderingKey } = flight.row
    this.#flights.delete(seq)
    if (orderingKey === null) return
    const others = (this.#keysInFlight.get(orderingKey) ?? 1) - 1
    if (others === 0) this.#keysInFlight.delete(orderingKey)
    else this.#keysInFlight.set(orderingKey, others)
  }
}

/** Longest stored error text. */
const ERROR_CHARS_MAX = 500
