/**
 * Events of a worker: what an operator wants to see in a log. No payload, no key, no text of errors.
 *
 * @module
 */

export type WorkerEvent =
  | { readonly type: 'completed' | 'leaseLost'; readonly id: string; readonly kind: string; readonly fence: bigint }
  | {
      readonly type: 'released'
      readonly id: string
      readonly kind: string
      readonly fence: bigint
      readonly state: 'processing' | 'unknown' | 'parked'
      readonly reason: string
      /** What the handler threw. */
      readonly error: unknown
    }
  /** It has killed too many owners. */
  | { readonly type: 'parked'; readonly id: string; readonly kind: string | null; readonly claims: number }
  /** The store could not be asked; the worker goes on trying. */
  | { readonly type: 'unavailable'; readonly error: unknown; readonly retryInMs: number }
