/**
 * Waiting: every wait in the product has a bound, honours an AbortSignal, and retries are spread by jitter.
 *
 * @module
 */

/** Shape of an exponential backoff with full jitter. Milliseconds. */
export interface Backoff {
  readonly minMs: number
  readonly maxMs: number
}

/** Default backoff between attempts of one message or one connection. */
export const BACKOFF_DEFAULT: Backoff = { minMs: 1_000, maxMs: 300_000 }

/**
 * Full jitter: a random delay between `minMs` and the exponential ceiling of this attempt.
 *
 * @param attempt - 1 for the first retry.
 */
export function backoffMs(
  attempt: number,
  backoff: Backoff = BACKOFF_DEFAULT,
  random: () => number = Math.random,
): number {
  const ceiling = Math.min(backoff.maxMs, backoff.minMs * 2 ** Math.min(attempt, 30))
  return Math.round(backoff.minMs + random() * Math.max(0, ceiling - backoff.minMs))
}

/** Resolves after `ms`, or earlier when the signal aborts (then it resolves too: look at `signal.aborted`). */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted === true) return Promise.resolve()
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Result of a bounded wait. */
export type Bounded<T> = { readonly kind: 'done'; readonly value: T } | { readonly kind: 'timeout' }

/** Waits for `promise` at most `ms`. A late rejection is swallowed: the caller has already been told "timeout". */
export async function bounded<T>(promise: Promise<T>, ms: number): Promise<Bounded<T>> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<{ kind: 'timeout' }>((resolve) => {
    timer = setTimeout(() => resolve({ kind: 'timeout' }), ms)
  })
  try {
    return await Promise.race([promise.then((value) => ({ kind: 'done' as const, value })), late])
  } finally {
    clearTimeout(timer)
    promise.catch(() => {})
  }
}
