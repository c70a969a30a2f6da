/**
 * The door `effectively-once/pg-boss`: handlers for pg-boss 10 whose jobs are done once.
 *
 * pg-boss stops waiting for a handler when the job's `expireInSeconds` are over, and starts the job again, while the first
 * handler runs on. Here a handler is stopped shortly before: its signal aborts, its transaction is rolled back or its lease
 * given back, and nothing that it does later is stored. The lease of `mode: 'run'` is no longer than the expiry.
 *
 * @module
 */

import type { Once } from '../../once.ts'
import {
  type AnyHandler,
  type AtomicHandler,
  type Delivered,
  deliver,
  type LeasedHandler,
} from '../../runner/deliver.ts'
import {
  type AtomicOptions,
  guarded,
  type IntentOptions,
  type LeasedOptions,
  type OnPoison,
} from '../../runner/options.ts'

export type { AtomicHandler, LeasedHandler } from '../../runner/deliver.ts'
export type { AtomicOptions, IntentOptions, LeasedOptions, OnPoison } from '../../runner/options.ts'

/** The part of a pg-boss job that is used. */
export interface BossJob {
  readonly id: string
  /** The queue. */
  readonly name: string
  readonly data: unknown
  readonly expireInSeconds: number
}

/** The part of a `PgBoss` that is called. */
export interface Boss {
  complete(name: string, id: string, data?: object): Promise<unknown>
  cancel(name: string, id: string): Promise<unknown>
}

/** What `boss.work(queue, handler)` takes. */
export type BossHandler<Job> = (jobs: Job[]) => Promise<unknown>

export interface BossOptions<Job> extends IntentOptions<Job> {
  /**
   * Told of a job that must not be tried again, which is then `cancelled`: pg-boss 10 has no other way to end a job before
   * its retries are used up.
   */
  readonly onPoison?: OnPoison<Job> | undefined
}

/** A dead owner's lease is over within it; of the expiry it leaves at least half to the work. */
const WAIT_AFTER_LEASE_MS = 5_000

/**
 * A handler for `boss.work` that runs `handler` once for each key: in one transaction (`mode: 'atomic'`, the default), or
 * in steps under a lease (`mode: 'run'`).
 *
 * A repeat is completed with the stored result. While another owner works the delivery waits, for pg-boss counts every
 * delivery; when that takes longer than half the expiry, it fails and is retried. Of a batch every job ends by itself: what
 * was done is completed, what has failed is retried.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * await boss.work('invoices', workHandler(once, boss, { scope: 'invoice', key: (job) => job.data.orderId }, handler))
 */
export function workHandler<Tx, Job extends BossJob, Result>(
  once: Once<Tx>,
  boss: Boss,
  options: BossOptions<Job> & AtomicOptions,
  handler: AtomicHandler<Tx, Job, Result>,
): BossHandler<Job>
export function workHandler<Tx, Job extends BossJob, Result>(
  once: Once<Tx>,
  boss: Boss,
  options: BossOptions<Job> & LeasedOptions,
  handler: LeasedHandler<Tx, Job, Result>,
): BossHandler<Job>
export function workHandler<Tx, Job extends BossJob>(
  once: Once<Tx>,
  boss: Boss,
  options: BossOptions<Job> & (AtomicOptions | LeasedOptions),
  handler: AnyHandler<Tx, Job>,
): BossHandler<Job> {
  if (typeof boss?.complete !== 'function' || typeof boss.cancel !== 'function') {
    throw new TypeError('workHandler takes a PgBoss')
  }
  const checked = guarded<Job>('workHandler', options, {
    own: [],
    dataOf: ({ data }) => data,
    leaseMaxMs: Number.POSITIVE_INFINITY,
  })
  if (typeof handler !== 'function') throw new TypeError('workHandler takes a handler function')
  const one = async (job: Job): Promise<Delivered> => {
    const expiresInMs = job.expireInSeconds * 1_000
    const waitMs = Math.min(checked.leaseMs + WAIT_AFTER_LEASE_MS, expiresInMs / 2)
    const ended = await deliver(once, checked, handler, job, { expiresInMs, waitMs })
    if (ended.kind === 'poison') await boss.cancel(job.name, job.id)
    return ended
  }
  return async (jobs) => {
    const [first] = jobs
    if (first === undefined) return undefined
    // Whoever is cancelled or completed here is left alone by the completion or failure that pg-boss sends for all.
    if (jobs.length === 1) return resultOf(await one(first))
    const ended = await Promise.allSettled(
      jobs.map(async (job) => {
        const result = resultOf(await one(job))
        await boss.complete(job.name, job.id, asOutput(result))
      }),
    )
    const failed = ended.flatMap((end) => (end.status === 'rejected' ? [end.reason as unknown] : []))
    if (failed.length > 0) throw new AggregateError(failed, `${failed.length} of ${jobs.length} jobs have failed`)
    return undefined
  }
}

function resultOf(ended: Delivered): unknown {
  switch (ended.kind) {
    case 'done':
      return ended.result
    case 'poison':
      return undefined
    case 'rejected':
      throw new Error('the outcome is a rejection')
    case 'again':
    case 'stopped':
      throw ended.error
  }
}

/** pg-boss takes objects as output. */
function asOutput(result: unknown): object | undefined {
  if (result === undefined || result === null) return undefined
  return typeof result === 'object' && !Array.isArray(result) ? result : { value: result }
}
