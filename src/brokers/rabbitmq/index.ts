/**
 * RabbitMQ (and any AMQP 0-9-1 broker with confirms) for the relay and the consumer.
 *
 * You hand in a function that opens a connection; the adapter keeps one for publishing and one for each source,
 * because a broker under memory pressure stops reading from connections that publish.
 *
 * @module
 */

import type { Broker, Source } from '../../broker/contract.ts'
import { choiceOption } from '../../shared/options.ts'
import type { AmqpConnect } from './amqp.ts'
import { deadLettersOf } from './delivery-limit.ts'
import { connectOptions, type RabbitConnectOptions } from './options.ts'
import { RabbitPublisher } from './publisher.ts'
import { RabbitSource } from './source.ts'

export type {
  AmqpChannel,
  AmqpConfirm,
  AmqpConfirmChannel,
  AmqpConnect,
  AmqpConnection,
  AmqpDeclareOptions,
  AmqpError,
  AmqpMessage,
  AmqpPublishOptions,
  AmqpReturn,
  AmqpTag,
} from './amqp.ts'
export { CREATED_AT_HEADER, ORDERING_KEY_HEADER } from './message.ts'
export type { RabbitConnectOptions } from './options.ts'
export {
  type ExchangeSpec,
  type QueueBinding,
  type QueueSpec,
  type QuorumQueueOptions,
  quorumQueue,
  type Topology,
  topicExchange,
} from './topology.ts'

export interface RabbitBrokerOptions extends RabbitConnectOptions {
  /** Exchange that messages are published to, with their topic as routing key. `''`: straight to the queue of that name. */
  readonly exchange: string
}

/** Longest name, bytes: AMQP short strings. */
const NAME_BYTES_MAX = 255

/**
 * Where a relay publishes.
 *
 * @param connect - Opens a new connection at each call, for example `() => amqp.connect(url)`. The adapter owns what
 *   it returns: it closes it, and calls again when it is lost.
 * @throws {TypeError} when an option is missing, unknown or out of its bounds.
 * @example
 * const broker = rabbitmq(() => amqp.connect(url), { exchange: 'events', topology: [topicExchange('events')] })
 */
export function rabbitmq(connect: AmqpConnect, options: RabbitBrokerOptions): Broker {
  const settings = connectOptions('rabbitmq', connect, options, ['exchange'])
  const { exchange } = options
  if (typeof exchange !== 'string') throw new TypeError('rabbitmq: exchange is required; "" is the default exchange')
  if (Buffer.byteLength(exchange) > NAME_BYTES_MAX) throw new TypeError('rabbitmq: exchange has more than 255 bytes')
  return {
    name: 'rabbitmq',
    openPublisher: (publisherOptions) => new RabbitPublisher(exchange, settings, publisherOptions),
  }
}

export interface RabbitQueueOptions extends RabbitConnectOptions {
  /**
   * `'configured'`: you know that the queue has dead letters by policy, or no delivery limit. Default: it is read from
   * `topology`; when that does not tell, RabbitMQ 4 and up gives a warning in the state (B76).
   */
  readonly deadLetters?: 'configured' | 'from-topology' | undefined
}

/**
 * Where a consumer reads: one queue.
 *
 * @param connect - As for `rabbitmq`; give a connection of its own.
 * @throws {TypeError} when an option is unknown or out of its bounds.
 * @example
 * const source = rabbitmqQueue(() => amqp.connect(url), 'orders', {
 *   topology: [topicExchange('events'), quorumQueue('orders', { bindings: [{ exchange: 'events', pattern: 'order.#' }] })],
 * })
 */
export function rabbitmqQueue(connect: AmqpConnect, queue: string, options: RabbitQueueOptions = {}): Source {
  const settings = connectOptions('rabbitmqQueue', connect, options, ['deadLetters'])
  if (typeof queue !== 'string' || queue === '') throw new TypeError('rabbitmqQueue: the name of the queue is required')
  if (Buffer.byteLength(queue) > NAME_BYTES_MAX) throw new TypeError('rabbitmqQueue: queue has more than 255 bytes')
  const choices = ['configured', 'from-topology'] as const
  const said = choiceOption('rabbitmqQueue deadLetters', options.deadLetters, choices, 'from-topology')
  const deadLetters = said === 'configured' ? 'kept' : deadLettersOf(queue, settings.topology)
  return new RabbitSource({ queue, deadLetters, connect: settings })
}
