/**
 * Worker: takes due operations of the kinds it knows, those of dead owners too, and resumes them.
 *
 * It polls with jitter, sleeps no longer than to the next due time, and is woken by jobs that this process starts. A
 * lease that ran out is due at that moment, so a killed owner's work starts again within lease + poll. (B34, B36)
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { Engine } from '../operation/engine.ts'
import { tell } from '../shared/listener.ts'
import { functionOption, integerOption, refuseBound, refuseUnknownOptions, waitOptions } from '../shared/options.ts'
import { backoffMs, bounded, pause } from '../shared/waiting.ts'
import { Wake } from '../shared/wake.ts'
import type { ClaimableKind, DueJob } from '../store/job.ts'
import type { Attempt } from '../store/operation.ts'
import { type Attempted, runClaimed, Stopping } from './attempt.ts'
import type { WorkerEvent } from './events.ts'
import { type DefinedKind, definedKind, jobOf, type Kind } from './kind.ts'
import { LeaseKeeper } from './lease.ts'

/** A kind of whatever payload and result. */
export type WorkableKind<Tx> = Pick<Kind<Tx, unknown, unknown>, 'name' | 'version' | 'startIn'>

export interface WorkerOptions<Tx> {
  /** What `once.define` made. */
  readonly kinds: readonly WorkableKind<Tx>[]
  /** Operations at once. Default 10; 1 to 1_000. */
  readonly concurrency?: number | undefined
  /** Longest sleep when nothing is due, milliseconds; half to all of it, at random. Default 1_000; 10 to 60_000. */
  readonly pollMs?: number | undefined
  /** How long stop() waits for running handlers before it aborts them, milliseconds. Default 10_000; 0 to 600_000. */
  readonly graceMs?: number | undefined
  readonly onEvent?: ((event: WorkerEvent) => void) | undefined
}

export interface Worker {
  start(): Promise<void>
  /**
   * Waits until nothing of its kinds is due or running. An AbortSignal alone stands for `{ signal }`.
   *
   * @throws when `timeoutMs` (default 60_000; 0 to 86_400_000) is over; the signal's reason when that aborts first.
   * @throws {TypeError} An unknown option or one out of its bounds.
   */
  drain(options?: DrainOptions | AbortSignal): Promise<void>
  /** Claims nothing more, waits `graceMs`, aborts what still runs and gives its leases back. */
  stop(): Promise<void>
  health(): WorkerHealth
}

/** What bounds `drain`. */
export interface DrainOptions {
  /** Milliseconds. */
  readonly timeoutMs?: number | undefined
  readonly signal?: AbortSignal | undefined
}

export interface WorkerHealth {
  readonly state: 'idle' | 'running' | 'stopping' | 'stopped'
  readonly running: number
  /** Milliseconds since the store has last answered; null = not yet. */
  readonly lastAnswerAgeMs: number | null
}

const UNAVAILABLE = { minMs: 200, maxMs: 10_000 }
/** How often a drain looks whether it is over, milliseconds. */
const DRAIN_POLL_MS = 20
/** How long an aborted handler is waited for before its lease is given back all the same. */
const ABORTED_MS = 1_000

export function createWorker<Tx>(engine: Engine<Tx>, wakes: Set<Wake>, options: WorkerOptions<Tx>): Worker {
  refuseUnknownOptions('once.worker', options, ['kinds', 'concurrency', 'pollMs', 'graceMs', 'onEvent'])
  if (!Array.isArray(options.kinds) || options.kinds.length === 0) {
    throw new TypeError('once.worker needs kinds, a list of what once.define made')
  }
  const kinds = new Map<string, DefinedKind<Tx>>()
  for (const given of options.kinds) {
    const kind = definedKind<Tx>(given)
    if (kinds.has(kind.name)) throw new TypeError(`once.worker: two kinds have the name ${kind.name}`)
    kinds.set(kind.name, kind)
  }
  return new JobWorker(engine, wakes, kinds, {
    concurrency: integerOption('concurrency', options.concurrency, { min: 1, max: 1_000, default: 10 }),
    pollMs: integerOption('pollMs', options.pollMs, { min: 10, max: 60_000, default: 1_000 }),
    graceMs: integerOption('graceMs', options.graceMs, { min: 0, max: 600_000, default: 10_000 }),
    onEvent: functionOption('onEvent', options.onEvent),
  })
}

interface Settings {
  readonly concurrency: number
  readonly pollMs: number
  readonly graceMs: number
  readonly onEvent: ((event: WorkerEvent) => void) | undefined
}

class JobWorker<Tx> implements Worker {
  readonly #engine: Engine<Tx>
  readonly #wakes: Set<Wake>
  readonly #kinds: ReadonlyMap<string, DefinedKind<Tx>>
  readonly #claimable: readonly ClaimableKind[]
  readonly #settings: Settings
  readonly #keeper: LeaseKeeper
  readonly #wake: Wake = new Wake()
  readonly #running: Set<Promise<void>> = new Set()
  #state: WorkerHealth['state'] = 'idle'
  #loop: Promise<void> | undefined
  #answeredMs: number | null = null
  /** Number of the last look for due jobs, and of the last one that found nothing. */
  #look = 0
  #quietLook = 0

  constructor(engine: Engine<Tx>, wakes: Set<Wake>, kinds: ReadonlyMap<string, DefinedKind<Tx>>, settings: Settings) {
    this.#engine = engine
    this.#wakes = wakes
    this.#kinds = kinds
    this.#settings = settings
    this.#keeper = new LeaseKeeper(engine.store.jobs)
    this.#claimable = [...kinds.values()].flatMap(({ name, handlers, settings: { leaseMs, claimsMax } }) =>
      [...handlers.keys()].map((version) => ({ kind: name, version, leaseMs, claimsMax })),
    )
  }

  async start(...given: readonly never[]): Promise<void> {
    refuseBound('worker.start', given, 'stop() ends what it starts')
    if (this.#state !== 'idle') throw new TypeError(`the worker is ${this.#state}; make a new one`)
    await this.#engine.store.check()
    this.#state = 'running'
    this.#wakes.add(this.#wake)
    this.#loop = this.#work()
  }

  async drain(options?: DrainOptions | AbortSignal): Promise<void> {
    const { signal, timeoutMs: given } = waitOptions('worker.drain', options, ['timeoutMs', 'signal'])
    const timeoutMs = integerOption('timeoutMs', given, { min: 0, max: 86_400_000, default: 60_000 })
    const untilMs = performance.now() + timeoutMs
    // A look that began before this call may have been too early for what its caller has just started.
    const before = this.#look
    while (!(this.#quietLook > before && this.#running.size === 0)) {
      signal?.throwIfAborted()
      if (performance.now() > untilMs) throw new Error(`the worker was not idle within ${timeoutMs} ms`)
      this.#wake.ring()
      await Promise.race([...this.#running, pause(DRAIN_POLL_MS)])
    }
  }

  async stop(...given: readonly never[]): Promise<void> {
    refuseBound('worker.stop', given, 'graceMs of once.worker bounds it')
    if (this.#state === 'idle') this.#state = 'stopped'
    if (this.#state === 'stopped') return
    this.#state = 'stopping'
    this.#wake.ring()
    await this.#loop
    await bounded(Promise.all(this.#running), this.#settings.graceMs)
    this.#keeper.stop(new Stopping())
    await bounded(Promise.all(this.#running), ABORTED_MS + this.#settings.graceMs)
    this.#wakes.delete(this.#wake)
    this.#state = 'stopped'
  }

  health(): WorkerHealth {
    const lastAnswerAgeMs = this.#answeredMs === null ? null : performance.now() - this.#answeredMs
    return { state: this.#state, running: this.#running.size, lastAnswerAgeMs }
  }

  async #work(): Promise<void> {
    let failures = 0
    while (this.#state === 'running') {
      const free = this.#settings.concurrency - this.#running.size
      let sleepMs = this.#settings.pollMs * (0.5 + Math.random() / 2)
      if (free > 0) {
        try {
          const { taken, nextDueInMs } = await this.#take(free)
          failures = 0
          // A full hand: there may be more.
          if (taken === free) continue
          if (nextDueInMs !== null) sleepMs = Math.min(sleepMs, Math.max(1, nextDueInMs))
        } catch (error) {
          failures += 1
          sleepMs = backoffMs(failures, UNAVAILABLE)
          this.#tell({ type: 'unavailable', error, retryInMs: sleepMs })
        }
      }
      await this.#wake.sleep(sleepMs)
    }
  }

  async #take(free: number): Promise<{ readonly taken: number; readonly nextDueInMs: number | null }> {
    this.#look += 1
    const look = this.#look
    const startedMs = performance.now()
    const { claimed, parked, nextDueInMs } = await this.#engine.store.jobs.claimDue(this.#claimable, free)
    this.#answeredMs = performance.now()
    for (const { id, kind, claims } of parked) this.#tell({ type: 'parked', id, kind, claims })
    for (const job of claimed) {
      const run = this.#run(job, startedMs).finally(() => {
        this.#running.delete(run)
        this.#wake.ring()
      })
      this.#running.add(run)
    }
    if (claimed.length === 0 && parked.length === 0) this.#quietLook = look
    return { taken: claimed.length, nextDueInMs }
  }

  async #run(job: DueJob, startedMs: number): Promise<void> {
    const name = job.kind ?? ''
    const facts = { id: job.id, kind: name, fence: job.lease.fence }
    let ended: Attempted
    try {
      ended = await this.#attempt(job, startedMs)
    } catch (error) {
      // Nothing could be reported: the lease runs out by itself.
      ended = { kind: 'released', state: 'processing', reason: 'unreported', error }
    }
    if (ended.kind === 'completed') this.#tell({ type: 'completed', ...facts })
    else if (ended.kind === 'lost') this.#tell({ type: 'leaseLost', ...facts })
    else this.#tell({ type: 'released', ...facts, state: ended.state, reason: ended.reason, error: ended.error })
  }

  async #attempt(job: DueJob, startedMs: number): Promise<Attempted> {
    const kind = this.#kinds.get(job.kind ?? '')
    const handler = kind?.handlers.get(job.version)
    if (kind === undefined || handler === undefined)
      throw new Error('the store gave a job of a kind that was not asked for')
    // What cannot be read fails as a handler would: counted, told, and parked in the end.
    const stored = readable(job.payload)
    const run =
      stored instanceof Error
        ? () => Promise.reject(stored)
        : (op: Parameters<typeof handler>[0]) => handler(op, stored.payload)
    return await runClaimed(
      this.#engine,
      this.#keeper,
      { attempt: attemptOf(job), lease: job.lease, startedMs, job, key: stored instanceof Error ? '' : stored.key },
      run,
      { ...kind.settings, leaseMs: job.leaseMs },
    )
  }

  #tell(event: WorkerEvent): void {
    tell(this.#settings.onEvent, event)
  }
}

function readable(payload: string | null): ReturnType<typeof jobOf> | Error {
  try {
    return jobOf(payload)
  } catch (error) {
    return error as Error
  }
}

/** The outcome goes under the fingerprint that is stored with the job. */
function attemptOf({ id, scope, lease, fingerprint }: DueJob): Attempt {
  return {
    id,
    scope,
    token: lease.token,
    fingerprint: { value: fingerprint.value, mode: fingerprint.mode },
  }
}
