/**
 * What publisher and source both need to connect.
 *
 * @module
 */

import { backoffOption, integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import type { Backoff } from '../../shared/waiting.ts'
import type { AmqpConnect } from './amqp.ts'
import { checkedTopology, type Topology } from './topology.ts'

const RECONNECT: Backoff = { minMs: 100, maxMs: 10_000 }

export interface RabbitConnectOptions {
  /** Exchanges and queues declared on every connection, in this order. Default none: they exist already. */
  readonly topology?: Topology | undefined
  /** Bound for connecting, and for opening and setting up a channel, each. Milliseconds. Default 10_000. */
  readonly openTimeoutMs?: number | undefined
  /** Backoff between attempts to connect, full jitter. Milliseconds. Default `{ minMs: 100, maxMs: 10_000 }`. */
  readonly reconnect?: Backoff | undefined
}

export interface ConnectOptions {
  readonly connect: AmqpConnect
  readonly topology: Topology
  readonly openTimeoutMs: number
  readonly reconnect: Backoff
}

/** Checks the shared options; `own` are the names of the caller's further ones. */
export function connectOptions(
  where: string,
  connect: AmqpConnect,
  options: RabbitConnectOptions,
  own: readonly string[],
): ConnectOptions {
  if (typeof connect !== 'function') {
    throw new TypeError(`${where}: connect must be a function that opens an AMQP connection`)
  }
  refuseUnknownOptions(where, options, ['topology', 'openTimeoutMs', 'reconnect', ...own])
  return {
    connect,
    topology: checkedTopology(where, options.topology),
    openTimeoutMs: integerOption(`${where} openTimeoutMs`, options.openTimeoutMs, {
      min: 1,
      max: 600_000,
      default: 10_000,
    }),
    reconnect: backoffOption(`${where} reconnect`, options.reconnect, RECONNECT),
  }
}
