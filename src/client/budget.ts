/**
 * The retry budget: when most answers are failures, retrying makes it worse for everybody, so retries cost tokens and
 * answers give them back. First attempts are always free.
 *
 * @module
 */

/** Why a retry is needed, in the order of what it costs the server. */
export type RetryCause = 'paced' | 'failure' | 'timeout'

export interface RetryBudget {
  /** Pays for one retry; false = there is not enough left. */
  take(cause: RetryCause): boolean
  /** An answer arrived that is none of the server's failures; `paid` is what led to it, if it was a retry. */
  refund(paid: RetryCause | undefined): void
}

export interface RetryBudgetOptions {
  /** Tokens at the start and at most. Default 500. */
  readonly tokens?: number | undefined
}

/** A retry that the server gave a time for is cheap; one after a time-out may add to work that still runs. */
const COST: Readonly<Record<RetryCause, number>> = { paced: 1, failure: 5, timeout: 10 }
const TOKENS = 500
const HOSTS_MAX = 100

/** One budget; give the same one to all operations that share a server. */
export function retryBudget(options: RetryBudgetOptions = {}): RetryBudget {
  const most = options.tokens ?? TOKENS
  if (!Number.isFinite(most) || most < 0) throw new TypeError('retryBudget: tokens must be a number from 0')
  let left = most
  return {
    take(cause) {
      if (left < COST[cause]) return false
      left -= COST[cause]
      return true
    },
    refund(paid) {
      left = Math.min(most, left + (paid === undefined ? 1 : COST[paid]))
    },
  }
}

const perHost = new Map<string, RetryBudget>()

/** The budget of operations that were given none: one per host in this page or process. */
export function hostBudget(host: string): RetryBudget {
  let budget = perHost.get(host)
  if (budget === undefined) {
    const [oldest] = perHost.keys()
    if (perHost.size >= HOSTS_MAX && oldest !== undefined) perHost.delete(oldest)
    budget = retryBudget()
    perHost.set(host, budget)
  }
  return budget
}
