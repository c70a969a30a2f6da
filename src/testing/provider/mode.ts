/**
 * Modes of a fake provider: which profile it follows, and how it says what the profile promises.
 *
 * @module
 */

import { type ProviderProfile, providers } from '../../effect/provider/index.ts'

/**
 * How a fake provider treats keys.
 *
 * - `none`: it takes none; every request is a new effect.
 * - `stripe-v1`: the first answer is stored once execution began, a 500 too, and replayed with `Idempotent-Replayed: true`
 *   for 24 hours.
 * - `stripe-v2`: what succeeded is not repeated, what failed is continued; kept for 30 days.
 * - `24h`: answers of success are kept for 24 hours; failures are tried again.
 */
export type ProviderKeys = 'none' | 'stripe-v1' | 'stripe-v2' | '24h'

export const PROVIDER_KEYS: readonly ProviderKeys[] = ['none', 'stripe-v1', 'stripe-v2', '24h']

const DAY_MS = 86_400_000

/** An answer in a mode's own words. */
export interface Refusal {
  readonly status: number
  readonly type: string
  readonly code?: string | undefined
  readonly message: string
}

export interface Mode {
  readonly profile: ProviderProfile
  /** Failures are stored with the key and given again. */
  readonly storesFailures: boolean
  /** A repeat of a success gets the first answer's bytes, or the object as it is now. */
  readonly replaysBytes: boolean
}

const MODES: Readonly<Record<ProviderKeys, Mode>> = {
  none: {
    profile: {
      ...providers.generic,
      name: 'fake-without-keys',
      key: { ...providers.generic.key, in: 'none' },
    },
    storesFailures: false,
    replaysBytes: false,
  },
  'stripe-v1': { profile: providers.stripeV1, storesFailures: true, replaysBytes: true },
  'stripe-v2': { profile: providers.stripeV2, storesFailures: false, replaysBytes: false },
  '24h': {
    profile: {
      ...providers.generic,
      name: 'fake-24h',
      keyLifetimeMs: DAY_MS,
      rules: [
        { kind: 'inProgress', codes: ['idempotency_key_in_use'] },
        { kind: 'mismatch', codes: ['idempotency_error'] },
      ],
    },
    storesFailures: false,
    replaysBytes: true,
  },
}

export function modeOf(keys: ProviderKeys): Mode {
  return MODES[keys]
}

export const IN_PROGRESS: Refusal = {
  status: 409,
  type: 'idempotency_error',
  code: 'idempotency_key_in_use',
  message: 'Another request with this key is in progress.',
}
export const MISMATCH: Refusal = {
  status: 400,
  type: 'idempotency_error',
  message: 'This key was used with another request.',
}
export const DECLINED: Refusal = {
  status: 402,
  type: 'card_error',
  code: 'card_declined',
  message: 'The card was declined.',
}
export const FAILED: Refusal = { status: 500, type: 'api_error', message: 'Something went wrong here.' }
export const UNAVAILABLE: Refusal = { status: 503, type: 'api_error', message: 'Not available at the moment.' }
export const RATE_LIMITED: Refusal = {
  status: 429,
  type: 'invalid_request_error',
  code: 'rate_limit',
  message: 'Too many requests.',
}

export function invalid(message: string): Refusal {
  return { status: 400, type: 'invalid_request_error', code: 'parameter_invalid', message }
}

export function notFound(message: string): Refusal {
  return { status: 404, type: 'invalid_request_error', code: 'resource_missing', message }
}
