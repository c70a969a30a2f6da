/**
 * Events: what a consumer tells about its messages, for metrics, logs and alerts. Never a payload, a header or a key.
 *
 * @module
 */

import type { InboxQuarantineReason } from '../store/inbox.ts'
import type { ConsumerHealth } from './options.ts'

/** Which message an event is about. */
interface About {
  readonly consumer: string
  readonly id: string
  readonly source: string
  readonly type: string
}

export type ConsumerEvent =
  /** Committed. `stale` = the handler was told by `ifNewer` that a newer version is known. */
  | (About & {
      readonly kind: 'applied'
      readonly attempt: number
      readonly outputs: number
      readonly stale: boolean
      readonly durationMs: number
    })
  /** Recognised: applied before with the same content. */
  | (About & { readonly kind: 'duplicate' })
  /** Same id, other content: something is wrong at the sender. Quarantined. Alert on it. (R33) */
  | (About & { readonly kind: 'mismatch' })
  /** It waits in the database and comes again from there. `error` is the error's name or code. */
  | (About & {
      readonly kind: 'waiting'
      readonly reason: 'failed' | 'no-handler' | 'behind'
      readonly attempt: number
      readonly dueInMs: number
      readonly error?: string | undefined
    })
  /** A person has to look at it. `id` is undefined when nothing names the message. */
  | (Omit<About, 'id'> & {
      readonly kind: 'quarantined'
      readonly id: string | undefined
      readonly reason: InboxQuarantineReason
      readonly attempts: number
      readonly error?: string | undefined
    })
  /** The answer to COMMIT was lost; the mark decides. */
  | (About & { readonly kind: 'unresolved' })
  /** Our claim on it was taken over while we worked; nothing of our work is stored. */
  | (About & { readonly kind: 'fenced' })
  /** The store refused to keep this message for a reason that is not known here; it is tried again. */
  | (About & { readonly kind: 'error'; readonly error: string })
  /** A batch failed and is halved. */
  | { readonly kind: 'split'; readonly consumer: string; readonly size: number; readonly error: string }
  /** Deliveries whose channel is gone; they come again. `started` of them were being handled. */
  | { readonly kind: 'lost'; readonly consumer: string; readonly count: number; readonly started: number }
  /** Acknowledgements that came too late, after a commit; the redeliveries will be recognised. */
  | { readonly kind: 'late-ack'; readonly consumer: string; readonly count: number }
  /** Old marks were removed. */
  | { readonly kind: 'purged'; readonly consumer: string; readonly count: number }
  /** The consumer's state changed. */
  | {
      readonly kind: 'state'
      readonly consumer: string
      readonly state: ConsumerHealth['state']
      readonly reason: string | undefined
    }
