/**
 * The door `effectively-once/bullmq`: processors for BullMQ 5 and 6 whose jobs are done once.
 *
 * BullMQ renews a job's lock while its worker lives, and gives the job to another worker once the lock has run out. The
 * lease of `mode: 'run'` is no longer than the lock, so whoever gets the job next finds it free, or finds an owner that is
 * really at work.
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

/** The part of a BullMQ job that is used. */
export interface BullJob {
  readonly data: unknown
  moveToDelayed(timestamp: number, token?: string): Promise<void>
}

/** What `new Worker(queue, processor)` takes. It has three parameters, for BullMQ gives its signal only to such. */
export type BullProcessor<Job> = (job: Job, token?: string, signal?: AbortSignal) => Promise<unknown>

export interface BullOptions<Job> extends IntentOptions<Job> {
  /** The worker's `lockDuration`, milliseconds; give it when you have changed it. Default 30_000, as BullMQ's. */
  readonly lockDurationMs?: number | undefined
  /** Told of a job that BullMQ will not try again: it goes to `failed` with an `UnrecoverableError`. */
  readonly onPoison?: OnPoison<Job> | undefined
}

/**
 * A processor that runs `handler` once for each key: in one transaction (`mode: 'atomic'`, the default), or in steps under
 * a lease (`mode: 'run'`).
 *
 * A repeat is completed with the stored result. While another owner works, or the database is away, the job is delayed and
 * no attempt is used up. What cannot be mended by trying again fails for good. Errors of the handler are BullMQ's to count
 * and to repeat.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * new Worker('invoices', processor(once, { scope: 'invoice', key: (job) => job.data.orderId }, async ({ tx }, job) => {
 *   await tx.query('insert into invoices (order_id) values ($1)', [job.data.orderId])
 * }), { connection })
 */
export function processor<Tx, Job extends BullJob, Result>(
  once: Once<Tx>,
  options: BullOptions<Job> & AtomicOptions,
  handler: AtomicHandler<Tx, Job, Result>,
): BullProcessor<Job>
export function processor<Tx, Job extends BullJob, Result>(
  once: Once<Tx>,
  options: BullOptions<Job> & LeasedOptions,
  handler: LeasedHandler<Tx, Job, Result>,
): BullProcessor<Job>
export function processor<Tx, Job extends BullJob>(
  once: Once<Tx>,
  options: BullOptions<Job> & (AtomicOptions | LeasedOptions),
  handler: AnyHandler<Tx, Job>,
): BullProcessor<Job> {
  const leaseMaxMs = integerOption('lockDurationMs', options?.lockDurationMs, {
    min: 1_000,
    max: 86_400_000,
    default: 30_000,
  })
  const checked = guarded<Job>('processor', options, {
    own: ['lockDurationMs'],
    dataOf: ({ data }) => data,
    leaseMaxMs,
  })
  if (typeof handler !== 'function') throw new TypeError('processor takes a handler function')
  return async (job, token, signal) => {
    const ended = await deliver(once, checked, handler, job, { waitMs: 0, signal })
    switch (ended.kind) {
      case 'done':
        return ended.result
      case 'rejected':
        throw new UnrecoverableError('the outcome is a rejection')
      case 'poison':
        throw new UnrecoverableError(ended.error.message, { cause: ended.error })
      case 'stopped':
        throw ended.error
      case 'again':
        if (token === undefined) throw ended.error
        await job.moveToDelayed(Date.now() + ended.retryAfterMs, token)
        throw new DelayedError(ended.error.message, { cause: ended.error })
    }
  }
}

/** BullMQ knows both by their names. */
class UnrecoverableError extends Error {
  override readonly name = 'UnrecoverableError'
}

/** The job was moved, so its worker neither completes nor fails it. */
class DelayedError extends Error {
  override readonly name = 'DelayedError'
}
