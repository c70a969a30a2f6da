/**
 * Relay events: what telemetry, health and alerts are made of. Never a payload or a key.
 *
 * @module
 */

import type { ParkReason, QuarantineReason } from '../store/outbox.ts'

export type RelayEvent =
  | { readonly kind: 'laneAcquired'; readonly lane: number; readonly fence: number; readonly deaths: number }
  /** Another owner has the lane, or ours ran out; nothing of the late work changes anything. */
  | { readonly kind: 'laneLost'; readonly lane: number; readonly fence: number }
  | { readonly kind: 'laneReleased'; readonly lane: number; readonly fence: number }
  /** Rows written in another database cluster: nothing is published until `adoptCluster`. */
  | { readonly kind: 'laneForeign'; readonly lane: number }
  /** Confirmed and settled. */
  | { readonly kind: 'published'; readonly lane: number; readonly count: number }
  /** Moved aside; tried again after `delayMs`. */
  | {
      readonly kind: 'parked'
      readonly lane: number
      readonly messageId: string
      readonly topic: string
      readonly reason: ParkReason
      readonly attempt: number
      readonly delayMs: number
    }
  | {
      readonly kind: 'quarantined'
      readonly lane: number
      readonly messageId: string
      readonly topic: string
      readonly reason: QuarantineReason
    }
  | { readonly kind: 'disconnected'; readonly reason: string }
  | { readonly kind: 'connected' }
  /** Reading takes long: old snapshots keep dead rows, or the table is cold. Reads grow while it lasts. */
  | { readonly kind: 'slowRead'; readonly lane: number; readonly ms: number }
  /** The store cannot be asked; the relay waits and tries again. */
  | { readonly kind: 'storeUnavailable'; readonly reason: string }
  | { readonly kind: 'storeAvailable' }
  /** Notifications of other processes are (not) heard; polling goes on either way. */
  | { readonly kind: 'bell'; readonly hearing: boolean; readonly reason?: string | undefined }
