/**
 * Time and chance of the client. Both can be given, so that tests need not wait.
 *
 * The clock is the wall clock: instants are stored and compared after a restart.
 *
 * @module
 */

export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  /** Ends after `ms` milliseconds, or at once when the signal aborts; never rejects. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

/** Timers count with 31 bits; longer ones would end at once. */
export const TIMER_MS_MAX: number = 2 ** 31 - 1

export const systemClock: Clock = {
  now: () => Date.now(),
  async sleep(ms, signal) {
    for (let left = ms; left > 0 && signal?.aborted !== true; left -= TIMER_MS_MAX) {
      await timer(Math.min(left, TIMER_MS_MAX), signal)
    }
  },
}

function timer(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(handle)
      signal?.removeEventListener('abort', end)
      resolve()
    }
    const handle = setTimeout(end, ms)
    signal?.addEventListener('abort', end, { once: true })
  })
}
