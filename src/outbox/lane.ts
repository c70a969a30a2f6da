/**
 * Lane: one ownership of one lane, from the acquisition to its end.
 *
 * Two loops share a window (./window.ts). The reader reads, publishes, and moves failing rows aside, one step after the
 * other, so that no read overlaps a change of what is parked. The settler removes confirmed rows while the reader
 * goes on. Everything is dropped when the lane is lost: the next owner starts from the rows.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { Publisher, PublishResult } from '../broker/contract.ts'
import { isOnceError } from '../shared/errors.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { Wake } from '../shared/wake.ts'
import type { LaneLease, LaneStep, ParkedRow, PendingRow } from '../store/outbox.ts'
import { toOutgoing } from './outgoing.ts'
import type { RelaySettings } from './relay-options.ts'
import { Window } from './window.ts'

/** Rows of one settling statement. */
const SETTLE_MAX = 5_000
/** Parked rows tried at once, and rows of their keys sent back at once. */
const DUE_MAX = 100
const RETURN_MAX = 1_000
/** A read slower than this shares its walk over dead rows among more rows. */
const SLOW_READ_MS = 50
const READ_MAX = 10_000
/** Deaths in a row after which rows are sent one at a time, and claims after which such a row is quarantined (SC38). */
const DEATHS_MAX = 2
const CLAIMS_MAX = 10
/** How often a stopping lane looks whether its time is over, milliseconds. */
const STOP_POLL_MS = 50
const STORE_RETRY = { minMs: 50, maxMs: 2_000 }

/** Why an ownership ended. */
export type LaneEnd = 'released' | 'lost'

export class Lane {
  readonly lease: LaneLease
  readonly #settings: RelaySettings
  readonly #publisher: Publisher
  readonly #window = new Window()
  readonly #reader = new Wake()
  readonly #settler = new Wake()
  /** Whether rows are sent one at a time, because owners before us died. */
  #alone: boolean
  #aloneLeft: number
  /** Monotonic: until when we may publish, by our own clock started before the renewing statement. */
  #deadline: number
  #lost = false
  #stopping = false
  #readerDone = false
  #readLimit: number
  /** Whether there may be rows that we have not read. */
  #mayHaveMore = true
  #dueAt = 0
  #keysAt = 0
  #idlePolls = 0
  #storeFailures = 0

  constructor(settings: RelaySettings, publisher: Publisher, lease: LaneLease, deaths: number, acquiredAt: number) {
    this.#settings = settings
    this.#publisher = publisher
    this.lease = lease
    this.#alone = deaths >= DEATHS_MAX
    this.#aloneLeft = settings.windowMax
    this.#deadline = acquiredAt + settings.leaseMs
    this.#readLimit = settings.batchMax
  }

  /** Something was committed, or the connection changed. */
  ring(): void {
    this.#mayHaveMore = true
    this.#idlePolls = 0
    this.#reader.ring()
  }

  /** Nothing of ours is under way. */
  get isIdle(): boolean {
    return this.#window.isEmpty
  }

  /** Ends after what is in flight is settled; the lane is handed back. */
  stop(): void {
    this.#stopping = true
    this.#reader.ring()
  }

  /** Runs until the lane is lost or `stop` was called. Never rejects. */
  async run(): Promise<LaneEnd> {
    const settling = this.#settle()
    await this.#read()
    this.#readerDone = true
    this.#settler.ring()
    await settling
    if (this.#lost) return 'lost'
    const released = await this.#settings.store.release(this.lease).catch(() => 'lost' as const)
    return released === 'done' ? 'released' : 'lost'
  }

  async #read(): Promise<void> {
    const stopBy = () => performance.now() + this.#settings.stopTimeoutMs
    let stopAt = Number.POSITIVE_INFINITY
    while (!this.#lost) {
      if (this.#stopping && stopAt === Number.POSITIVE_INFINITY) {
        stopAt = stopBy()
        this.#window.dropAhead()
      }
      await this.#guarded(() => this.#turn())
      if (this.#stopping && ((this.#window.flights === 0 && !this.#window.hasAside) || performance.now() > stopAt))
        return
      if (!this.#lost && !this.#canGoOn()) await this.#reader.sleep(this.#sleepMs())
    }
  }

  /** One pass of the reader; every statement is one atomic step, so any of them may end it. */
  async #turn(): Promise<void> {
    const window = this.#window
    if (window.hasAside) await this.#moveAside()
    await this.#keepLease()
    if (this.#lost) return
    if (window.disconnected !== undefined) {
      await this.#recover()
      return
    }
    if (this.#stopping || this.#publisher.state.kind !== 'open') return
    await this.#refreshKeys()
    await this.#retryParked()
    if (this.#shouldRead()) await this.#readAhead()
    if (this.#alone) await this.#sendAlone()
    else await this.#send()
  }

  #canGoOn(): boolean {
    if (this.#window.hasAside) return true
    if (this.#stopping || this.#window.disconnected !== undefined || this.#publisher.state.kind !== 'open') return false
    return this.#shouldRead() || (this.#roomToSend() > 0 && this.#window.next(this.#settings.strictOrder) !== undefined)
  }

  #shouldRead(): boolean {
    if (!this.#mayHaveMore || this.#window.hasAside) return false
    if (this.#alone) return this.#window.isEmpty
    return this.#window.ahead < this.#settings.batchMax && this.#roomToSend() > 0
  }

  #roomToSend(): number {
    if (this.#stopping) return 0
    if (this.#alone) return this.#window.flights === 0 ? 1 : 0
    return this.#settings.windowMax - this.#window.flights
  }

  #sleepMs(): number {
    const { pollMs, leaseMs } = this.#settings
    const now = performance.now()
    const poll = Math.min(pollMs * 2 ** this.#idlePolls, pollMs * 5)
    if (this.#window.isEmpty) this.#idlePolls = Math.min(this.#idlePolls + 1, 3)
    const jittered = poll * (0.75 + Math.random() / 2)
    const renewIn = this.#deadline - (leaseMs * 2) / 3 - now
    const dueIn = this.#dueAt - now
    if (this.#stopping) return STOP_POLL_MS
    // A poll looks for rows that nobody rang for.
    this.#mayHaveMore = true
    return Math.max(1, Math.min(jittered, Math.max(renewIn, 5), Math.max(dueIn, 5)))
  }

  async #readAhead(): Promise<void> {
    const { store, batchMax, bytesMax } = this.#settings
    const limit = this.#alone ? 1 : this.#readLimit
    this.#mayHaveMore = false
    const started = performance.now()
    const { rows, durable } = await store.read(this.lease.lane, this.#window.held(), limit, bytesMax)
    const slow = performance.now() - started > SLOW_READ_MS
    this.#readLimit = slow ? Math.min(READ_MAX, this.#readLimit * 2) : Math.max(batchMax, this.#readLimit >> 1)
    if (rows.length > 0) this.#idlePolls = 0
    // A ring in the meantime has set it already.
    if (rows.length === limit || bytesOf(rows) > bytesMax / 2) this.#mayHaveMore = true
    if (!durable && !(await this.#renew())) return
    this.#window.take(rows)
    if (rows.length === 0 && this.#window.isEmpty && !(await this.#forgetDeaths())) return
    if (this.#window.hasAside) await this.#moveAside()
  }

  /** The lane is empty: nothing is left that could have killed an owner. */
  async #forgetDeaths(): Promise<boolean> {
    if (!this.#alone) return true
    this.#alone = false
    return await this.#renew(true)
  }

  async #send(): Promise<void> {
    const { strictOrder } = this.#settings
    let room = this.#roomToSend()
    // The connection may have been lost and replaced while we asked the store: then what it swallowed comes first.
    while (room > 0 && this.#window.disconnected === undefined) {
      if (!this.#mayPublish() && !(await this.#renew())) return
      if (strictOrder) {
        const row = this.#window.next(true)
        if (row === undefined) return
        this.#window.send(row)
        this.#publish(row)
        room -= 1
      } else {
        const rows = this.#window.takeAhead(Math.min(room, this.#settings.batchMax))
        if (rows.length === 0) return
        for (const row of rows) if (this.#window.fly(row)) this.#publish(row)
        room -= rows.length
      }
    }
  }

  /** After deaths: one row at a time, counted before it is sent (I15). */
  async #sendAlone(): Promise<void> {
    const row = this.#window.flights === 0 ? this.#window.next(false) : undefined
    if (row === undefined) return
    const at = performance.now()
    const claims = await this.#settings.store.claimAlone(this.lease, this.#settings.leaseMs, row.seq)
    if (!this.#step(claims > 0 ? 'done' : 'lost', at)) return
    this.#window.send(row)
    if (claims > CLAIMS_MAX) {
      this.#answer(row, { kind: 'invalid', reason: `its relay ended ${CLAIMS_MAX} times while it was sent` }, 'poison')
      return
    }
    this.#publish(row)
  }

  #publish(row: PendingRow): void {
    const message = toOutgoing(row)
    if (typeof message === 'string') {
      this.#answer(row, { kind: 'invalid', reason: message }, 'undecodable')
      return
    }
    this.#publisher.publish(message, (result) => this.#answer(row, result))
  }

  #answer(row: PendingRow, result: PublishResult, reason: 'invalid' | 'undecodable' | 'poison' = 'invalid'): void {
    const { backoff, stopsKey, emit } = this.#settings
    const choice = { delayMs: (attempt: number) => backoffMs(attempt, backoff), stopsKey, reason }
    const answered = this.#window.answer(row.seq, result, choice)
    if (answered === undefined) return
    const { lane, id: messageId, topic } = row
    if (result.kind === 'confirmed') {
      if (answered.attempts === undefined) this.#settler.ring()
      else this.#reader.ring()
      if (this.#window.flights <= this.#settings.windowMax - this.#settings.batchMax || this.#window.flights === 0) {
        this.#reader.ring()
      }
      return
    }
    if (result.kind === 'returned' || result.kind === 'refused') {
      const attempt = (answered.attempts ?? 0) + 1
      emit({ kind: 'parked', lane, messageId, topic, reason: result.kind, attempt, delayMs: answered.delayMs ?? 0 })
    } else if (result.kind === 'invalid') {
      emit({ kind: 'quarantined', lane, messageId, topic, reason })
    }
    this.#reader.ring()
  }

  async #moveAside(): Promise<void> {
    const aside = this.#window.takeAside()
    const { store, leaseMs, history } = this.#settings
    try {
      if (aside.park.length > 0) {
        const at = performance.now()
        if (!this.#step(await store.park(this.lease, leaseMs, aside.park), at)) return
        this.#dueAt = Math.min(this.#dueAt, at + Math.min(...aside.park.map((row) => row.delayMs)))
      }
      if (aside.behind.length > 0) {
        const at = performance.now()
        if (!this.#step(await store.parkBehind(this.lease, leaseMs, aside.behind), at)) return
      }
      if (aside.quarantine.length > 0) {
        const at = performance.now()
        const { kind } = await store.quarantine(this.lease, leaseMs, aside.quarantine)
        if (!this.#step(kind, at)) return
        this.#keysAt = 0
        this.#mayHaveMore = true
      }
      if (aside.confirmedParked.length > 0) {
        const at = performance.now()
        const options = { history, progress: true, limit: RETURN_MAX }
        const { kind } = await store.settleParked(this.lease, leaseMs, aside.confirmedParked, options)
        if (!this.#step(kind, at)) return
        this.#settings.emit({ kind: 'published', lane: this.lease.lane, count: aside.confirmedParked.length })
        this.#keysAt = 0
        this.#dueAt = 0
        this.#mayHaveMore = true
      }
      this.#window.left(aside)
    } catch (error) {
      this.#window.giveBack(aside)
      throw error
    }
  }

  /** What is parked is the store's to say: after every change, and now and then because operators change it too. */
  async #refreshKeys(): Promise<void> {
    const now = performance.now()
    if (now < this.#keysAt) return
    const { kind, keys } = await this.#settings.store.stoppedKeys(this.lease, this.#settings.leaseMs)
    if (!this.#step(kind, now)) return
    this.#window.stop(keys)
    this.#keysAt = now + this.#settings.pollMs * (0.75 + Math.random() / 2)
  }

  async #retryParked(): Promise<void> {
    const now = performance.now()
    if (now < this.#dueAt || this.#alone) return
    const { store, bytesMax, pollMs } = this.#settings
    const { rows, nextInMs } = await store.due(this.lease.lane, this.#window.held(), DUE_MAX, bytesMax)
    this.#dueAt = now + Math.max(5, Math.min(nextInMs ?? pollMs * 5, pollMs * 5))
    if (rows.length === 0) return
    if (!this.#mayPublish() && !(await this.#renew())) return
    if (this.#window.disconnected !== undefined) {
      this.#dueAt = 0
      return
    }
    for (const row of rows) this.#retry(row)
  }

  #retry(row: ParkedRow): void {
    this.#window.retry(row)
    this.#publish(row)
  }

  /** The connection failed: nothing counts, the lane waits, then starts again from the lowest row (B55). */
  async #recover(): Promise<void> {
    if (this.#window.flights > 0) return
    if (this.#alone) {
      const at = performance.now()
      if (!this.#step(await this.#settings.store.unclaimAlone(this.lease, this.#settings.leaseMs), at)) return
    }
    if (this.#publisher.state.kind !== 'open') return
    this.#window.reconnected()
    this.#mayHaveMore = true
  }

  /** Removes confirmed rows until the reader has ended and nothing is confirmed. */
  async #settle(): Promise<void> {
    while (!this.#lost) {
      if (this.#window.confirmed === 0) {
        if (this.#readerDone) return
        await this.#settler.sleep(this.#settings.leaseMs)
        continue
      }
      // Answers that came in the same turn share the statement.
      await new Promise(setImmediate)
      const batch = this.#window.takeConfirmed(SETTLE_MAX)
      const done = await this.#guarded(() => this.#settleBatch(batch))
      if (!done) this.#window.unsettled(batch)
    }
  }

  async #settleBatch(batch: readonly number[]): Promise<void> {
    const { store, leaseMs, history, windowMax, emit } = this.#settings
    const at = performance.now()
    if (this.#alone) this.#aloneLeft -= batch.length
    const progress = !this.#alone || this.#aloneLeft <= 0
    if (!this.#step(await store.settle(this.lease, leaseMs, batch, { history, progress }), at)) return
    if (this.#alone && progress) {
      this.#alone = false
      this.#aloneLeft = windowMax
    }
    this.#window.settled(batch)
    emit({ kind: 'published', lane: this.lease.lane, count: batch.length })
    if (this.#window.isEmpty || this.#alone) this.#reader.ring()
  }

  /** Whether a message sent now would be answered while the lane is still ours. */
  #mayPublish(): boolean {
    return performance.now() < this.#deadline - this.#settings.publishTimeoutMs
  }

  async #keepLease(): Promise<void> {
    if (performance.now() > this.#deadline - (this.#settings.leaseMs * 2) / 3) await this.#renew()
  }

  async #renew(settled = false): Promise<boolean> {
    const at = performance.now()
    const { kind, wanted } = await this.#settings.store.renew(this.lease, this.#settings.leaseMs, settled)
    if (wanted) this.stop()
    return this.#step(kind, at)
  }

  /** Takes the answer of a step with the lease that was called at `at`. */
  #step(kind: LaneStep, at: number): boolean {
    this.#succeeded()
    if (kind === 'lost') {
      this.#lose()
      return false
    }
    this.#deadline = Math.max(this.#deadline, at + this.#settings.leaseMs)
    return !this.#lost
  }

  #lose(): void {
    this.#lost = true
    this.#reader.ring()
    this.#settler.ring()
  }

  #succeeded(): void {
    if (this.#storeFailures === 0) return
    this.#storeFailures = 0
    this.#settings.emit({ kind: 'storeAvailable' })
  }

  /** Runs a step; a store that cannot be asked is waited for, until the lease must be taken for lost. */
  async #guarded(step: () => Promise<void>): Promise<boolean> {
    try {
      await step()
      return true
    } catch (error) {
      this.#storeFailures += 1
      if (this.#storeFailures === 1) {
        const reason = isOnceError(error) ? error.code : error instanceof Error ? error.name : 'unknown'
        this.#settings.emit({ kind: 'storeUnavailable', reason })
      }
      if (performance.now() > this.#deadline) this.#lose()
      else await pause(backoffMs(Math.min(this.#storeFailures, 10), STORE_RETRY))
      this.#mayHaveMore = true
      return false
    }
  }
}

function bytesOf(rows: readonly PendingRow[]): number {
  let bytes = 0
  for (const row of rows) bytes += row.payload.length
  return bytes
}
