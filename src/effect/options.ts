/**
 * Effect: what a user says about one call that leaves the database, and what comes back from asking about it.
 *
 * @module
 */

import { canonicalJson } from '../fingerprint/canonical-value.ts'
import { hash } from '../shared/crypto.ts'
import { describe, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { AnswerKind } from './provider/index.ts'
import { checkProfile, keyLifetimeOf, type ProviderName, type ProviderProfile, providers } from './provider/index.ts'

/**
 * What may happen when nobody knows whether a call got through. There is no default.
 * - `keyed`: the provider drops repeats with the same key. Repeated with the same key and bytes while it remembers the
 *   key; later only reconcile or a person decides.
 * - `reconciled`: the provider can be asked. Asked before anything is repeated.
 * - `at-most-once`: never repeated without a proof that nothing happened.
 * - `at-least-once`: repeated until there is an answer; recorded afterwards. For effects that may happen twice.
 */
export type Delivery = 'keyed' | 'reconciled' | 'at-most-once' | 'at-least-once'

/** What `call` and `reconcile` are given besides the request. */
export interface CallContext {
  /** The same on every attempt, cut to what the provider takes. */
  readonly idempotencyKey: string
  /** Aborts at `timeoutMs`, and when the lease is lost. */
  readonly signal: AbortSignal
  /** 1 for the first attempt. */
  readonly attempt: number
}

declare const FOUND: unique symbol
const BRAND: typeof FOUND = Symbol.for('effectively-once.found') as typeof FOUND

/** An answer of `reconcile`, or a proof for `once.resolve`. */
export type Reconciled<Result> =
  | { readonly kind: 'found'; readonly value: Result; readonly [FOUND]: true }
  | { readonly kind: 'notApplied' | 'stillUnknown'; readonly [FOUND]: true }

/** It has happened, and this is its result. */
export function found<Result>(value: Result): Reconciled<Result> {
  return { kind: 'found', value, [BRAND]: true }
}

/**
 * It has not happened. From `reconcile` this counts only when the last attempt started longer than `settleAfterMs` ago:
 * an earlier look can miss a call that is still under way.
 */
export function notApplied(): Reconciled<never> {
  return { kind: 'notApplied', [BRAND]: true }
}

/** It cannot be told yet. */
export function stillUnknown(): Reconciled<never> {
  return { kind: 'stillUnknown', [BRAND]: true }
}

export function isReconciled(value: unknown): value is Reconciled<unknown> {
  return typeof value === 'object' && value !== null && BRAND in value
}

export interface EffectOptions<Request, Result> {
  /** Plain JSON data. Frozen with the intent: every attempt, of whatever process, sends these bytes. */
  readonly request: Request
  /** The call. Retries of the client's own are switched off, or each would be an attempt that nobody counts. */
  readonly call: (request: Request, context: CallContext) => Promise<Result> | Result
  readonly delivery: Delivery
  /** Asks the provider what became of it: `found(value)`, `notApplied()` or `stillUnknown()`. */
  readonly reconcile?:
    | ((request: Request, context: CallContext) => Promise<Reconciled<Result>> | Reconciled<Result>)
    | undefined
  /** What the provider promises: a name, or a profile of your own. Default `generic`. */
  readonly provider?: ProviderName | ProviderProfile | undefined
  /** How long the provider remembers a key, milliseconds; null = for ever. Default: the profile's. */
  readonly keyLifetimeMs?: number | null | undefined
  /** Longest time from the start of a call until the provider has applied it, milliseconds. Default 120_000. */
  readonly settleAfterMs?: number | undefined
  /** How often reconcile has to say "not applied" before it is believed. Default 1; 2 for money. 1 to 5. */
  readonly looks?: number | undefined
  /** Longest wait for one call, milliseconds. Default 30_000. */
  readonly timeoutMs?: number | undefined
  /** Longest time that the handler waits between attempts, in all, milliseconds. Then the operation is given back. Default 10_000. */
  readonly patienceMs?: number | undefined
  /** What a thrown error says, where the profile's rules do not know. undefined = ask them. */
  readonly classify?: ((error: unknown) => AnswerKind | undefined) | undefined
  /** What is kept of the answer. Default: what JSON.stringify makes of it. */
  readonly keep?: ((result: Result) => unknown) | undefined
}

/** Options that were checked. */
export interface EffectSettings<Request, Result> {
  readonly request: string
  readonly requestHash: string
  readonly call: EffectOptions<Request, Result>['call']
  readonly delivery: Delivery
  readonly reconcile: EffectOptions<Request, Result>['reconcile']
  readonly profile: ProviderProfile
  /** null = for ever. */
  readonly keyAgeMaxMs: number | null
  readonly settleAfterMs: number
  readonly looks: number
  readonly timeoutMs: number
  readonly patienceMs: number
  readonly classify: EffectOptions<Request, Result>['classify']
  readonly keep: (result: Result) => unknown
}

const DELIVERIES: readonly Delivery[] = ['keyed', 'reconciled', 'at-most-once', 'at-least-once']
/** A key is not sent again in the last tenth of its life, and at least this long before its end. */
const KEY_MARGIN_MIN_MS = 60_000
const MS_MAX = 30 * 86_400_000

/** @throws {TypeError} naming the option. */
export function effectSettings<Request, Result>(
  name: string,
  options: EffectOptions<Request, Result>,
): EffectSettings<Request, Result> {
  const where = `op.effect("${name}")`
  refuseUnknownOptions(where, options, [
    'request',
    'call',
    'delivery',
    'reconcile',
    'provider',
    'keyLifetimeMs',
    'settleAfterMs',
    'looks',
    'timeoutMs',
    'patienceMs',
    'classify',
    'keep',
  ])
  if (typeof options.call !== 'function') throw new TypeError(`${where} needs call, a function`)
  const delivery: unknown = options.delivery
  if (!DELIVERIES.includes(delivery as Delivery)) {
    throw new TypeError(`${where} needs delivery: ${DELIVERIES.join(' | ')}, got ${describe(delivery)}`)
  }
  if (options.delivery === 'reconciled' && typeof options.reconcile !== 'function') {
    throw new TypeError(`${where}: delivery "reconciled" needs reconcile, a function`)
  }
  const profile = profileOf(where, options.provider)
  if (options.delivery === 'keyed' && profile.key.in === 'none') {
    throw new TypeError(`${where}: delivery "keyed" needs a provider that takes keys, and ${profile.name} takes none`)
  }
  const timeoutMs = integerOption(`${where} timeoutMs`, options.timeoutMs, { min: 1, max: 3_600_000, default: 30_000 })
  const request = canonicalJson(options.request === undefined ? null : options.request)
  return {
    request,
    requestHash: hash('sha256', request, 'hex'),
    call: options.call,
    delivery: options.delivery,
    reconcile: options.reconcile,
    profile,
    keyAgeMaxMs: keyAgeMax(where, options.keyLifetimeMs, profile),
    settleAfterMs: integerOption(`${where} settleAfterMs`, options.settleAfterMs, {
      min: 0,
      max: MS_MAX,
      default: 120_000,
    }),
    looks: integerOption(`${where} looks`, options.looks, { min: 1, max: 5, default: 1 }),
    timeoutMs,
    patienceMs: integerOption(`${where} patienceMs`, options.patienceMs, { min: 0, max: 600_000, default: 10_000 }),
    classify: options.classify,
    keep: options.keep ?? ((result) => result),
  }
}

function profileOf(where: string, given: ProviderName | ProviderProfile | undefined): ProviderProfile {
  if (given === undefined) return providers.generic
  const profile = typeof given === 'string' && Object.hasOwn(providers, given) ? providers[given] : given
  if (typeof profile === 'string') {
    throw new TypeError(`${where} provider takes ${Object.keys(providers).join(' | ')} or a profile`)
  }
  return checkProfile(profile)
}

/** Until when a repeat with the same key is safe; the margin covers the way and the clocks. */
function keyAgeMax(where: string, given: number | null | undefined, profile: ProviderProfile): number | null {
  const lifetimeMs =
    given === null || given === undefined
      ? given === null
        ? null
        : keyLifetimeOf(profile)
      : integerOption(`${where} keyLifetimeMs`, given, { min: 1_000, max: 3_650 * 86_400_000, default: 1_000 })
  if (lifetimeMs === null) return null
  return Math.max(0, lifetimeMs - Math.min(lifetimeMs / 2, Math.max(KEY_MARGIN_MIN_MS, lifetimeMs / 10)))
}
