/**
 * Relay: publishes what was committed, lane by lane, each lane by one fenced owner at a time.
 *
 * Reading order: this file (which lanes are ours), ./lane.ts (one ownership), ./window.ts (its decisions), the store.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { ConnectionState, Publisher } from '../broker/contract.ts'
import { randomUUID } from '../shared/crypto.ts'
import { isOnceError } from '../shared/errors.ts'
import { refuseBound, waitOptions } from '../shared/options.ts'
import { pause } from '../shared/waiting.ts'
import { Wake } from '../shared/wake.ts'
import type { BellListener, OutboxStore, PendingView } from '../store/outbox.ts'
import { Lane } from './lane.ts'
import { type RelayOptions, type RelaySettings, relaySettings } from './relay-options.ts'

/** What a relay says of itself. */
export interface RelayHealth {
  readonly state: 'stopped' | 'running' | 'disconnected' | 'storeUnavailable' | 'stopping'
  /** Why nothing moves, in one line. */
  readonly reason: string | undefined
  /** Lanes of this relay. */
  readonly lanes: readonly number[]
  /** What is pending in the store, parked rows included; undefined when it cannot be asked. */
  readonly pending: PendingView | undefined
}

export interface Relay {
  /** Begins to publish. Resolves when the relay runs; the broker may still be unreachable. */
  start(): Promise<void>
  /**
   * Resolves when nothing is pending that could be sent now: parked messages are not waited for. Starts nothing: a relay
   * must be running, here or elsewhere. Rejects with the signal's reason.
   *
   * @throws {TypeError} Neither a signal nor `{ signal }`.
   */
  drain(bound?: AbortSignal | { readonly signal?: AbortSignal | undefined }): Promise<void>
  /** Reads no more, waits for confirms (`stopTimeoutMs`), settles them and hands the lanes back. */
  stop(): Promise<void>
  health(): Promise<RelayHealth>
}

/** How often a drain looks whether it is over, milliseconds. */
const DRAIN_POLL_MS = 20
/** A takeover is tried this long after the lease of the other owner ends, milliseconds. */
const TAKEOVER_LAG_MS = 20

/**
 * Makes a relay over a store; `once.relay(options)` is the usual way.
 *
 * @throws {TypeError} An unknown option or one out of its bounds.
 */
export function createRelay(options: RelayOptions & { readonly store: OutboxStore }): Relay {
  return new RunningRelay(relaySettings(options))
}

class RunningRelay implements Relay {
  readonly #settings: RelaySettings
  readonly #owner: string = randomUUID()
  readonly #lanes: Map<number, { readonly lane: Lane; readonly ended: Promise<void> }> = new Map()
  readonly #manager = new Wake()
  #publisher: Publisher | undefined
  #bell: BellListener | undefined
  #managing: Promise<void> | undefined
  #stopping: Promise<void> | undefined
  #stop = new AbortController()
  #storeReason: string | undefined
  /** The last state that an event told. */
  #told: ConnectionState['kind'] | undefined
  #connection: ConnectionState = { kind: 'closed', reason: 'not started' }

  constructor(settings: RelaySettings) {
    this.#settings = settings
  }

  async start(...given: readonly never[]): Promise<void> {
    refuseBound('relay.start', given, 'stop() ends what it starts')
    if (this.#stopping !== undefined) await this.#stopping
    if (this.#managing !== undefined) return
    this.#stop = new AbortController()
    this.#stopping = undefined
    const { broker, publishTimeoutMs, store, emit } = this.#settings
    this.#publisher = broker.openPublisher({ publishTimeoutMs, onState: (state) => this.#onState(state) })
    this.#connection = this.#publisher.state
    this.#told = undefined
    this.#bell = store.bell.listen(
      () => this.#ringLanes(),
      (state) =>
        emit({
          kind: 'bell',
          hearing: state.kind === 'hearing',
          ...(state.kind === 'deaf' ? { reason: state.reason } : {}),
        }),
    )
    this.#managing = this.#manage(this.#publisher)
  }

  async drain(bound?: AbortSignal | { readonly signal?: AbortSignal | undefined }): Promise<void> {
    const { signal } = waitOptions('relay.drain', bound, ['signal'])
    for (;;) {
      signal?.throwIfAborted()
      if ([...this.#lanes.values()].every(({ lane }) => lane.isIdle)) {
        const { oldestMs } = await this.#settings.store.pending()
        if (oldestMs === null) return
        this.#ringLanes()
      }
      await pause(DRAIN_POLL_MS, signal)
    }
  }

  async stop(...given: readonly never[]): Promise<void> {
    refuseBound('relay.stop', given, 'stopTimeoutMs of once.relay bounds it')
    this.#stopping ??= this.#end()
    await this.#stopping
  }

  async health(): Promise<RelayHealth> {
    const pending = await this.#settings.store.pending().catch(() => undefined)
    return { ...this.#state(), lanes: [...this.#lanes.keys()].sort((a, b) => a - b), pending }
  }

  #state(): Pick<RelayHealth, 'state' | 'reason'> {
    if (this.#stopping !== undefined && this.#managing !== undefined) return { state: 'stopping', reason: undefined }
    if (this.#managing === undefined) return { state: 'stopped', reason: undefined }
    if (this.#storeReason !== undefined) return { state: 'storeUnavailable', reason: this.#storeReason }
    if (this.#connection.kind !== 'open') return { state: 'disconnected', reason: this.#connection.reason }
    return { state: 'running', reason: undefined }
  }

  async #end(): Promise<void> {
    this.#stop.abort()
    this.#manager.ring()
    for (const { lane } of this.#lanes.values()) lane.stop()
    await this.#managing
    await Promise.all([...this.#lanes.values()].map(({ ended }) => ended))
    await this.#bell?.close()
    await this.#publisher?.close()
    this.#publisher = undefined
    this.#bell = undefined
    this.#managing = undefined
  }

  /** Takes lanes that are free, asks for one when others have more than their share, until stopped. */
  async #manage(publisher: Publisher): Promise<void> {
    const { signal } = this.#stop
    while (!signal.aborted) {
      let sleepMs = this.#settings.pollMs
      try {
        sleepMs = await this.#takeLanes(publisher)
        this.#storeReason = undefined
      } catch (error) {
        this.#storeReason = isOnceError(error) ? error.code : 'unknown'
        this.#settings.emit({ kind: 'storeUnavailable', reason: this.#storeReason })
      }
      if (!signal.aborted) await this.#manager.sleep(sleepMs)
    }
  }

  /** @returns when to look again, milliseconds. */
  async #takeLanes(publisher: Publisher): Promise<number> {
    const { store, leaseMs, pollMs } = this.#settings
    let nextMs = pollMs * (0.75 + Math.random() / 2)
    // A relay that cannot publish owns nothing: somebody else may reach the broker (B63). Its opening rings us.
    if (publisher.state.kind !== 'open') return nextMs
    const lanes = await store.lanes()
    for (const { lane, leaseLeftMs } of lanes) {
      if (this.#stop.signal.aborted) return 0
      if (this.#lanes.has(lane)) continue
      if (leaseLeftMs > 0) {
        nextMs = Math.min(nextMs, leaseLeftMs + TAKEOVER_LAG_MS)
        continue
      }
      const at = performance.now()
      const result = await store.acquire(lane, this.#owner, leaseMs)
      if (result.kind === 'acquired')
        this.#own(new Lane(this.#settings, publisher, result.lease, result.deaths, at), result.deaths)
      else if (result.kind === 'held') nextMs = Math.min(nextMs, result.retryAfterMs + TAKEOVER_LAG_MS)
      else this.#settings.emit({ kind: 'laneForeign', lane })
    }
    const others = lanes.filter(({ owner }) => owner !== null && owner !== this.#owner)
    if (others.length >= this.#lanes.size + 2) await store.askForLane(this.#owner, pollMs * 5)
    return Math.max(1, nextMs)
  }

  #own(lane: Lane, deaths: number): void {
    const { emit } = this.#settings
    const { lane: number, fence } = lane.lease
    emit({ kind: 'laneAcquired', lane: number, fence, deaths })
    const ended = lane.run().then((end) => {
      this.#lanes.delete(number)
      emit({ kind: end === 'lost' ? 'laneLost' : 'laneReleased', lane: number, fence })
      this.#manager.ring()
    })
    this.#lanes.set(number, { lane, ended })
    if (this.#stop.signal.aborted) lane.stop()
  }

  #ringLanes(): void {
    for (const { lane } of this.#lanes.values()) lane.ring()
  }

  #onState(state: ConnectionState): void {
    const before = this.#told
    this.#connection = state
    this.#told = state.kind
    // The first failure counts as news too: a relay that never got through must say so (B63).
    if (state.kind === before) return
    this.#settings.emit(state.kind === 'open' ? { kind: 'connected' } : { kind: 'disconnected', reason: state.reason })
    this.#ringLanes()
    this.#manager.ring()
  }
}
