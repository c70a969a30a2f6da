/**
 * Exchanges and queues that the adapter declares on every connection, so that a broker that lost them (or a new one)
 * is set up again before anything is published or consumed (R28).
 *
 * @module
 */

import { integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import type { AmqpChannel } from './amqp.ts'

export interface ExchangeSpec {
  readonly kind: 'exchange'
  readonly name: string
  readonly type: string
  readonly arguments: Readonly<Record<string, unknown>>
}

export interface QueueSpec {
  readonly kind: 'queue'
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
  readonly bindings: readonly QueueBinding[]
  /** Queue declared first, to take the dead letters. */
  readonly deadLetterQueue: QueueSpec | undefined
}

export interface QueueBinding {
  readonly exchange: string
  /** Topic pattern: `order.created.v1`, `order.#`, `*.created.*`. */
  readonly pattern: string
}

export type Topology = readonly (ExchangeSpec | QueueSpec)[]

/** A durable topic exchange. */
export function topicExchange(
  name: string,
  options: { readonly arguments?: Record<string, unknown> } = {},
): ExchangeSpec {
  refuseUnknownOptions('topicExchange', options, ['arguments'])
  return {
    kind: 'exchange',
    name: shortName('topicExchange name', name),
    type: 'topic',
    arguments: options.arguments ?? {},
  }
}

export interface QuorumQueueOptions {
  /** What is routed here. Exchanges of the same topology must come before the queue. */
  readonly bindings?: readonly QueueBinding[] | undefined
  /**
   * Where messages go that the broker gives up on. Default: a quorum queue `<name>.dead`, declared with this one.
   * `{ exchange, routingKey? }`: an exchange of yours. `'none'`: they are DROPPED, which with RabbitMQ 4 happens to
   * every message delivered 20 times (B76); only for data that may be lost.
   */
  readonly deadLetters?: { readonly exchange: string; readonly routingKey?: string | undefined } | 'none' | undefined
  /** Deliveries after which the broker gives a message up. Default: the broker's (none before RabbitMQ 4, then 20). */
  readonly deliveryLimit?: number | undefined
  /** Most messages held; further ones are refused (nack), never dropped. Default: no limit. */
  readonly lengthMax?: number | undefined
  /** One consumer at a time gets messages, so that order holds over several processes. Default false. */
  readonly singleActiveConsumer?: boolean | undefined
  /** Further arguments of the declaration. */
  readonly arguments?: Readonly<Record<string, unknown>> | undefined
}

/**
 * A durable quorum queue that loses nothing by itself: full means refuse, and dead letters are moved at least once.
 *
 * @throws {TypeError} for `deliveryLimit` without dead letters: that combination deletes messages.
 */
export function quorumQueue(name: string, options: QuorumQueueOptions = {}): QueueSpec {
  refuseUnknownOptions('quorumQueue', options, [
    'bindings',
    'deadLetters',
    'deliveryLimit',
    'lengthMax',
    'singleActiveConsumer',
    'arguments',
  ])
  shortName('quorumQueue name', name)
  const { deadLetters } = options
  if (deadLetters === 'none' && options.deliveryLimit !== undefined) {
    throw new TypeError(`quorumQueue "${name}": deliveryLimit with deadLetters "none" would delete messages (B76)`)
  }
  const args: Record<string, unknown> = { 'x-queue-type': 'quorum', 'x-overflow': 'reject-publish' }
  const deadLetterQueue = deadLetters === undefined ? deadLetterQueueOf(name) : undefined
  if (deadLetters !== 'none') {
    args['x-dead-letter-exchange'] = deadLetters?.exchange ?? ''
    args['x-dead-letter-strategy'] = 'at-least-once'
    const routingKey = deadLetterQueue?.name ?? deadLetters?.routingKey
    if (routingKey !== undefined) args['x-dead-letter-routing-key'] = routingKey
  }
  const { deliveryLimit, lengthMax } = options
  if (deliveryLimit !== undefined) {
    const bounds = { min: 1, max: 1_000_000, default: 1 }
    args['x-delivery-limit'] = integerOption('quorumQueue deliveryLimit', deliveryLimit, bounds)
  }
  if (lengthMax !== undefined) {
    const bounds = { min: 1, max: 1_000_000_000, default: 1 }
    args['x-max-length'] = integerOption('quorumQueue lengthMax', lengthMax, bounds)
  }
  if (options.singleActiveConsumer === true) args['x-single-active-consumer'] = true
  return {
    kind: 'queue',
    name,
    arguments: { ...args, ...options.arguments },
    bindings: (options.bindings ?? []).map(checkedBinding),
    deadLetterQueue,
  }
}

function checkedBinding(binding: QueueBinding): QueueBinding {
  refuseUnknownOptions('quorumQueue bindings', binding, ['exchange', 'pattern'])
  const { exchange, pattern } = binding
  // An empty pattern is one that fanout exchanges take.
  if (typeof pattern !== 'string' || Buffer.byteLength(pattern) > 255) {
    throw new TypeError('quorumQueue bindings: pattern takes up to 255 bytes of text')
  }
  return { exchange: shortName('quorumQueue bindings: exchange', exchange), pattern }
}

/** What the helpers here make, or objects of their shape. */
export function checkedTopology(where: string, topology: Topology | undefined): Topology {
  if (topology === undefined) return []
  if (!Array.isArray(topology) || !topology.every(isDeclaration)) {
    throw new TypeError(`${where}: topology takes a list of what topicExchange and quorumQueue make`)
  }
  return topology
}

function isDeclaration(item: unknown): boolean {
  if (typeof item !== 'object' || item === null || !('kind' in item) || !('name' in item)) return false
  return typeof item.name === 'string' && (item.kind === 'exchange' || (item.kind === 'queue' && 'bindings' in item))
}

function deadLetterQueueOf(name: string): QueueSpec {
  return {
    kind: 'queue',
    name: shortName('quorumQueue dead letter queue name', `${name}.dead`),
    arguments: { 'x-queue-type': 'quorum' },
    bindings: [],
    deadLetterQueue: undefined,
  }
}

/** Declares everything, in order. An existing exchange or queue with other arguments is refused by the broker (406). */
export async function assertTopology(channel: AmqpChannel, topology: Topology): Promise<void> {
  for (const item of topology) {
    if (item.kind === 'exchange') {
      await channel.assertExchange(item.name, item.type, { durable: true, arguments: { ...item.arguments } })
    } else {
      await assertQueue(channel, item)
    }
  }
}

async function assertQueue(channel: AmqpChannel, queue: QueueSpec): Promise<void> {
  if (queue.deadLetterQueue !== undefined) await assertQueue(channel, queue.deadLetterQueue)
  await channel.assertQueue(queue.name, { durable: true, arguments: { ...queue.arguments } })
  for (const { exchange, pattern } of queue.bindings) await channel.bindQueue(queue.name, exchange, pattern)
}

function shortName(where: string, name: string): string {
  if (typeof name !== 'string' || name === '' || Buffer.byteLength(name) > 255) {
    throw new TypeError(`${where} takes 1 to 255 bytes of text`)
  }
  return name
}
