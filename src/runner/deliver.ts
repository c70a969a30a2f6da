/**
 * Deliver: what becomes of one delivery of a job, whatever runner made it.
 *
 * A runner delivers at least once: after a death, after a stall, after its expiry beside the attempt that still runs, and
 * when the same intent was enqueued twice. The key is the intent's, so the first delivery that ends well is the only one
 * that works; every other gets its outcome, and for the runner that is success. (B21, R37)
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { Stopping } from '../job/attempt.ts'
import type { Op } from '../job/op.ts'
import type { Once } from '../once.ts'
import type { WorkContext } from '../operation/attempt.ts'
import type { Operation, Outcome } from '../operation/operation.ts'
import { OnceError } from '../shared/errors.ts'
import type { Guarded } from './options.ts'
import { comesAgain, isPoison, type Poison } from './poison.ts'

export type AtomicHandler<Tx, Job, Result> = (context: WorkContext<Tx>, job: Job) => Result
export type LeasedHandler<Tx, Job, Result> = (op: Op<Tx>, job: Job) => Result
export type AnyHandler<Tx, Job> = (context: WorkContext<Tx> & Op<Tx>, job: Job) => unknown

/** What the runner allows this delivery. */
export interface Allowance {
  /** Milliseconds until the runner gives the job to somebody else, whatever happens here; undefined = never. */
  readonly expiresInMs?: number | undefined
  /** How long a delivery waits for another owner before it gives up, milliseconds. 0 = not at all. */
  readonly waitMs: number
  /** The runner's own stop. */
  readonly signal?: AbortSignal | undefined
}

/**
 * - `done`: this delivery or an earlier one has done it.
 * - `rejected`: final, and the runner is to show it as failed (`whenRejected: 'fail'`).
 * - `again`: not now; another owner works on it, or the store was away.
 * - `poison`: no delivery can change it; `onPoison` was told.
 * - `stopped`: the runner has stopped it; its lease was given back.
 *
 * What the handler threw is thrown: a failed attempt, the runner's to count and to repeat.
 */
export type Delivered =
  | { readonly kind: 'done'; readonly result: unknown; readonly replayed: boolean }
  | { readonly kind: 'rejected' }
  | { readonly kind: 'again'; readonly retryAfterMs: number; readonly error: OnceError }
  | { readonly kind: 'poison'; readonly error: Poison }
  | { readonly kind: 'stopped'; readonly error: Error }

/** Of its time a job leaves this much to report its end: a tenth, at most a second. */
const MARGIN_MAX_MS = 1_000
const RETRY = { minMs: 250, maxMs: 5_000 }
const ATOMIC_TIMEOUT = { min: 100, default: 30_000, max: 3_600_000 }
const RUN_TIMEOUT = { min: 100, default: 3_600_000, max: 86_400_000 }

export async function deliver<Tx, Job>(
  once: Once<Tx>,
  guarded: Guarded<Job>,
  handler: AnyHandler<Tx, Job>,
  job: Job,
  allowance: Allowance,
): Promise<Delivered> {
  const limits = limitsOf(guarded, allowance.expiresInMs)
  const stop = new Stop(allowance.signal, limits.deadlineMs)
  try {
    const outcome = await perform(once, guarded, handler, job, { ...limits, waitMs: allowance.waitMs }, stop)
    return delivered(outcome, guarded.whenRejected)
  } catch (error) {
    if (allowance.signal?.aborted === true) return { kind: 'stopped', error: reasonOf(allowance.signal) }
    if (isPoison(error)) {
      await guarded.onPoison?.(job, error)
      return { kind: 'poison', error }
    }
    if (!comesAgain(error)) throw error
    const retryAfterMs = Math.min(RETRY.maxMs, Math.max(RETRY.minMs, error.retryAfterMs ?? RETRY.minMs))
    return { kind: 'again', retryAfterMs, error }
  } finally {
    stop.end()
  }
}

interface Limits {
  readonly leaseMs: number
  readonly timeoutMs: number
  /** Milliseconds after which nothing of this delivery may go on. */
  readonly deadlineMs: number | undefined
}

function limitsOf(
  { mode, leaseMs, timeoutMs }: Pick<Guarded<never>, 'mode' | 'leaseMs' | 'timeoutMs'>,
  expiresInMs: number | undefined,
): Limits {
  const bounds = mode === 'run' ? RUN_TIMEOUT : ATOMIC_TIMEOUT
  if (expiresInMs === undefined) return { leaseMs, timeoutMs: timeoutMs ?? bounds.default, deadlineMs: undefined }
  const deadlineMs = Math.max(100, expiresInMs - Math.min(MARGIN_MAX_MS, expiresInMs / 10))
  // Leased work may take all the time that the runner gives; a transaction is not to be open for so long.
  const wanted = timeoutMs ?? (mode === 'run' ? bounds.max : bounds.default)
  return {
    leaseMs: Math.max(1_000, Math.min(leaseMs, Math.floor(expiresInMs))),
    timeoutMs: Math.max(bounds.min, Math.min(wanted, bounds.max, Math.floor(deadlineMs))),
    deadlineMs,
  }
}

function perform<Tx, Job>(
  once: Once<Tx>,
  guarded: Guarded<Job>,
  handler: AnyHandler<Tx, Job>,
  job: Job,
  limits: Limits & { readonly waitMs: number },
  stop: Stop,
): Promise<Outcome<unknown, unknown>> {
  const operation = operationOf(guarded, job)
  const { leaseMs, timeoutMs } = limits
  const wait =
    limits.waitMs > 0
      ? ({ whenInProgress: 'wait', waitMs: Math.ceil(limits.waitMs), signal: stop.signal } as const)
      : {}
  if (guarded.mode === 'run') {
    const work = (op: Op<Tx>) =>
      stop.race(() => handler({ ...op, signal: AbortSignal.any([op.signal, stop.signal]) } as AnyContext<Tx>, job))
    return once.run(operation, work, { ...guarded.leased, leaseMs, timeoutMs, ...wait })
  }
  const work = (context: WorkContext<Tx>) => {
    const { tx, outbox } = context
    const now = () => context.now()
    const signal = AbortSignal.any([context.signal, stop.signal])
    return stop.race(() => handler({ tx, outbox, now, signal } as AnyContext<Tx>, job))
  }
  return once.transaction(operation, work, { ...guarded.atomic, timeoutMs, ...wait })
}

type AnyContext<Tx> = WorkContext<Tx> & Op<Tx>

function operationOf<Job>(guarded: Guarded<Job>, job: Job): Operation {
  const key = guarded.key(job)
  // Told as every key that is missing: by identify(), which every operation passes.
  const payload = guarded.payload(job)
  return { scope: guarded.scope(job), key: key as string, payload: payload === undefined ? null : payload }
}

function delivered(outcome: Outcome<unknown, unknown>, whenRejected: 'complete' | 'fail'): Delivered {
  const { replayed } = outcome
  if (outcome.state === 'succeeded') return { kind: 'done', result: outcome.value, replayed }
  if (whenRejected === 'fail') return { kind: 'rejected' }
  return { kind: 'done', result: { rejected: outcome.rejection }, replayed }
}

function reasonOf(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error(`the runner has stopped the job: ${signal.reason}`)
}

/** Ends a delivery from outside: the runner's stop, or the end of the time that it gives. */
class Stop {
  readonly #controller: AbortController = new AbortController()
  readonly #runner: AbortSignal | undefined
  readonly #timer: NodeJS.Timeout | undefined
  readonly #stopped = () => this.#controller.abort(new Stopping())

  constructor(runner: AbortSignal | undefined, deadlineMs: number | undefined) {
    this.#runner = runner
    runner?.addEventListener('abort', this.#stopped, { once: true })
    if (runner?.aborted === true) this.#stopped()
    if (deadlineMs === undefined) return
    const startedMs = performance.now()
    this.#timer = setTimeout(() => {
      const ranMs = Math.round(performance.now() - startedMs)
      this.#controller.abort(new OnceError('TOO_BUSY', `the job is near its expiry after ${ranMs} ms and was stopped`))
    }, deadlineMs)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Runs `work` until it ends or is stopped: one that does not listen keeps nobody waiting. */
  race<T>(work: () => T): Promise<Awaited<T>> {
    const { signal } = this
    return new Promise((resolve, reject) => {
      const over = () => reject(signal.reason as Error)
      if (signal.aborted) return over()
      signal.addEventListener('abort', over, { once: true })
      Promise.resolve()
        .then(work)
        .then(resolve as (value: unknown) => void, reject)
        .finally(() => signal.removeEventListener('abort', over))
    })
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#runner?.removeEventListener('abort', this.#stopped)
  }
}
