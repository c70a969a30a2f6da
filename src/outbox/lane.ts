/**
 * Lane: one ownership of one lane, from the acquisition to its end.
 *
 * One loop does one statement at a time, so no read overlaps a change of what is parked, and every settling makes
 * durable what was read before it. Publishing goes on meanwhile: the window (./window.ts) holds what is read ahead and
 * in flight. Everything is dropped when the lane is lost: the next owner starts from the rows.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { Publisher, PublishResult } from '../broker/contract.ts'
import { isOnceError } from '../shared/errors.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { Wake } from '../shared/wake.ts'
import type { LaneLease, LaneStep, NextRead, ParkedRow, PendingRow, ReadResult } from '../store/outbox.ts'
import { toOutgoing } from './outgoing.ts'
import { idlePollMs } from './poll.ts'
import type { RelaySettings } from './relay-options.ts'
import { type Choice, type Flight, type Landing, Window } from './window.ts'

/** Rows of one settling statement. */
const SETTLE_MAX = 5_000
/** Confirmed rows wait so long for company. Milliseconds. */
const SETTLE_DELAY_MS = 50
/** Parked rows tried at once, and rows of their keys sent back at once. */
const DUE_MAX = 200
const RETURN_MAX = 2_000
/** A read slower than this shares its walk over dead rows among more rows. */
const SLOW_READ_MS = 50
const READ_MAX = 10_000
/** Deaths in a row after which rows are sent one at a time, and claims after which such a row is quarantined (SC38). */
const DEATHS_MAX = 2
const CLAIMS_MAX = 10
/** With so many stopped keys in memory no new rows are read. */
const STOPPED_KEYS_MAX = 100_000
/** How often the stopped keys are asked for again, in polls: operators change them too. */
const KEYS_EVERY_POLLS = 5
const STORE_RETRY = { minMs: 50, maxMs: 2_000 }
/** Pauses after a connection that failed again before it confirmed anything. */
const FLAPPING = { minMs: 50, maxMs: 30_000 }

/** Why an ownership ended. */
export type LaneEnd = 'released' | 'lost'

export class Lane {
  readonly lease: LaneLease
  readonly #settings: RelaySettings
  readonly #publisher: Publisher
  readonly #window: Window
  readonly #wake = new Wake()
  readonly #choice: Choice
  /** Rows still to be sent one at a time, because owners before us died. */
  #aloneLeft: number
  /** Monotonic: until when the lane is ours, by a clock started before the renewing statement was sent. */
  #deadline: number
  #lost = false
  #stopAt: number | undefined
  #readLimit: number
  /** The last read was slow, or may have been: the next one is timed by itself. */
  #readsSlowly = false
  /** Whether there may be rows that we have not read. */
  #mayHaveMore = true
  #pollAt = 0
  #idlePolls = 0
  #dueAt = 0
  #keysAt = 0
  /** When the first of the confirmed rows was confirmed. */
  #confirmedAt = 0
  /** Rows were read that a lane step must make durable first. */
  #undurable = false
  #disconnects = 0
  #resumeAt = 0
  /** Since when the connection is not open. */
  #closedSince: number | undefined
  #storeFailures = 0

  constructor(settings: RelaySettings, publisher: Publisher, lease: LaneLease, deaths: number, acquiredAt: number) {
    this.#settings = settings
    this.#publisher = publisher
    this.lease = lease
    this.#window = new Window(settings.strictOrder)
    this.#aloneLeft = deaths >= DEATHS_MAX ? settings.windowMax : 0
    this.#deadline = acquiredAt + settings.leaseMs
    this.#readLimit = settings.batchMax
    this.#choice = {
      delayMs: (attempt) => backoffMs(attempt, settings.backoff),
      stopsKey: settings.stopsKey,
      patienceMs: settings.publishTimeoutMs * 0.9,
      now: () => performance.now(),
    }
  }

  /** Something was committed, or the connection changed. */
  ring(): void {
    this.#mayHaveMore = true
    this.#idlePolls = 0
    this.#wake.ring()
  }

  /** Nothing of ours is under way. */
  get isIdle(): boolean {
    return this.#window.isEmpty && !this.#mayHaveMore
  }

  /** Ends after what is in flight is settled; the lane is handed back. */
  stop(): void {
    this.#stopAt ??= performance.now() + this.#settings.stopTimeoutMs
    this.#wake.ring()
  }

  /** Runs until the lane is lost or `stop` was called. Never rejects. */
  async run(): Promise<LaneEnd> {
    while (!this.#lost && !this.#hasEnded()) {
      const busy = await this.#guarded(() => this.#turn())
      if (!busy && !this.#lost && !this.#hasEnded()) await this.#sleep()
    }
    if (this.#lost) return 'lost'
    const released = await this.#settings.store.release(this.lease).catch(() => 'lost' as const)
    return released === 'done' ? 'released' : 'lost'
  }

  #hasEnded(): boolean {
    if (this.#stopAt === undefined) return false
    const { flights, confirmed, hasAside } = this.#window
    return (flights === 0 && confirmed === 0 && !hasAside) || performance.now() > this.#stopAt
  }

  /** The most urgent step. @returns whether there was one. */
  async #turn(): Promise<boolean> {
    const window = this.#window
    const now = performance.now()
    if (window.hasAside) return this.#moveAside()
    if (now > this.#deadline - (this.#settings.leaseMs * 2) / 3) return this.#renew()
    // Settled before the next row is claimed: a row that is sent again after a death would take the claims from the
    // one that killed, and that one would never be found (I15).
    if (this.#aloneLeft > 0 && window.confirmed > 0) return this.#settle()
    if (!this.#mayWork(now)) return window.confirmed > 0 ? this.#settle() : this.#recover(now)
    if (now >= this.#keysAt) return this.#refreshKeys()
    if (this.#undurable) return window.confirmed > 0 ? this.#settle() : this.#renew()
    if (now >= this.#dueAt && (await this.#retryParked())) return true
    // Sending takes no trip: the broker does not wait for the database.
    if (await this.#send()) return true
    if (this.#shouldRead()) {
      return window.confirmed > 0 && !this.#readsSlowly && this.#aloneLeft === 0
        ? this.#settleAndRead()
        : this.#readAhead()
    }
    return window.confirmed > 0 && this.#mustSettle(now) ? this.#settle() : false
  }

  /** Confirmed rows wait a little for company, unless nothing more can be confirmed. */
  #mustSettle(now: number): boolean {
    const { confirmed, flights } = this.#window
    return flights === 0 || confirmed >= this.#settings.batchMax || now >= this.#confirmedAt + SETTLE_DELAY_MS
  }

  /** Whether rows may be read and sent. */
  #mayWork(now: number): boolean {
    if (this.#stopAt !== undefined) return false
    if (this.#publisher.state.kind !== 'open') {
      this.#closedSince ??= now
      return false
    }
    this.#closedSince = undefined
    return this.#window.disconnected === undefined
  }

  /** The connection failed: nothing counts, the lane waits, then starts again from the lowest row (B55, R29). */
  async #recover(now: number): Promise<boolean> {
    if (this.#stopAt !== undefined) {
      this.#window.dropAhead()
      return false
    }
    if (this.#window.flights > 0) return false
    // Somebody else may reach the broker: a lane is not kept by an owner that cannot publish (B63).
    if (this.#closedSince !== undefined) {
      if (now > this.#closedSince + this.#settings.leaseMs) this.stop()
      return false
    }
    if (this.#resumeAt === 0) {
      this.#disconnects += 1
      this.#resumeAt = this.#disconnects === 1 ? now : now + backoffMs(this.#disconnects - 1, FLAPPING)
      if (this.#aloneLeft > 0) {
        return this.#step(await this.#settings.store.unclaimAlone(this.lease, this.#settings.leaseMs), now)
      }
    }
    if (now < this.#resumeAt) return false
    this.#resumeAt = 0
    this.#window.reconnected()
    this.#mayHaveMore = true
    return true
  }

  #shouldRead(): boolean {
    const { batchMax, bytesMax } = this.#settings
    const { ahead, flights, bytes, stoppedKeys } = this.#window
    if (!this.#mayHaveMore || stoppedKeys >= STOPPED_KEYS_MAX) return false
    if (this.#aloneLeft > 0) return ahead === 0 && flights === 0
    return ahead < batchMax && bytes < bytesMax
  }

  async #readAhead(): Promise<boolean> {
    this.#mayHaveMore = false
    const started = performance.now()
    const reading = this.#nextRead()
    const { inFlight, limit, bytesMax } = reading
    const result = await this.#settings.store.read(this.lease.lane, inFlight, limit, bytesMax)
    this.#adaptReadLimit(performance.now() - started)
    this.#readsSlowly = false
    if (result.rows.length > 0) this.#take(result, limit)
    else if (this.#aloneLeft > 0 && this.#window.isEmpty) {
      // Nothing is left that could have killed an owner.
      this.#aloneLeft = 0
      return this.#renew(true)
    }
    return true
  }

  #nextRead(): NextRead {
    const room = Math.max(1, this.#settings.bytesMax - this.#window.bytes)
    return { inFlight: this.#window.held(), limit: this.#readLimit, bytesMax: room }
  }

  #take({ rows, durable, more }: ReadResult, limit: number): void {
    // A ring in the meantime has set it already.
    this.#mayHaveMore ||= rows.length >= limit || more === true
    if (rows.length === 0) return
    this.#idlePolls = 0
    this.#undurable ||= !durable
    this.#window.take(rows)
  }

  #adaptReadLimit(ms: number): void {
    const { batchMax, emit } = this.#settings
    if (ms > SLOW_READ_MS && this.#readLimit < READ_MAX) {
      if (this.#readLimit === batchMax) emit({ kind: 'slowRead', lane: this.lease.lane, ms: Math.round(ms) })
      this.#readLimit = Math.min(READ_MAX, this.#readLimit * 2)
    } else if (ms <= SLOW_READ_MS / 2) {
      this.#readLimit = Math.max(batchMax, this.#readLimit >> 1)
    }
  }

  /** Sends what may be sent. @returns whether anything was done. */
  async #send(): Promise<boolean> {
    const room = this.#settings.windowMax - this.#window.flights
    if (this.#window.ahead === 0 || room <= 0) return false
    if (!this.#mayPublish()) return this.#renew()
    if (this.#aloneLeft > 0) return this.#sendAlone()
    const rows = this.#window.sendable(Math.min(room, this.#settings.batchMax))
    const now = performance.now()
    const { stops } = this.#window
    for (const row of rows) {
      // A row of this very batch may have stopped its key.
      if (this.#window.stops === stops || !this.#window.divert(row)) this.#publish(row, now)
    }
    return rows.length > 0 || this.#window.hasAside
  }

  /** After deaths: one row at a time, counted before it is sent (I15). */
  async #sendAlone(): Promise<boolean> {
    if (this.#window.flights > 0) return false
    const [row] = this.#window.sendable(1)
    if (row === undefined) return this.#window.hasAside
    await this.#claimAndPublish(row)
    return true
  }

  async #claimAndPublish(row: PendingRow | ParkedRow): Promise<void> {
    const at = performance.now()
    // In flight from here: when the claim's answer is lost the row is neither read again nor forgotten.
    const flight = this.#window.fly(row, at)
    let claims: number
    try {
      claims = await this.#settings.store.claimAlone(this.lease, this.#settings.leaseMs, row.seq)
    } catch (error) {
      this.#answered(this.#window.answer(flight, { kind: 'disconnected', reason: 'not sent' }, this.#choice))
      throw error
    }
    if (!this.#step(claims > 0 ? 'done' : 'lost', at)) return
    if (claims > CLAIMS_MAX) {
      const why = `its relay ended ${CLAIMS_MAX} times while it was sent alone`
      this.#answered(this.#window.quarantine(flight, 'poison', why, this.#settings.stopsKey(row.topic)), 'poison')
      return
    }
    this.#transmit(row, flight)
  }

  #publish(row: PendingRow | ParkedRow, now: number): void {
    this.#transmit(row, this.#window.fly(row, now))
  }

  #transmit(row: PendingRow, flight: Flight): void {
    const message = toOutgoing(row)
    if (typeof message === 'string') {
      const stopsKey = this.#settings.stopsKey(row.topic)
      this.#answered(this.#window.quarantine(flight, 'undecodable', message, stopsKey), 'undecodable')
      return
    }
    this.#publisher.publish(message, (result: PublishResult) => {
      if (!this.#lost) this.#answered(this.#window.answer(flight, result, this.#choice))
    })
  }

  #answered(landing: Landing | undefined, reason: 'invalid' | 'undecodable' | 'poison' = 'invalid'): void {
    if (landing === undefined) return
    const { lane } = this.lease
    const { id: messageId, topic } = landing.flight
    switch (landing.kind) {
      case 'confirmed':
        this.#onConfirmed()
        return
      case 'parked': {
        const { reason: why, attempt, delayMs } = landing
        this.#settings.emit({ kind: 'parked', lane, messageId, topic, reason: why, attempt, delayMs })
        break
      }
      case 'quarantined':
        this.#settings.emit({ kind: 'quarantined', lane, messageId, topic, reason })
        break
      case 'lost':
        break
    }
    this.#wake.ring()
  }

  /** Called for every message: wakes the loop only when it has a reason to look. */
  #onConfirmed(): void {
    this.#disconnects = 0
    const { confirmed, flights, hasAside } = this.#window
    const { batchMax, windowMax, strictOrder } = this.#settings
    if (confirmed === 1) this.#confirmedAt = performance.now()
    if (flights === 0 || confirmed === batchMax || flights === windowMax - batchMax || hasAside || strictOrder) {
      this.#wake.ring()
    }
  }

  /** Moves rows where their answers say. Each statement is one step; what failed is tried again. */
  async #moveAside(): Promise<boolean> {
    const { store, leaseMs } = this.#settings
    const window = this.#window
    const aside = window.takeAside()
    try {
      if (aside.park.length > 0) {
        const at = performance.now()
        if (!this.#step(await store.park(this.lease, leaseMs, aside.park), at)) return true
        this.#dueAt = aside.park.reduce((due, { delayMs }) => Math.min(due, at + delayMs), this.#dueAt)
        window.left(aside.park.splice(0))
      }
      if (aside.behind.length > 0) {
        const at = performance.now()
        if (!this.#step(await store.parkBehind(this.lease, leaseMs, aside.behind), at)) return true
        window.left(aside.behind.splice(0).map((seq) => ({ seq })))
      }
      if (aside.quarantine.length > 0) {
        const at = performance.now()
        const { kind, next } = await store.quarantine(this.lease, leaseMs, aside.quarantine)
        if (!this.#step(kind, at)) return true
        // The lowest row that was parked behind is due now.
        if (next.length > 0) this.#dueAt = 0
        if (aside.quarantine.some((row) => row.reason === 'poison')) this.#aloneLeft = 0
        this.#keysAt = 0
        window.left(aside.quarantine.splice(0))
      }
      if (aside.sentParked.length > 0) await this.#settleParked(aside.sentParked)
    } catch (error) {
      window.giveBack(aside)
      // An answer was lost: what is stopped is the store's to say.
      this.#keysAt = 0
      throw error
    }
    return true
  }

  async #settleParked(sent: Flight[]): Promise<void> {
    const { store, leaseMs, history, emit } = this.#settings
    const at = performance.now()
    const options = { history, progress: this.#aloneLeft === 0, limit: RETURN_MAX }
    const seqs = sent.map((flight) => flight.seq)
    const { kind, next, moved } = await store.settleParked(this.lease, leaseMs, seqs, options)
    if (!this.#step(kind, at)) return
    this.#window.release(
      sent.map((flight) => flight.orderingKey),
      next,
    )
    this.#window.left(sent.splice(0))
    if (next.length > 0) this.#dueAt = 0
    if (moved > 0) this.#mayHaveMore = true
    emit({ kind: 'published', lane: this.lease.lane, count: seqs.length })
  }

  /** What is stopped is the store's to say: at the start, now and then, and after an answer was lost. */
  async #refreshKeys(): Promise<boolean> {
    const at = performance.now()
    const { stops } = this.#window
    const { kind, keys } = await this.#settings.store.stoppedKeys(this.lease, this.#settings.leaseMs)
    if (!this.#step(kind, at)) return true
    // A message failed meanwhile: the answer does not know of it.
    if (this.#window.stops !== stops) return true
    this.#window.stop(keys)
    this.#keysAt = at + this.#settings.pollMs * KEYS_EVERY_POLLS * (0.75 + Math.random() / 2)
    this.#dueAt = 0
    return true
  }

  async #retryParked(): Promise<boolean> {
    if (this.#aloneLeft > 0 && this.#window.flights > 0) return false
    if (!this.#mayPublish()) return this.#renew()
    const { store, bytesMax, pollMs } = this.#settings
    const at = performance.now()
    const limit = this.#aloneLeft > 0 ? 1 : DUE_MAX
    const { rows, nextInMs } = await store.due(this.lease.lane, this.#window.held(), limit, bytesMax)
    const nextMs = rows.length === limit ? 5 : Math.min(nextInMs ?? pollMs * 5, pollMs * 5)
    this.#dueAt = at + Math.max(5, nextMs)
    if (!this.#mayWork(performance.now())) return true
    for (const row of rows) {
      if (this.#aloneLeft > 0) await this.#claimAndPublish(row)
      else this.#publish(row, at)
    }
    return rows.length > 0
  }

  async #settle(): Promise<boolean> {
    const { store, leaseMs, history } = this.#settings
    const batch = this.#window.toSettle(SETTLE_MAX)
    const at = performance.now()
    const progress = this.#aloneLeft <= batch.length
    if (this.#step(await store.settle(this.lease, leaseMs, batch, { history, progress }), at)) this.#settled(batch)
    return true
  }

  /** Both in one trip and one write to the log, which also makes durable what is read. */
  async #settleAndRead(): Promise<boolean> {
    const { store, leaseMs, history } = this.#settings
    const batch = this.#window.toSettle(SETTLE_MAX)
    this.#mayHaveMore = false
    const at = performance.now()
    const reading = this.#nextRead()
    const result = await store.settleAndRead(this.lease, leaseMs, batch, { history, progress: true }, reading)
    if (!this.#step(result.kind, at)) return true
    this.#settled(batch)
    this.#take(result, reading.limit)
    // Which of the two was slow is not known: the next read goes alone.
    this.#readsSlowly = performance.now() - at > SLOW_READ_MS || this.#readLimit > this.#settings.batchMax
    return true
  }

  #settled(batch: readonly number[]): void {
    this.#aloneLeft = Math.max(0, this.#aloneLeft - batch.length)
    this.#window.settled(batch)
    this.#confirmedAt = performance.now()
    this.#settings.emit({ kind: 'published', lane: this.lease.lane, count: batch.length })
  }

  /** Whether a message sent now would be answered while the lane is still ours. */
  #mayPublish(): boolean {
    return performance.now() < this.#deadline - this.#settings.publishTimeoutMs
  }

  async #renew(settled = false): Promise<boolean> {
    const at = performance.now()
    const { kind, wanted } = await this.#settings.store.renew(this.lease, this.#settings.leaseMs, settled)
    if (this.#step(kind, at) && wanted) this.stop()
    return true
  }

  /** Takes the answer of a step with the lease that was called at `at`. */
  #step(kind: LaneStep, at: number): boolean {
    if (this.#storeFailures > 0) {
      this.#storeFailures = 0
      this.#settings.emit({ kind: 'storeAvailable' })
    }
    if (kind === 'lost') {
      this.#lost = true
      return false
    }
    this.#deadline = Math.max(this.#deadline, at + this.#settings.leaseMs)
    this.#undurable = false
    return true
  }

  /** Runs a step; a store that cannot be asked is waited for, until the lease must be taken for lost. */
  async #guarded(step: () => Promise<boolean>): Promise<boolean> {
    try {
      return await step()
    } catch (error) {
      this.#storeFailures += 1
      if (this.#storeFailures === 1) {
        const reason = isOnceError(error) ? error.code : error instanceof Error ? error.name : 'unknown'
        this.#settings.emit({ kind: 'storeUnavailable', reason })
      }
      if (performance.now() > this.#deadline) this.#lost = true
      else await pause(backoffMs(Math.min(this.#storeFailures, 10), STORE_RETRY))
      this.#mayHaveMore = true
      return true
    }
  }

  /** Until rung, or until the next thing is due by the clock. */
  async #sleep(): Promise<void> {
    const { pollMs, leaseMs } = this.#settings
    const now = performance.now()
    if (this.#window.isEmpty && this.#pollAt <= now) {
      this.#pollAt = now + idlePollMs(pollMs, this.#idlePolls)
      this.#idlePolls += 1
    } else if (this.#pollAt <= now) {
      this.#pollAt = now + pollMs
    }
    const times = [this.#pollAt, this.#deadline - (leaseMs * 2) / 3 + 1]
    if (this.#window.confirmed > 0) times.push(this.#confirmedAt + SETTLE_DELAY_MS)
    if (this.#stopAt !== undefined) times.push(this.#stopAt + 1)
    else if (this.#resumeAt > 0) times.push(this.#resumeAt)
    else if (this.#window.disconnected === undefined && this.#publisher.state.kind === 'open') {
      times.push(this.#keysAt, this.#aloneLeft > 0 && this.#window.flights > 0 ? this.#pollAt : this.#dueAt)
    } else if (this.#closedSince !== undefined) times.push(this.#closedSince + leaseMs + 1)
    await this.#wake.sleep(Math.max(1, Math.min(...times) - now))
    // A poll looks for rows that nobody rang for.
    if (performance.now() >= this.#pollAt) this.#mayHaveMore = true
  }
}
