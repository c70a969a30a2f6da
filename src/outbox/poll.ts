/**
 * Poll: how long an idle lane waits before it looks by itself. It is the floor under every hint.
 *
 * @module
 */

/** Longest pause, as a multiple of the shortest. */
const GROWTH_MAX = 5

/**
 * Doubles with each idle poll up to five times `pollMs`, within a quarter of jitter, so that relays released from one
 * common stall do not poll in step (B36).
 */
export function idlePollMs(pollMs: number, idlePolls: number, random: () => number = Math.random): number {
  const poll = Math.min(pollMs * 2 ** Math.min(idlePolls, GROWTH_MAX), pollMs * GROWTH_MAX)
  return poll * (0.75 + random() / 2)
}
