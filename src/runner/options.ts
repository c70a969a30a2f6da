/**
 * Options that every wrapper of a job runner takes, and their checks.
 *
 * @module
 */

import type { LeaseOptions } from '../job/settings.ts'
import type { Scope } from '../operation/identity.ts'
import type { TransactionOptions } from '../operation/transaction.ts'
import { choiceOption, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { Poison } from './poison.ts'

/** What names a job's intent, and what becomes of its ends. */
export interface IntentOptions<Job> {
  /** Tenant and kind of work: a constant, or taken from the job. */
  readonly scope: Scope | ((job: Job) => Scope)
  /**
   * The job's business identity, the same in every delivery and however often it was enqueued: `order.id`, never the
   * runner's own id of the job, which is another one for the same intent. Nothing (undefined, '') is refused.
   */
  readonly key: (job: Job) => string | undefined
  /** Every value that changes the effect, as plain JSON data. Default: the job's data. */
  readonly payload?: ((job: Job) => unknown) | undefined
  /**
   * What the runner is told of a `rejected()` outcome: `complete` (default), done with `{ rejected }` as result; `fail`,
   * failed for good.
   */
  readonly whenRejected?: 'complete' | 'fail' | undefined
}

/** Limits of the form `mode: 'atomic'`: the handler is one transaction. */
export interface AtomicOptions extends Pick<TransactionOptions, 'isolation' | 'attemptsMax' | 'retentionMs'> {
  readonly mode?: 'atomic' | undefined
  /** Longest run of one attempt, milliseconds. Default 30_000; 100 to 3_600_000. */
  readonly timeoutMs?: number | undefined
}

/** Limits of the form `mode: 'run'`: the handler works in steps, under a lease. */
export interface LeasedOptions extends LeaseOptions {
  readonly mode: 'run'
}

/** Told of a job that must not be tried again, before the runner is. An error of its own makes the runner retry. */
export type OnPoison<Job> = (job: Job, poison: Poison) => void | Promise<void>

export const INTENT_OPTIONS = ['scope', 'key', 'payload', 'whenRejected', 'onPoison'] as const
const ATOMIC_OPTIONS = ['mode', 'timeoutMs', 'isolation', 'attemptsMax', 'retentionMs'] as const
const LEASED_OPTIONS = [
  'mode',
  'leaseMs',
  'timeoutMs',
  'version',
  'claimsMax',
  'failuresMax',
  'unordered',
  'retentionMs',
] as const

/** Options that were checked. */
export interface Guarded<Job> {
  readonly scope: (job: Job) => Scope
  readonly key: (job: Job) => string | undefined
  readonly payload: (job: Job) => unknown
  readonly whenRejected: 'complete' | 'fail'
  readonly onPoison: OnPoison<Job> | undefined
  readonly mode: 'atomic' | 'run'
  readonly leaseMs: number
  /** undefined = not given. */
  readonly timeoutMs: number | undefined
  readonly atomic: Pick<TransactionOptions, 'isolation' | 'attemptsMax' | 'retentionMs'>
  readonly leased: LeaseOptions
}

type Given<Job> = IntentOptions<Job> &
  (AtomicOptions | LeasedOptions) & { readonly onPoison?: OnPoison<Job> | undefined }

/**
 * @param own - Options of this wrapper alone.
 * @param leaseMaxMs - After which the runner gives the job to somebody else: a longer lease would be in the way then.
 * @throws {TypeError} an option that is unknown, missing or out of its bounds.
 */
export function guarded<Job>(
  where: string,
  options: Given<Job>,
  facts: {
    readonly own: readonly string[]
    readonly dataOf: (job: Job) => unknown
    readonly leaseMaxMs: number
  },
): Guarded<Job> {
  const mode = choiceOption('mode', options?.mode, ['atomic', 'run'], 'atomic')
  const ofMode = mode === 'run' ? LEASED_OPTIONS : ATOMIC_OPTIONS
  refuseUnknownOptions(where, options, [...INTENT_OPTIONS, ...ofMode, ...facts.own])
  const { scope, key, payload, onPoison } = options
  if (typeof key !== 'function') throw new TypeError(`${where} needs key, a function that gives a job's identity`)
  if (scope === undefined || scope === null) throw new TypeError(`${where} needs scope`)
  if (payload !== undefined && typeof payload !== 'function') throw new TypeError(`${where}: payload is a function`)
  if (onPoison !== undefined && typeof onPoison !== 'function') throw new TypeError(`${where}: onPoison is a function`)
  const leased = options.mode === 'run' ? pick(options, LEASED_OPTIONS) : {}
  const max = Math.min(3_600_000, facts.leaseMaxMs)
  return {
    scope: typeof scope === 'function' ? scope : () => scope,
    key,
    payload: payload ?? facts.dataOf,
    whenRejected: choiceOption('whenRejected', options.whenRejected, ['complete', 'fail'], 'complete'),
    onPoison,
    mode,
    leaseMs: integerOption('leaseMs', leased.leaseMs, { min: 1_000, max, default: Math.min(30_000, max) }),
    timeoutMs: options.timeoutMs,
    atomic: options.mode === 'run' ? {} : pick(options, ['isolation', 'attemptsMax', 'retentionMs']),
    leased,
  }
}

function pick<T extends object, K extends keyof T & string>(from: T, names: readonly K[]): Partial<Omit<T, 'mode'>> {
  const picked = names.filter((name) => name !== 'mode' && from[name] !== undefined)
  return Object.fromEntries(picked.map((name) => [name, from[name]])) as unknown as Partial<Omit<T, 'mode'>>
}
