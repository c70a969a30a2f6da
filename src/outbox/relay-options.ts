/**
 * Options of a relay, with their defaults and bounds.
 *
 * @module
 */

import type { Broker } from '../broker/contract.ts'
import { tell } from '../shared/listener.ts'
import {
  backoffOption,
  booleanOption,
  describe,
  functionOption,
  integerOption,
  refuseUnknownOptions,
} from '../shared/options.ts'
import { BACKOFF_DEFAULT, type Backoff } from '../shared/waiting.ts'
import type { OutboxStore } from '../store/outbox.ts'
import type { RelayEvent } from './events.ts'

export interface RelayOptions {
  /** Where messages go, for instance `rabbitmq(connect, { exchange: 'events' })`. */
  readonly broker: Broker
  /** Milliseconds a silent relay keeps a lane. Default 30_000; 500 to 600_000. Renewed with every settled batch. */
  readonly leaseMs?: number | undefined
  /** Longest wait for one confirm. Default 10_000, and never more than a third of the lease. */
  readonly publishTimeoutMs?: number | undefined
  /** Rows of one read. Default 1_000; 1 to 10_000. Grows while reads are slow. */
  readonly batchMax?: number | undefined
  /** Unconfirmed messages of one lane. Default three batches; 1 to 100_000. */
  readonly windowMax?: number | undefined
  /** Bytes of payload read ahead. Default 32 MiB. */
  readonly bytesMax?: number | undefined
  /** Poll of an idle lane; grows to five times this, with jitter. Default 1_000; 10 to 60_000. */
  readonly pollMs?: number | undefined
  /** At most one unconfirmed message of a key, so that a refused one cannot be overtaken. Slower. Default false. */
  readonly strictOrder?: boolean | undefined
  /** Keep published messages in the history. Default false. */
  readonly history?: boolean | undefined
  /** Whether a quarantined message stops its key: true, or the topics for which it does. Default false. */
  readonly stopKeyOnQuarantine?: boolean | readonly string[] | undefined
  /** Pauses between attempts of a returned or refused message, and between reconnects. Default 1 s to 5 min. */
  readonly backoff?: Backoff | undefined
  /** How long `stop` waits for confirms. Default: publishTimeoutMs. */
  readonly stopTimeoutMs?: number | undefined
  /** Told what happens. What it throws is ignored. */
  readonly onEvent?: ((event: RelayEvent) => void) | undefined
}

export interface RelaySettings {
  readonly store: OutboxStore
  readonly broker: Broker
  readonly leaseMs: number
  readonly publishTimeoutMs: number
  readonly batchMax: number
  readonly windowMax: number
  readonly bytesMax: number
  readonly pollMs: number
  readonly strictOrder: boolean
  readonly history: boolean
  readonly stopsKey: (topic: string) => boolean
  readonly backoff: Backoff
  readonly stopTimeoutMs: number
  readonly emit: (event: RelayEvent) => void
}

const MIB = 1_048_576

/** Checks the options. @throws {TypeError} naming the option. */
export function relaySettings(options: RelayOptions & { readonly store: OutboxStore }): RelaySettings {
  refuseUnknownOptions('relay', options, [
    'store',
    'broker',
    'leaseMs',
    'publishTimeoutMs',
    'batchMax',
    'windowMax',
    'bytesMax',
    'pollMs',
    'strictOrder',
    'history',
    'stopKeyOnQuarantine',
    'backoff',
    'stopTimeoutMs',
    'onEvent',
  ])
  const { store, broker } = options
  const onEvent = functionOption('relay onEvent', options.onEvent)
  if (typeof broker?.openPublisher !== 'function') throw new TypeError('relay: broker is required')
  const leaseMs = integerOption('relay leaseMs', options.leaseMs, { min: 500, max: 600_000, default: 30_000 })
  const longest = Math.floor(leaseMs / 3)
  const publishTimeoutMs = integerOption('relay publishTimeoutMs', options.publishTimeoutMs, {
    min: 50,
    max: longest,
    default: Math.min(10_000, longest),
  })
  const batchMax = integerOption('relay batchMax', options.batchMax, { min: 1, max: 10_000, default: 1_000 })
  return {
    store,
    broker,
    leaseMs,
    publishTimeoutMs,
    batchMax,
    windowMax: integerOption('relay windowMax', options.windowMax, { min: 1, max: 100_000, default: 3 * batchMax }),
    bytesMax: integerOption('relay bytesMax', options.bytesMax, { min: 1, max: 1_024 * MIB, default: 32 * MIB }),
    pollMs: integerOption('relay pollMs', options.pollMs, { min: 10, max: 60_000, default: 1_000 }),
    strictOrder: booleanOption('relay strictOrder', options.strictOrder, false),
    history: booleanOption('relay history', options.history, false),
    stopsKey: stopsKeyOf(options.stopKeyOnQuarantine),
    backoff: backoffOption('relay backoff', options.backoff, BACKOFF_DEFAULT),
    stopTimeoutMs: integerOption('relay stopTimeoutMs', options.stopTimeoutMs, {
      min: 0,
      max: 600_000,
      default: publishTimeoutMs,
    }),
    emit: (event) => tell(onEvent, event),
  }
}

function stopsKeyOf(given: RelayOptions['stopKeyOnQuarantine']): (topic: string) => boolean {
  if (Array.isArray(given) && given.every((topic) => typeof topic === 'string')) return (topic) => given.includes(topic)
  if (given !== undefined && typeof given !== 'boolean') {
    throw new TypeError(`relay stopKeyOnQuarantine takes true, false or a list of topics, got ${describe(given)}`)
  }
  return () => given === true
}
