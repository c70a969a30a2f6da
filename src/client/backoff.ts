/**
 * How long to wait before the next attempt: full jitter, with what the server asked for as a floor.
 *
 * @module
 */

export interface BackoffOptions {
  /** Upper end of the first wait, milliseconds; doubles with every attempt. Default 250. */
  readonly baseMs?: number | undefined
  /** Upper end of any wait that the server did not ask for, milliseconds. Default 20_000. */
  readonly capMs?: number | undefined
}

const BASE_MS = 250
const CAP_MS = 20_000
/** Clients that were told the same instant must not come back in the same instant. */
const SPREAD = 0.2

/**
 * Milliseconds to wait.
 *
 * @param retries - How many retries there were before this one.
 * @param floorMs - What the server asked for; null when it did not.
 * @param random - From 0 up to, not including, 1.
 */
export function backoffMs(
  retries: number,
  floorMs: number | null,
  random: () => number,
  options: BackoffOptions = {},
): number {
  const jitter = random() * Math.min(options.capMs ?? CAP_MS, (options.baseMs ?? BASE_MS) * 2 ** retries)
  if (floorMs === null) return Math.ceil(jitter)
  const least = Math.max(jitter, floorMs)
  return Math.ceil(least + random() * SPREAD * least)
}
