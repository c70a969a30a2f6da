/**
 * Lease: who may work on an operation, until when, and how the owner notices that it may not any more.
 *
 * The store decides by its own clock. This process keeps a deadline from a monotonic clock that was started before the
 * statement was sent that took or renewed the lease, so the deadline lies before the store's. It is looked at by a timer
 * and by every act of the owner: a process that was stopped, or whose event loop was blocked, finds out before it does
 * anything else. Losing a lease is never a matter of a renewal's answer alone (B25).
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { OnceError } from '../shared/errors.ts'
import type { JobStore, Lease, RenewAnswer } from '../store/job.ts'

/** Renewed when a third of it has passed. */
const RENEW_SHARE = 3
/** How often leases are looked at, as a part of the shortest one; also the margin before its end. */
const TICK_SHARE = 12
const TICK_MIN_MS = 20
const TICK_MAX_MS = 2_500

/** A lease that this process holds. */
export class HeldLease {
  readonly lease: Lease
  readonly leaseMs: number
  /** Monotonic: from here on nothing is done under this lease. */
  deadlineMs = 0
  renewAtMs = 0
  renewing = false
  readonly #onLost: (error: OnceError) => void
  #lost: OnceError | undefined
  #stopped: Error | undefined
  readonly #listeners: ((reason: Error) => void)[] = []
  #controller: AbortController | undefined

  constructor(lease: Lease, leaseMs: number, startedMs: number, onLost: (error: OnceError) => void) {
    this.lease = lease
    this.leaseMs = leaseMs
    this.#onLost = onLost
    this.extend(startedMs)
  }

  /** Aborts when the lease is lost, or has to be given back. Made when it is asked for, which most handlers never do. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#stopped !== undefined) this.#controller.abort(this.#stopped)
    }
    return this.#controller.signal
  }

  /** Why the work has to stop; what `signal` aborts with. */
  get stopped(): Error | undefined {
    return this.#stopped
  }

  /** Tells the listener when `signal` would abort, at once when it has. */
  listen(listener: (reason: Error) => void): void {
    if (this.#stopped === undefined) this.#listeners.push(listener)
    else listener(this.#stopped)
  }

  ignore(listener: (reason: Error) => void): void {
    const index = this.#listeners.indexOf(listener)
    if (index >= 0) this.#listeners.splice(index, 1)
  }

  get lost(): OnceError | undefined {
    return this.#lost
  }

  /** The store has counted the lease from some instant after `startedMs`. */
  extend(startedMs: number): void {
    this.deadlineMs = startedMs + this.leaseMs - this.leaseMs / TICK_SHARE
    this.renewAtMs = startedMs + this.leaseMs / RENEW_SHARE
  }

  /** Refuses to go on when the lease is over, whatever any answer has said so far. @throws {OnceError} LEASE_LOST. */
  check(): void {
    const late = performance.now() - this.deadlineMs
    if (late >= 0) this.lose(`the lease of ${this.leaseMs} ms was not renewed in time`)
    if (this.#lost !== undefined) throw this.#lost
  }

  lose(why: string): void {
    if (this.#lost !== undefined) return
    this.#lost = new OnceError('LEASE_LOST', `${why}; fence ${this.lease.fence}`)
    this.stop(this.#lost)
    this.#onLost(this.#lost)
  }

  /** The work has to stop, and the lease will be given back. */
  stop(reason: Error): void {
    if (this.#stopped !== undefined) return
    this.#stopped = reason
    this.#controller?.abort(reason)
    for (const listener of this.#listeners.splice(0)) listener(reason)
  }
}

/** Renews the leases of one process. */
export class LeaseKeeper {
  readonly #store: Pick<JobStore<unknown>, 'renew'>
  readonly #held: Set<HeldLease> = new Set()
  #timer: NodeJS.Timeout | undefined
  #tickMs = TICK_MAX_MS

  constructor(store: Pick<JobStore<unknown>, 'renew'>) {
    this.#store = store
  }

  /** How many are held at the moment. */
  get size(): number {
    return this.#held.size
  }

  /**
   * Keeps a lease alive until `drop`.
   *
   * @param startedMs - `performance.now()` from before the statement that took it.
   */
  hold(lease: Lease, leaseMs: number, startedMs: number, onLost: (error: OnceError) => void = ignore): HeldLease {
    const held = new HeldLease(lease, leaseMs, startedMs, onLost)
    this.#held.add(held)
    const tickMs = Math.min(TICK_MAX_MS, Math.max(TICK_MIN_MS, leaseMs / TICK_SHARE))
    if (this.#timer === undefined || tickMs < this.#tickMs) this.#schedule(tickMs)
    return held
  }

  drop(held: HeldLease): void {
    this.#held.delete(held)
  }

  /** Tells every owner to stop. */
  stop(reason: Error): void {
    for (const held of this.#held) held.stop(reason)
  }

  #schedule(tickMs: number): void {
    clearTimeout(this.#timer)
    this.#tickMs = tickMs
    this.#timer = setTimeout(() => this.#tick(), tickMs)
    // A process that has nothing left to do but to renew has lost its work.
    this.#timer.unref()
  }

  #tick(): void {
    const now = performance.now()
    const due: HeldLease[] = []
    for (const held of this.#held) {
      if (held.lost !== undefined) continue
      if (now >= held.deadlineMs) held.lose(`the lease of ${held.leaseMs} ms was not renewed in time`)
      else if (now >= held.renewAtMs && !held.renewing) due.push(held)
    }
    if (due.length > 0) void this.#renew(due, now)
    if (this.#held.size > 0) {
      this.#schedule(this.#tickMs)
      return
    }
    // Not by whoever drops the last one: where operations follow each other, each would stop and start the timer.
    this.#timer = undefined
    this.#tickMs = TICK_MAX_MS
  }

  async #renew(due: readonly HeldLease[], startedMs: number): Promise<void> {
    for (const held of due) held.renewing = true
    let answers: readonly RenewAnswer[] = []
    try {
      answers = await this.#store.renew(due)
    } catch {
      // Unavailable: asked again with the next tick, until the deadline decides.
    }
    due.forEach((held, index) => {
      held.renewing = false
      switch (answers[index]) {
        case 'renewed':
          held.extend(startedMs)
          break
        case 'lost':
          held.lose('another owner has the operation, or its lease was over')
          break
        case 'locked':
        case undefined:
      }
    })
  }
}

const keepers = new WeakMap<object, LeaseKeeper>()

/** The keeper of the leases that callers of one store hold in this process. */
export function keeperOf<Tx>({ jobs }: { readonly jobs: JobStore<Tx> }): LeaseKeeper {
  let keeper = keepers.get(jobs)
  if (keeper === undefined) {
    keeper = new LeaseKeeper(jobs)
    keepers.set(jobs, keeper)
  }
  return keeper
}

function ignore(): void {}
