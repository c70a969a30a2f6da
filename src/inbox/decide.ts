/**
 * Decide: what becomes of a message after one attempt. Pure; the shell in ./run.ts does it. (R34)
 *
 * @module
 */

import { type Backoff, backoffMs } from '../shared/waiting.ts'
import type { InboxQuarantineReason, InboxVerdict } from '../store/inbox.ts'
import { UndecodableBody } from './body.ts'
import { Unprocessable } from './unprocessable.ts'

export interface Limits {
  readonly attemptsMax: number
  readonly backoff: Backoff
}

/**
 * - `settle`: nothing more to do; acknowledge.
 * - `quarantine`: a person has to look at it.
 * - `wait`: it comes again from the waiting table.
 * - `again`: the same delivery is tried again here, uncounted.
 */
export type Next =
  | { readonly kind: 'settle' }
  | { readonly kind: 'quarantine'; readonly reason: InboxQuarantineReason }
  | { readonly kind: 'wait'; readonly reason: 'failed' | 'no-handler' | 'behind'; readonly dueInMs: number }
  | { readonly kind: 'again'; readonly afterMs: number }

/** After the store's verdict against running it. `busy` counts how often in a row that was the answer. */
export function afterVerdict(verdict: Exclude<InboxVerdict, 'new'>, busy: number, behindMs: number): Next {
  switch (verdict) {
    case 'duplicate':
      return { kind: 'settle' }
    case 'mismatch':
    case 'expired':
      return { kind: 'quarantine', reason: verdict }
    case 'behind':
      return { kind: 'wait', reason: 'behind', dueInMs: behindMs }
    case 'busy':
      return { kind: 'again', afterMs: backoffMs(Math.min(busy, 6), BUSY) }
  }
}

/** While the same message is worked on elsewhere. */
const BUSY: Backoff = { minMs: 20, maxMs: 1_000 }

/** After a failed attempt, the `attempt`-th. */
export function afterFailure(
  error: unknown,
  undecodable: boolean,
  attempt: number,
  limits: Limits,
  random: () => number = Math.random,
): Next {
  if (undecodable || error instanceof UndecodableBody) return { kind: 'quarantine', reason: 'undecodable' }
  if (error instanceof Unprocessable) return { kind: 'quarantine', reason: 'refused' }
  if (attempt >= limits.attemptsMax) return { kind: 'quarantine', reason: 'exhausted' }
  return { kind: 'wait', reason: 'failed', dueInMs: backoffMs(attempt, limits.backoff, random) }
}
