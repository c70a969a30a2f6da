/**
 * Attempt: one ownership of a leased operation, from a claimed lease to an outcome or to giving it back.
 *
 * Every end is reported to the store: completed, failed, unknown, handed back. What is not reported is a death, and that
 * is what `claims` counts (I15). Nothing that a handler returns counts when its lease was lost or one of its effects is
 * open.
 *
 * @module
 */

import { EffectRefused, Suspended } from '../effect/failure.ts'
import { Ending, endingOf } from '../operation/ending.ts'
import type { Engine } from '../operation/engine.ts'
import { newRecord } from '../operation/operation.ts'
import { isOnceError, OnceError } from '../shared/errors.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import type { JobRecord, Lease, Release } from '../store/job.ts'
import { type Attempt, isFinished, type NewRecord, type OperationRecord } from '../store/operation.ts'
import { StepHistory } from './history.ts'
import type { HeldLease, LeaseKeeper } from './lease.ts'
import { type Op, OpRun } from './op.ts'
import type { LeaseSettings } from './settings.ts'

/** A claimed operation. */
export interface Claimed {
  readonly attempt: Attempt
  readonly lease: Lease
  /** Monotonic instant from before the statement that took the lease. */
  readonly startedMs: number
  /** What was there; undefined = this claim is the first. */
  readonly job: JobRecord | undefined
  readonly key: string
}

/** How an attempt ended. `released`: given back; `error` is what its caller is told. */
export type Attempted =
  | { readonly kind: 'completed'; readonly record: OperationRecord }
  | { readonly kind: 'released'; readonly state: JobRecord['state']; readonly reason: string; readonly error: unknown }
  /** Replaced by another owner, or its lease was over: nothing of the late work is stored. */
  | { readonly kind: 'lost'; readonly error: OnceError }

/** Backoff between failed attempts of a job. */
const FAILED = { minMs: 1_000, maxMs: 300_000 }
/** How often a write whose answer was lost is repeated at the end of an attempt. */
const WRITES_MAX = 5
const WRITE_PAUSE = { minMs: 20, maxMs: 1_000 }

/** Thrown through handlers when the process gives its leases back. */
export class Stopping extends Error {
  constructor() {
    super('the process gives its leases back')
    this.name = 'Stopping'
  }
}

export async function runClaimed<Tx>(
  engine: Engine<Tx>,
  keeper: LeaseKeeper,
  claimed: Claimed,
  handler: (op: Op<Tx>) => unknown,
  settings: LeaseSettings,
): Promise<Attempted> {
  const held = keeper.hold(claimed.lease, settings.leaseMs, claimed.startedMs)
  try {
    return await new JobAttempt(engine, held, claimed, settings).run(handler)
  } finally {
    keeper.drop(held)
  }
}

class JobAttempt<Tx> {
  readonly #engine: Engine<Tx>
  readonly #held: HeldLease
  readonly #claimed: Claimed
  readonly #settings: LeaseSettings

  constructor(engine: Engine<Tx>, held: HeldLease, claimed: Claimed, settings: LeaseSettings) {
    this.#engine = engine
    this.#held = held
    this.#claimed = claimed
    this.#settings = settings
  }

  async run(handler: (op: Op<Tx>) => unknown): Promise<Attempted> {
    try {
      const ending = await this.#handle(handler)
      return ending instanceof Ending ? await this.#complete(ending) : await this.#giveBack(ending.cause)
    } catch (error) {
      // Not the handler's: the store could not be asked, or the outcome cannot be stored.
      return await this.#giveBack(error)
    }
  }

  /** Runs the handler to its end, to the end of its time, or to the loss of its lease. */
  async #handle(handler: (op: Op<Tx>) => unknown): Promise<Ending | { readonly cause: unknown }> {
    const { job, lease, key } = this.#claimed
    const { version, unordered, timeoutMs } = this.#settings
    const steps = job === undefined ? [] : await this.#engine.store.jobs.steps(lease.id)
    const history = new StepHistory(steps, !unordered)
    const run = new OpRun(this.#engine, this.#held, history, { key, version: job?.version ?? version })
    try {
      const value: unknown = await this.#inTime(() => handler(run.op), timeoutMs)
      if (run.suspended !== undefined) return { cause: run.suspended }
      const ending = endingOf(value)
      history.end()
      return ending
    } catch (error) {
      if (run.suspended !== undefined) return { cause: run.suspended }
      if (error instanceof EffectRefused) {
        return new Ending('rejected', { effect: error.effect, ...error.refusal })
      }
      return { cause: error }
    } finally {
      run.end()
    }
  }

  /** A handler that does not listen to its signal must not keep anybody waiting for more than it was given. */
  #inTime(handle: () => unknown, timeoutMs: number): Promise<unknown> {
    const held = this.#held
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        held.stop(new OnceError('TOO_BUSY', `the handler ran longer than ${timeoutMs} ms (timeoutMs)`))
      }, timeoutMs)
      const end = () => {
        clearTimeout(timer)
        held.ignore(fail)
      }
      const fail = (reason: Error) => {
        end()
        reject(reason)
      }
      held.listen(fail)
      try {
        Promise.resolve(handle()).then((value) => {
          end()
          resolve(value)
        }, fail)
      } catch (error) {
        fail(error as Error)
      }
    })
  }

  async #complete(ending: Ending): Promise<Attempted> {
    const { secrets, outcomeBytesMax, store } = this.#engine
    const { attempt, lease, job } = this.#claimed
    const options = { secrets, retentionMs: this.#settings.retentionMs, bytesMax: outcomeBytesMax }
    const made = newRecord({ ...attempt, token: lease.token }, ending.state, ending.value, options)
    // The fingerprint was stored by the first claim, and stays.
    const plain = job === undefined ? made : { ...made, fingerprint: job.fingerprint }
    const record: NewRecord =
      ending.response === undefined
        ? plain
        : { ...plain, response: ending.response.bytes, responseRetentionMs: ending.response.retentionMs }
    let unresolved = false
    for (let tries = 1; tries <= WRITES_MAX; tries++) {
      this.#held.check()
      const answer = await store.jobs.complete(lease, record).catch(unavailable)
      if (answer === 'stored') return { kind: 'completed', record }
      if (answer === 'fenced') return (await this.#completedEarlier(unresolved)) ?? this.#lost()
      unresolved ||= answer === 'unresolved'
      await pause(backoffMs(tries, WRITE_PAUSE))
    }
    throw new OnceError('COMMIT_UNRESOLVED', 'the outcome was sent to the store, whose answer did not come')
  }

  /** Refused after a lost answer: perhaps because the lost one had done it. */
  async #completedEarlier(unresolved: boolean): Promise<Attempted | undefined> {
    if (!unresolved) return undefined
    const { id, token } = this.#claimed.lease
    const record = await this.#engine.store.operations.lookup(id)
    const ours = record !== undefined && isFinished(record) && record.token === token
    return ours ? { kind: 'completed', record } : undefined
  }

  #lost(): Attempted {
    this.#held.lose('another owner has the operation, or its lease was over')
    return { kind: 'lost', error: this.#held.lost as OnceError }
  }

  async #giveBack(cause: unknown): Promise<Attempted> {
    if (this.#held.lost !== undefined) return { kind: 'lost', error: this.#held.lost }
    const release = this.#releaseFor(cause)
    try {
      for (let tries = 1; tries <= WRITES_MAX; tries++) {
        const answer = await this.#engine.store.jobs.release(this.#claimed.lease, release)
        if (answer === 'stored') break
        // Perhaps the lost answer had done it. Either way the lease is not ours any more.
        if (answer === 'fenced') return tries > 1 ? this.#released(release, cause) : this.#lost()
        await pause(backoffMs(tries, WRITE_PAUSE))
      }
    } catch {
      // The lease runs out by itself.
    }
    return this.#released(release, cause)
  }

  #released({ state, reason }: Release, cause: unknown): Attempted {
    const lease = cause instanceof Suspended || cause instanceof Stopping
    return { kind: 'released', state, reason, error: lease ? this.#told(cause, state) : cause }
  }

  /** What a caller is told about an operation that was given back. */
  #told(cause: Error, state: JobRecord['state']): unknown {
    if (state === 'unknown') return new OnceError('OUTCOME_UNKNOWN', cause.message, { cause })
    if (cause instanceof Stopping) return new OnceError('LEASE_LOST', cause.message, { cause })
    return cause.cause ?? new OnceError('TOO_BUSY', cause.message, { cause })
  }

  #releaseFor(cause: unknown): Release {
    const { job } = this.#claimed
    if (cause instanceof Stopping) return { state: 'processing', dueInMs: 0, failed: false, reason: 'stopping' }
    if (cause instanceof Suspended && cause.state === 'unknown') {
      return { state: 'unknown', dueInMs: cause.dueInMs, failed: false, reason: shortened(cause.reason) }
    }
    const failures = (job?.failures ?? 0) + 1
    const reason = shortened(cause instanceof Suspended ? cause.reason : reasonOf(cause))
    if (failures >= this.#settings.failuresMax) {
      return { state: 'parked', dueInMs: null, failed: true, reason }
    }
    const wait = backoffMs(failures, FAILED)
    const dueInMs = cause instanceof Suspended ? Math.max(cause.dueInMs ?? 0, wait) : wait
    return { state: 'processing', dueInMs, failed: true, reason }
  }
}

function unavailable(error: unknown): 'unavailable' {
  if (isOnceError(error) && error.retryable) return 'unavailable'
  throw error
}

/** A code or a name: messages may hold what must not be stored (T7). */
function reasonOf(error: unknown): string {
  if (isOnceError(error)) return error.code
  if (!(error instanceof Error)) return typeof error
  const code: unknown = Reflect.get(error, 'code')
  return typeof code === 'string' ? `${error.name} ${code}` : error.name
}

/** Names and codes come from errors and providers: what a store refuses must not keep a lease from being given back. */
function shortened(reason: string): string {
  return reason.replaceAll('\0', '').slice(0, 500).toWellFormed()
}
