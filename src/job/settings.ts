/**
 * Settings of leased operations, with their bounds and defaults.
 *
 * @module
 */

import { RETENTION_DEFAULT_MS, RETENTION_MAX_MS } from '../operation/retention.ts'
import { booleanOption, choiceOption, integerOption, refuseUnknownOptions, signalOption } from '../shared/options.ts'

/** What holds for a closure and for a defined kind alike. */
export interface LeaseOptions {
  /** How long a silent owner keeps the operation, milliseconds; renewed at a third. Default 30_000; 1_000 to 3_600_000. */
  readonly leaseMs?: number | undefined
  /** Longest run of one attempt, milliseconds. Default 3_600_000; 100 to 86_400_000. */
  readonly timeoutMs?: number | undefined
  /** Version of the code; stored when it starts an operation. Default 1. */
  readonly version?: number | undefined
  /** Claims that nobody has reported the end of, from which on it is parked (I15). Default 10; 1 to 1_000. */
  readonly claimsMax?: number | undefined
  /** Failed attempts from which on it is parked. Default 20; 1 to 1_000. */
  readonly failuresMax?: number | undefined
  /** Steps may run beside each other, so only their names are compared with the stored ones. Default false. */
  readonly unordered?: boolean | undefined
  /** How long the outcome is kept and the key stays taken, milliseconds. Default 30 days. */
  readonly retentionMs?: number | undefined
}

export interface RunOptions extends LeaseOptions {
  /** While another owner works: `reject` (default) tells OPERATION_IN_PROGRESS, `wait` waits up to `waitMs`. */
  readonly whenInProgress?: 'reject' | 'wait' | undefined
  /** Longest wait for another owner, milliseconds. Default 10_000; 1 to 3_600_000. */
  readonly waitMs?: number | undefined
  /** Aborts the waiting for another owner, never a running handler. */
  readonly signal?: AbortSignal | undefined
}

/** Options that were checked. */
export interface LeaseSettings {
  readonly leaseMs: number
  readonly timeoutMs: number
  readonly version: number
  readonly claimsMax: number
  readonly failuresMax: number
  readonly unordered: boolean
  readonly retentionMs: number
}

export interface RunSettings extends LeaseSettings {
  readonly whenInProgress: 'reject' | 'wait'
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

export const LEASE_OPTIONS = [
  'leaseMs',
  'timeoutMs',
  'version',
  'claimsMax',
  'failuresMax',
  'unordered',
  'retentionMs',
] as const
export const WAIT_OPTIONS = ['whenInProgress', 'waitMs', 'signal'] as const

export function leaseSettings(options: LeaseOptions): LeaseSettings {
  return {
    leaseMs: integerOption('leaseMs', options.leaseMs, { min: 1_000, max: 3_600_000, default: 30_000 }),
    timeoutMs: integerOption('timeoutMs', options.timeoutMs, { min: 100, max: 86_400_000, default: 3_600_000 }),
    version: integerOption('version', options.version, { min: 1, max: 1_000_000, default: 1 }),
    claimsMax: integerOption('claimsMax', options.claimsMax, { min: 1, max: 1_000, default: 10 }),
    failuresMax: integerOption('failuresMax', options.failuresMax, { min: 1, max: 1_000, default: 20 }),
    unordered: booleanOption('unordered', options.unordered, false),
    retentionMs: integerOption('retentionMs', options.retentionMs, {
      min: 1,
      max: RETENTION_MAX_MS,
      default: RETENTION_DEFAULT_MS,
    }),
  }
}

export function waitSettings(
  options: Pick<RunOptions, 'whenInProgress' | 'waitMs' | 'signal'>,
): Omit<RunSettings, keyof LeaseSettings> {
  return {
    whenInProgress: choiceOption('whenInProgress', options.whenInProgress, ['reject', 'wait'], 'reject'),
    waitMs: integerOption('waitMs', options.waitMs, { min: 1, max: 3_600_000, default: 10_000 }),
    signal: signalOption('signal', options.signal),
  }
}

export function runSettings(options: RunOptions | undefined): RunSettings {
  if (options === undefined) return DEFAULTS
  refuseUnknownOptions('once.run', options, [...LEASE_OPTIONS, ...WAIT_OPTIONS])
  return { ...leaseSettings(options), ...waitSettings(options) }
}

const DEFAULTS: RunSettings = { ...leaseSettings({}), ...waitSettings({}) }
