/**
 * What publisher and source both need to connect.
 *
 * @module
 */

import { integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import type { Backoff } from '../../shared/waiting.ts'
import type { AmqpConnect } from './amqp.ts'
import type { Topology } from './topology.ts'

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
  const { minMs, maxMs } = options.reconnect ?? {}
  const bounds = { min: 1, max: 3_600_000 }
  const reconnect = {
    minMs: integerOption(`${where} reconnect.minMs`, minMs, { ...bounds, default: 100 }),
    maxMs: integerOption(`${where} reconnect.maxMs`, maxMs, { ...bounds, default: 10_000 }),
  }
  if (reconnect.maxMs < reconnect.minMs) throw new TypeError(`${where}: reconnect.maxMs is below reconnect.minMs`)
  return {
    connect,
    topology: options.topology ?? [],
    openTimeoutMs: integerOption(`${where} openTimeoutMs`, options.openTimeoutMs, {
      min: 1,
      max: 600_000,
      default: 10_000,
    }),
    reconnect,
  }
}
