/**
 * Options of the client, and what they are when they are not given.
 *
 * @module
 */

import type { Fetch } from './attempt.ts'
import type { BackoffOptions } from './backoff.ts'
import type { RetryBudget } from './budget.ts'
import { type Clock, systemClock } from './clock.ts'
import type { Completed, Refused } from './result.ts'
import type { OperationStorage } from './storage.ts'
import { memoryStorage } from './storages/memory.ts'

/** How operations are sent, whether new or found in a storage. */
export interface ClientOptions {
  /** Where pending operations are written down. Default: memory, which does not survive the page or process. */
  readonly storage?: OperationStorage | undefined
  /**
   * Headers for one attempt, asked for before each: credentials, trace ids. They are not stored and cannot replace what
   * belongs to the operation. When it throws, that is a failed attempt in which nothing was sent.
   */
  readonly attemptHeaders?: AttemptHeaders | undefined
  /**
   * Called with a final answer before the operation leaves the storage, so that the answer can be kept first. When it
   * throws, the call rejects with its error and the operation stays pending; sent again it gets the same answer.
   */
  readonly onAnswer?: ((answer: Completed | Refused) => void | Promise<void>) | undefined
  /** Milliseconds for one attempt, its answer read to the end. Default 30_000. */
  readonly attemptTimeoutMs?: number | undefined
  /** Milliseconds for a call: no attempt starts later, and one on its way is cut off. Default 60_000. */
  readonly deadlineMs?: number | undefined
  /** Bytes of an answer that are kept. Default 16 MiB. */
  readonly responseBytesMax?: number | undefined
  readonly backoff?: BackoffOptions | undefined
  /** Default: one per host, shared by all operations of this page or process. */
  readonly budget?: RetryBudget | undefined
  /**
   * `manual` (default): a redirect is the answer. `follow`: it is followed by `fetch`, which turns a POST into a GET
   * for most of them; only for services that redirect after the work is done.
   */
  readonly redirect?: 'manual' | 'follow' | undefined
  /** Default: `globalThis.fetch`. */
  readonly fetch?: Fetch | undefined
  /** Default: the system's. */
  readonly clock?: Clock | undefined
  /** From 0 up to, not including, 1. Default `Math.random`. */
  readonly random?: (() => number) | undefined
}

export type AttemptHeaders = (attempt: {
  readonly key: string
  /** Where the headers will go: the operation's, or that of its status resource on the same origin. */
  readonly url: string
}) => Readonly<Record<string, string>> | Promise<Readonly<Record<string, string>>>

/** One call. */
export interface SendCall {
  /** Ends the call with `gaveUp`; the operation stays pending. */
  readonly signal?: AbortSignal | undefined
  /** Milliseconds, instead of the option of the same name. */
  readonly deadlineMs?: number | undefined
}

/** The options with nothing left open. */
export interface Settings {
  readonly storage: OperationStorage
  readonly attemptHeaders: AttemptHeaders
  readonly onAnswer: (answer: Completed | Refused) => void | Promise<void>
  readonly attemptTimeoutMs: number
  readonly deadlineMs: number
  readonly responseBytesMax: number
  readonly backoff: BackoffOptions
  readonly budget: RetryBudget | undefined
  readonly redirect: 'manual' | 'follow'
  readonly fetch: Fetch
  readonly clock: Clock
  readonly random: () => number
}

const ATTEMPT_TIMEOUT_MS = 30_000
const DEADLINE_MS = 60_000
const RESPONSE_BYTES_MAX = 16 * 1_024 * 1_024

/** @throws {TypeError} naming the option. */
export function settingsOf(options: ClientOptions): Settings {
  return {
    storage: options.storage ?? memoryStorage(),
    attemptHeaders: options.attemptHeaders ?? (() => ({})),
    onAnswer: options.onAnswer ?? (() => undefined),
    attemptTimeoutMs: positive('attemptTimeoutMs', options.attemptTimeoutMs, ATTEMPT_TIMEOUT_MS),
    deadlineMs: positive('deadlineMs', options.deadlineMs, DEADLINE_MS),
    responseBytesMax: positive('responseBytesMax', options.responseBytesMax, RESPONSE_BYTES_MAX),
    backoff: {
      baseMs: positive('backoff.baseMs', options.backoff?.baseMs, undefined),
      capMs: positive('backoff.capMs', options.backoff?.capMs, undefined),
    },
    budget: options.budget,
    redirect: options.redirect ?? 'manual',
    // Called as a method of the global object: browsers refuse it otherwise.
    fetch: options.fetch ?? ((url, init) => globalThis.fetch(url, init)),
    clock: options.clock ?? systemClock,
    random: options.random ?? Math.random,
  }
}

/** A number above 0, or what stands for it. */
export function positive<T extends number | undefined>(
  name: string,
  value: number | undefined,
  otherwise: T,
): number | T {
  if (value === undefined) return otherwise
  if (!Number.isFinite(value) || value <= 0) throw new TypeError(`client: ${name} must be a number above 0`)
  return value
}
