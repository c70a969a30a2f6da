/**
 * The door `effectively-once/graphile-worker`: tasks for Graphile Worker 0.16 and 0.17 whose jobs are done once.
 *
 * Graphile Worker locks a job for four hours and does not renew that: afterwards, or when somebody unlocks the jobs of a
 * dead worker, the job starts again. So a handler is stopped shortly before the four hours are over, and a lease is never
 * that long.
 *
 * @module
 */

import type { Once } from '../../once.ts'
import { type AnyHandler, type AtomicHandler, deliver, type LeasedHandler } from '../../runner/deliver.ts'
import {
  type AtomicOptions,
  guarded,
  type IntentOptions,
  type LeasedOptions,
  type OnPoison,
} from '../../runner/options.ts'
import { integerOption } from '../../shared/options.ts'

export type { AtomicHandler, LeasedHandler } from '../../runner/deliver.ts'
export type { AtomicOptions, IntentOptions, LeasedOptions, OnPoison } from '../../runner/options.ts'

/** The part of a task's helpers that is used. */
export interface TaskHelpers {
  readonly job: { readonly id: string | number; readonly attempts: number }
  readonly abortSignal?: AbortSignal
}

/** One delivery, as the functions of the options and the handler get it. */
export interface TaskJob<Payload, Helpers = TaskHelpers> {
  readonly payload: Payload
  readonly helpers: Helpers
}

/** What a task list takes. */
export type GraphileTask<Payload, Helpers> = (payload: Payload, helpers: Helpers) => Promise<void>

export interface TaskOptions<Job> extends IntentOptions<Job> {
  /**
   * Told of a job that must not be tried again; then the job is completed, which removes it. Graphile Worker has no way to
   * fail a running job for good, so this is where it is kept, or reported.
   */
  readonly onPoison: OnPoison<Job>
  /**
   * How long a delivery waits while another owner works, milliseconds, before it fails and is retried with Graphile
   * Worker's backoff; every delivery is counted there. Default: the lease and 5 seconds; 0 to 3_600_000.
   */
  readonly waitMs?: number | undefined
}

/** After which Graphile Worker takes a lock for forgotten. */
const LOCK_MS = 4 * 3_600_000
const WAIT_AFTER_LEASE_MS = 5_000

/**
 * A task that runs `handler` once for each key: in one transaction (`mode: 'atomic'`, the default), or in steps under a
 * lease (`mode: 'run'`). A repeat succeeds without running it.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * const taskList = {
 *   invoice: task(once, { scope: 'invoice', key: ({ payload }) => payload.orderId, onPoison: report }, handler),
 * }
 */
export function task<Tx, Payload, Result, Helpers extends TaskHelpers = TaskHelpers>(
  once: Once<Tx>,
  options: TaskOptions<TaskJob<Payload, Helpers>> & AtomicOptions,
  handler: AtomicHandler<Tx, TaskJob<Payload, Helpers>, Result>,
): GraphileTask<Payload, Helpers>
export function task<Tx, Payload, Result, Helpers extends TaskHelpers = TaskHelpers>(
  once: Once<Tx>,
  options: TaskOptions<TaskJob<Payload, Helpers>> & LeasedOptions,
  handler: LeasedHandler<Tx, TaskJob<Payload, Helpers>, Result>,
): GraphileTask<Payload, Helpers>
export function task<Tx, Payload, Helpers extends TaskHelpers = TaskHelpers>(
  once: Once<Tx>,
  options: TaskOptions<TaskJob<Payload, Helpers>> & (AtomicOptions | LeasedOptions),
  handler: AnyHandler<Tx, TaskJob<Payload, Helpers>>,
): GraphileTask<Payload, Helpers> {
  const checked = guarded<TaskJob<Payload, Helpers>>('task', options, {
    own: ['waitMs'],
    dataOf: ({ payload }) => payload,
    leaseMaxMs: LOCK_MS,
  })
  if (checked.onPoison === undefined) {
    throw new TypeError('task needs onPoison: Graphile Worker cannot keep a job that must not be tried again')
  }
  if (typeof handler !== 'function') throw new TypeError('task takes a handler function')
  const waitMs = integerOption('waitMs', options.waitMs, {
    min: 0,
    max: 3_600_000,
    default: checked.leaseMs + WAIT_AFTER_LEASE_MS,
  })
  return async (payload, helpers) => {
    const allowance = { expiresInMs: LOCK_MS, waitMs, signal: helpers.abortSignal }
    const ended = await deliver(once, checked, handler, { payload, helpers }, allowance)
    switch (ended.kind) {
      case 'done':
      case 'poison':
        return
      case 'rejected':
        throw new Error('the outcome is a rejection')
      case 'again':
      case 'stopped':
        throw ended.error
    }
  }
}
