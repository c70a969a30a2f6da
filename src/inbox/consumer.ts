/**
 * Consumer: takes deliveries, applies each message once, and acknowledges after the commit. (I9, R30, R31)
 *
 * This file is the shell: what is in hand, what starts next, when to stop and when to wait. What happens to one message is in
 * ./run.ts and ./attempt.ts; messages that come back from the waiting table are fetched by ./due.ts.
 *
 * @module
 */

import { setMaxListeners } from 'node:events'
import type { ConnectionState, Delivery, Subscription } from '../broker/contract.ts'
import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { tell } from '../shared/listener.ts'
import { integerOption, refuseBound, signalOption, waitOptions } from '../shared/options.ts'
import { type Backoff, backoffMs, bounded, pause } from '../shared/waiting.ts'
import { AckBuffer } from './ack-buffer.ts'
import { Running, type Work } from './attempt.ts'
import { Due } from './due.ts'
import type { ConsumerEvent } from './events.ts'
import { examine, type Item, kindOfError, type Refusal } from './item.ts'
import { KeyQueue } from './key-queue.ts'
import type { Consumer, ConsumerDrainOptions, ConsumerHealth, ConsumerHost, ConsumerOptions } from './options.ts'
import { type Disposition, Runner } from './run.ts'
import { type ConsumerSettings, checkedSettings } from './settings.ts'

/**
 * Makes a consumer; nothing happens before `start`.
 *
 * @throws {TypeError} naming the option.
 * @throws {OnceError} HORIZON_TOO_SHORT when repeats can come later than they are recognised.
 */
export function createConsumer<Tx>(options: ConsumerOptions<Tx>, host: ConsumerHost<Tx>): Consumer {
  return new ConsumerShell(checkedSettings(options), host)
}

/** How long to wait before the store is asked again. */
const TROUBLE: Backoff = { minMs: 200, maxMs: 15_000 }
const BUSY_PAUSE_MS = 100
/** Redelivered messages looked up together. */
const RECOGNISE_MAX = 500
const REFUSE_MAX = 100
const NOBODY: readonly Item[] = []
const NO_DELIVERIES: readonly Delivery[] = []
const CLOSE_BOUND_MS = 10_000
/** Acknowledgements that are held back together are at most this share of the prefetch. */
const ACK_SHARE = 8
/** Longest time that a batch beside a running one, or just after one, waits to become full, milliseconds. */
const LINGER_MS = 5

class ConsumerShell<Tx> implements Consumer {
  readonly #settings: ConsumerSettings<Tx>
  readonly #host: ConsumerHost<Tx>
  readonly #runner: Runner<Tx>
  readonly #due: Due
  readonly #owner: string = randomUUID()
  readonly #attempts = new Running()
  /** Aborts waits of our own. */
  readonly #stopping = new AbortController()

  #state: ConsumerHealth['state'] = 'idle'
  #reason: string | undefined
  #warning: string | undefined
  #subscription: Subscription | undefined
  #lastSettledMs: number | undefined

  /** A claimed message runs in a transaction of its own, also beside batches. */
  readonly #queue = new KeyQueue<Item>((item) => item.claim !== undefined)
  /** To be handled alone: redelivered by the broker, or claimed by a consumer that vanished. */
  readonly #suspects: Item[] = []
  /** There are due rows whose consumer vanished. */
  #suspectsDue = false
  /** Tried before and still holding their keys; next in line. */
  readonly #resumed: Item[] = []
  #refusals: Refusal[] = []
  readonly #byDelivery = new Map<Delivery, Item>()
  /** Messages in hand by mark, and later deliveries of the same message. */
  readonly #inFlight = new Map<string, readonly Item[]>()
  readonly #pauses = new Map<Item, NodeJS.Timeout>()
  #followers = 0
  #running = 0
  #alone = false
  #trouble = false
  #pumping = false
  /** Runs while a batch that is not full is held back; then it starts as it is. */
  #linger: NodeJS.Timeout | undefined
  #lingered = false
  readonly #idle = new Set<() => void>()
  readonly #acks: AckBuffer

  constructor(settings: ConsumerSettings<Tx>, host: ConsumerHost<Tx>) {
    // Each of `concurrency` works may wait with it, which is no leak.
    setMaxListeners(0, this.#stopping.signal)
    this.#settings = settings
    this.#host = host
    const emit = settings.onEvent === undefined ? undefined : (event: ConsumerEvent) => this.#emit(event)
    this.#runner = new Runner(host, settings.run, emit, this.#attempts)
    this.#acks = new AckBuffer(Math.ceil(settings.prefetch / ACK_SHARE), (deliveries) => this.#ack(deliveries))
    this.#due = new Due(host.store, {
      ...settings.due,
      owner: this.#owner,
      room: () => (this.#trouble || this.#alone ? 0 : settings.concurrency),
      except: () => [...this.#inFlight.keys()],
      take: (items) => this.#arrive(items),
      suspects: () => {
        this.#suspectsDue = true
        this.#schedule()
      },
      purged: (count) => this.#emit({ kind: 'purged', consumer: settings.name, count }),
      failed: (error) => this.#onTrouble(error),
      item: settings.item,
    })
  }

  async start(signal?: AbortSignal): Promise<void> {
    if (this.#state !== 'idle') throw new TypeError('a consumer is started once')
    signalOption('consumer.start', signal)
    signal?.throwIfAborted()
    this.#become('starting')
    try {
      // A database without our tables, or a standby, is told here instead of in the log of a paused consumer.
      await this.#probe()
      const abort = AbortSignal.any([this.#stopping.signal, ...(signal === undefined ? [] : [signal])])
      this.#subscription = await this.#settings.source.subscribe(
        {
          prefetch: this.#settings.prefetch,
          onDelivery: (delivery) => this.#onDelivery(delivery),
          onState: (state) => this.#onState(state),
          onLost: (deliveries) => this.#onLost(deliveries),
        },
        abort,
      )
    } catch (error) {
      this.#become('idle')
      throw error
    }
    if (this.#stopping.signal.aborted) return
    this.#onState(this.#subscription.state)
    this.#due.start()
  }

  async drain(options?: ConsumerDrainOptions | AbortSignal): Promise<void> {
    const { signal, quietMs: given } = waitOptions('consumer.drain', options, ['quietMs', 'signal'])
    const quietMs = integerOption('quietMs', given, { min: 0, max: 3_600_000, default: 100 })
    while (this.#state !== 'stopped') {
      await this.#becomesIdle(signal)
      const before = this.#lastSettledMs
      const claimed = await this.#due.now()
      await pause(quietMs, signal)
      signal?.throwIfAborted()
      if (claimed === 0 && this.#isIdle() && before === this.#lastSettledMs) return
    }
  }

  async stop(...given: readonly never[]): Promise<void> {
    refuseBound('consumer.stop', given, 'stopTimeoutMs of once.consumer bounds it')
    if (this.#state === 'stopped' || this.#state === 'idle') {
      this.#state = 'stopped'
      return
    }
    if (this.#stopping.signal.aborted) return await this.#becomesIdle()
    this.#become('stopping')
    this.#stopping.abort()
    const subscription = this.#subscription
    await bounded(Promise.allSettled([subscription?.stop(), this.#due.stop()]), CLOSE_BOUND_MS)
    const untouched = this.#handBack()
    const ended = await bounded(this.#runningEnds(), this.#settings.stopTimeoutMs)
    if (ended.kind === 'timeout') {
      this.#attempts.stop()
      await bounded(this.#runningEnds(), CLOSE_BOUND_MS)
    }
    const claims = [...untouched, ...this.#handBack()].flatMap((item) => (item.claim === undefined ? [] : [item.claim]))
    await this.#host.store.release(claims, 0).catch(() => {})
    this.#acks.flush()
    if (subscription !== undefined) await bounded(Promise.allSettled([subscription.close()]), CLOSE_BOUND_MS)
    this.#byDelivery.clear()
    this.#inFlight.clear()
    this.#become('stopped')
    this.#tellIdle()
  }

  health(): ConsumerHealth {
    return {
      state: this.#state,
      reason: this.#reason,
      warning: this.#warning,
      queued: this.#queued(),
      running: this.#running,
      idleMs: this.#lastSettledMs === undefined ? undefined : performance.now() - this.#lastSettledMs,
    }
  }

  // ---- what comes in

  #onDelivery(delivery: Delivery): void {
    const examined = examine(delivery, this.#settings.item)
    if ('reason' in examined) {
      this.#refusals.push(examined)
      this.#schedule()
      return
    }
    this.#byDelivery.set(delivery, examined)
    this.#arrive([examined])
  }

  #arrive(items: readonly Item[]): void {
    for (const item of items) {
      if (item.suspect) this.#suspects.push(item)
      else this.#queue.push(item)
    }
    this.#schedule()
  }

  #onLost(deliveries: readonly Delivery[]): void {
    let started = 0
    for (const delivery of deliveries) {
      const item = this.#byDelivery.get(delivery)
      if (item === undefined) continue
      this.#byDelivery.delete(delivery)
      item.lost = true
      if (this.#inFlight.has(item.mark.id)) started += 1
    }
    const lost = new Set(deliveries)
    this.#refusals = this.#refusals.filter((refusal) => !lost.has(refusal.delivery))
    if (deliveries.length > 0) {
      this.#emit({ kind: 'lost', consumer: this.#settings.name, count: deliveries.length, started })
    }
    this.#schedule()
  }

  #onState(state: ConnectionState): void {
    if (this.#stopping.signal.aborted) return
    if (state.kind === 'open') {
      this.#warning = state.warning
      if (!this.#trouble) this.#become('running')
    } else if (!this.#trouble) {
      this.#become('disconnected', state.reason)
    }
  }

  // ---- what starts

  /** Starts work after the current turn, so that what arrives together is taken together. */
  #schedule(): void {
    if (this.#pumping) return
    this.#pumping = true
    setImmediate(() => {
      this.#pumping = false
      this.#pump()
    })
  }

  #pump(): void {
    if (this.#trouble || this.#alone || this.#stopping.signal.aborted) return
    const { concurrency } = this.#settings
    if (this.#refusals.length > 0 && this.#running < concurrency) this.#startRefusals()
    if (this.#suspects.length > 0 || this.#suspectsDue) {
      // Alone: when the process dies now, it is known which message did it.
      if (this.#running === 0) this.#start(this.#suspectsAlone())
      return
    }
    while (this.#running < concurrency) {
      const resumed = this.#resumed.shift()
      if (resumed !== undefined) {
        this.#start(this.#runOne(resumed))
        continue
      }
      if (this.#holdsBack()) break
      const items = this.#takeNext()
      if (items.length === 0) break
      this.#start(this.#runItems(items))
    }
    this.#tellIdle()
  }

  #start(work: Promise<void>): void {
    this.#running += 1
    void work.finally(() => {
      this.#running -= 1
      this.#schedule()
    })
  }

  /**
   * Beside a running batch, or just after one, a batch that is not full waits a little: deliveries come in the pieces in
   * which they were acknowledged, and a COMMIT for a few messages costs as much as one for many.
   */
  #holdsBack(): boolean {
    const { batch, prefetch, concurrency } = this.#settings
    if (batch === undefined || this.#lingered || this.#queue.size === 0) return false
    if (this.#running === 0 && performance.now() - (this.#lastSettledMs ?? 0) > LINGER_MS) return false
    if (this.#queue.size >= Math.min(batch.max, Math.ceil(prefetch / concurrency))) return false
    this.#linger ??= setTimeout(() => {
      this.#lingered = true
      this.#pump()
    }, LINGER_MS)
    return true
  }

  #endLinger(): void {
    clearTimeout(this.#linger)
    this.#linger = undefined
    this.#lingered = false
  }

  /** The next message or batch that may start: ours, and not in hand already. */
  #takeNext(): Item[] {
    this.#endLinger()
    for (;;) {
      const taken = this.#queue.take(this.#settings.batch === undefined ? 1 : this.#settings.batch.max)
      if (taken.length === 0) return []
      const items: Item[] = []
      let aside: Item[] | undefined
      for (const item of taken) {
        if (this.#mayStart(item)) items.push(item)
        else (aside ??= []).push(item)
      }
      if (aside !== undefined) {
        const keys = new Set(items.map((item) => item.key))
        this.#queue.done(aside.filter((item) => !keys.has(item.key)))
      }
      if (items.length > 0) return items
    }
  }

  /** Marks the item as in hand, or puts it behind the one that is. */
  #mayStart(item: Item): boolean {
    if (!this.#isOurs(item)) return false
    if (item.suspect) {
      // Its claim was lost and its delivery was not: alone, and claimed anew.
      this.#suspects.push(item)
      this.#schedule()
      return false
    }
    const { id } = item.mark
    const followers = this.#inFlight.get(id)
    if (followers === undefined) {
      this.#inFlight.set(id, NOBODY)
      return true
    }
    this.#inFlight.set(id, [...followers, item])
    this.#followers += 1
    return false
  }

  /** Whether it is to be worked on here: by its claim, or else by its delivery. What is not is let go of. */
  #isOurs(item: Item): boolean {
    if (item.claim !== undefined && item.claimLost) this.#unclaim(item)
    return item.claim !== undefined || !item.lost
  }

  async #runItems(items: readonly Item[]): Promise<void> {
    const { batch } = this.#settings
    const [only] = items
    if (only === undefined) return
    if (batch === undefined || items.length === 1) return await this.#runOne(only)
    this.#finish(items, await this.#runner.many(items, batch.work))
  }

  async #runOne(item: Item): Promise<void> {
    const disposition = await this.#runner.one(item, this.#workFor(item))
    this.#finish([item], new Map([[item, disposition]]))
  }

  #workFor(item: Item): Work<Tx> | undefined {
    return this.#settings.batch?.work ?? this.#settings.workFor(item.message.type)
  }

  #startRefusals(): void {
    const refusals = this.#refusals.splice(0, REFUSE_MAX)
    const run = async () => {
      const dispositions = await this.#runner.refuse(refusals)
      const done = refusals.filter((refusal) => dispositions.get(refusal)?.kind === 'done')
      this.#acks.add(done.map((refusal) => refusal.delivery))
      if (done.length > 0) this.#lastSettledMs = performance.now()
      for (const [refusal, disposition] of dispositions) {
        if (disposition.kind === 'done') continue
        this.#refusals.push(refusal)
        if (disposition.kind === 'trouble') this.#onTrouble(disposition.error)
        else await pause(disposition.kind === 'again' ? disposition.afterMs : 0, this.#stopping.signal)
      }
    }
    this.#start(run())
  }

  async #suspectsAlone(): Promise<void> {
    this.#alone = true
    try {
      while (this.#mayRunSuspects()) {
        await this.#recogniseSuspects()
        for (let count = 0; count < RECOGNISE_MAX && this.#mayRunSuspects(); count += 1) {
          const item = this.#suspects.shift()
          if (item !== undefined && this.#isOurs(item)) await this.#runSuspect(item)
        }
      }
      while (this.#suspectsDue && this.#mayRun()) {
        const item = await this.#due.suspect()
        if (item === undefined) this.#suspectsDue = false
        else await this.#runSuspect(item)
      }
    } finally {
      this.#alone = false
    }
  }

  #mayRunSuspects(): boolean {
    return this.#suspects.length > 0 && this.#mayRun()
  }

  #mayRun(): boolean {
    return !this.#trouble && !this.#stopping.signal.aborted
  }

  /** Most messages that come again were applied before (their acknowledgement was lost): one trip for many. */
  async #recogniseSuspects(): Promise<void> {
    const delivered = this.#suspects.slice(0, RECOGNISE_MAX).filter((item) => item.claim === undefined && !item.lost)
    if (delivered.length < 2) return
    const known = await this.#runner.recognise(delivered)
    const settled = delivered.filter((item) => known.get(item)?.kind === 'done')
    const gone = new Set(settled)
    this.#suspects.splice(0, this.#suspects.length, ...this.#suspects.filter((item) => !gone.has(item)))
    this.#finish(settled, known)
    for (const disposition of known.values()) if (disposition.kind === 'trouble') this.#onTrouble(disposition.error)
  }

  async #runSuspect(item: Item): Promise<void> {
    this.#inFlight.set(item.mark.id, this.#inFlight.get(item.mark.id) ?? NOBODY)
    const claimed =
      item.claim === undefined ? await this.#runner.claim(item, this.#owner, this.#settings.due.leaseMs) : undefined
    if (claimed !== undefined) return this.#finish([item], new Map([[item, claimed]]))
    this.#due.hold(item)
    await this.#runOne(item)
  }

  // ---- what becomes of it

  #finish(items: readonly Item[], dispositions: ReadonlyMap<Item, Disposition>): void {
    const done: Item[] = []
    const kept: Item[] = []
    let trouble: unknown
    for (const item of items) {
      const disposition = dispositions.get(item)
      switch (disposition?.kind) {
        case 'done':
          done.push(item)
          break
        case 'again':
          if (disposition.reclaim === true) this.#unclaim(item)
          this.#later(item, disposition.afterMs)
          break
        case 'trouble':
          trouble = disposition.error
          kept.push(item)
          break
        case 'stopped':
        case undefined:
          kept.push(item)
          break
      }
    }
    if (done.length > 0) this.#settled(done)
    if (kept.length > 0) this.#keep(kept)
    if (trouble !== undefined) this.#onTrouble(trouble)
  }

  #settled(items: readonly Item[]): void {
    this.#lastSettledMs = performance.now()
    this.#acks.add(items.flatMap(({ delivery, lost }) => (delivery === undefined || lost ? NO_DELIVERIES : delivery)))
    let chained = false
    for (const item of items) {
      if (item.delivery !== undefined) this.#byDelivery.delete(item.delivery)
      if (item.claim !== undefined) {
        this.#due.letGo(item)
        chained = true
      }
    }
    this.#letGo(items)
    // What stood behind it in the waiting table may be next.
    if (chained) this.#due.wake()
  }

  /** Acknowledges after the commit; what comes too late comes again and is recognised. */
  #ack(deliveries: readonly Delivery[]): void {
    const late = deliveries.length - (this.#subscription?.ack(deliveries) ?? 0)
    if (late > 0) this.#emit({ kind: 'late-ack', consumer: this.#settings.name, count: late })
  }

  /** Puts items back, in front, for when the store answers or the consumer is stopped. */
  #keep(items: readonly Item[]): void {
    const alone = items.filter((item) => item.suspect)
    const others = items.filter((item) => !item.suspect)
    this.#followUp(items)
    this.#suspects.unshift(...alone)
    this.#queue.done(alone)
    this.#queue.giveBack(others)
  }

  #letGo(items: readonly Item[]): void {
    this.#followUp(items)
    this.#queue.done(items)
  }

  /** Later deliveries of the same messages may go on. */
  #followUp(items: readonly Item[]): void {
    for (const { mark } of items) {
      const followers = this.#inFlight.get(mark.id)
      this.#inFlight.delete(mark.id)
      if (followers === undefined || followers.length === 0) continue
      this.#followers -= followers.length
      this.#arrive(followers)
    }
  }

  /** Its claim is gone; its delivery may be there. */
  #unclaim(item: Item): void {
    this.#due.letGo(item)
    item.claim = undefined
    item.claimLost = false
    item.suspect = true
    item.lost = item.delivery === undefined || !this.#byDelivery.has(item.delivery)
  }

  #later(item: Item, afterMs: number): void {
    const timer = setTimeout(() => {
      this.#pauses.delete(item)
      if (item.lost && item.claim === undefined) this.#letGo([item])
      else if (item.suspect) this.#suspects.push(item)
      else this.#resumed.push(item)
      this.#schedule()
    }, afterMs)
    this.#pauses.set(item, timer)
  }

  // ---- when the store cannot be asked

  #onTrouble(error: unknown): void {
    if (this.#trouble || this.#stopping.signal.aborted) return
    this.#trouble = true
    const busy = error instanceof OnceError && error.code === 'TOO_BUSY'
    if (busy) {
      void pause(BUSY_PAUSE_MS, this.#stopping.signal).then(() => this.#goOn())
      return
    }
    this.#become('paused', `the store cannot be asked (${kindOfError(error)})`)
    void this.#untilTheStoreAnswers()
  }

  /** Nothing is taken, nothing is acknowledged, and nothing is counted meanwhile. (B67) */
  async #untilTheStoreAnswers(): Promise<void> {
    const { signal } = this.#stopping
    await this.#subscription?.pause().catch(() => {})
    for (let round = 1; !signal.aborted; round += 1) {
      await pause(backoffMs(round, TROUBLE), signal)
      if (signal.aborted) return
      try {
        await this.#probe()
        break
      } catch (error) {
        this.#become('paused', `the store cannot be asked (${kindOfError(error)})`)
      }
    }
    if (signal.aborted) return
    await this.#subscription?.resume().catch(() => {})
    this.#goOn()
  }

  #goOn(): void {
    this.#trouble = false
    if (this.#subscription !== undefined) this.#onState(this.#subscription.state)
    this.#schedule()
    this.#due.wake()
  }

  async #probe(): Promise<void> {
    await this.#host.store.lookup([this.#settings.probe])
  }

  // ---- the end

  /** Takes back everything that was not started. */
  #handBack(): Item[] {
    for (const timer of this.#pauses.values()) clearTimeout(timer)
    const items = [
      ...this.#queue.clear(),
      ...this.#suspects.splice(0),
      ...this.#resumed.splice(0),
      ...this.#pauses.keys(),
      ...[...this.#inFlight.values()].flat(),
    ]
    this.#pauses.clear()
    for (const id of this.#inFlight.keys()) this.#inFlight.set(id, NOBODY)
    this.#refusals = []
    this.#followers = 0
    return items
  }

  async #runningEnds(): Promise<void> {
    while (this.#running > 0) await new Promise<void>((resolve) => this.#idle.add(resolve))
  }

  #queued(): number {
    return (
      this.#queue.size +
      this.#suspects.length +
      this.#resumed.length +
      this.#refusals.length +
      this.#pauses.size +
      this.#followers
    )
  }

  #isIdle(): boolean {
    return this.#running === 0 && this.#queued() === 0 && !this.#suspectsDue
  }

  async #becomesIdle(signal?: AbortSignal): Promise<void> {
    while (!this.#isIdle() && this.#state !== 'stopped') {
      signal?.throwIfAborted()
      await new Promise<void>((resolve) => {
        const look = () => {
          signal?.removeEventListener('abort', look)
          resolve()
        }
        this.#idle.add(look)
        signal?.addEventListener('abort', look)
      })
    }
  }

  #tellIdle(): void {
    if (this.#running > 0 && this.#state !== 'stopped') return
    this.#acks.flush()
    for (const resolve of this.#idle) resolve()
    this.#idle.clear()
  }

  #become(state: ConsumerHealth['state'], reason?: string): void {
    if (this.#state === state && this.#reason === reason) return
    this.#state = state
    this.#reason = reason
    this.#emit(this.#stateEvent())
  }

  #stateEvent(): Extract<ConsumerEvent, { kind: 'state' }> {
    return { kind: 'state', consumer: this.#settings.name, state: this.#state, reason: this.#reason }
  }

  #emit(event: ConsumerEvent): void {
    tell(this.#settings.onEvent, event)
  }
}
