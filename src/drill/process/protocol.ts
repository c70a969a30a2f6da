/**
 * Protocol: what the drill and a process of the handler say to each other.
 *
 * @module
 */

import type { DrillWorld } from '../file/format.ts'
import type { TlsWish } from './outgoing-tls.ts'

export type ToProcess =
  | { readonly kind: 'start'; readonly world: DrillWorld; readonly serves: boolean }
  | { readonly kind: 'job'; readonly call: number; readonly job: unknown }
  /** Answered by `pong` as soon as it comes to that. */
  | { readonly kind: 'ping' }

export type FromProcess =
  /** The module is loaded, nothing has been started. */
  | { readonly kind: 'loaded' }
  /** `port` = where the handler's server listens, when it has one. */
  | { readonly kind: 'started'; readonly port?: number }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'pong' }
  | { readonly kind: 'done'; readonly call: number; readonly error?: string }
  | {
      readonly kind: 'outgoing'
      readonly localPort: number
      readonly host: string
      readonly port: number
      /** Set when the gateway is to speak TLS with it. */
      readonly tls?: TlsWish | undefined
    }

/** What a process is given on its command line, as JSON. */
export interface ProcessArguments {
  /** The module with the drill. */
  readonly module: string
  readonly wirePort: number
  readonly outgoingPort: number
  readonly hosts: readonly string[]
}
