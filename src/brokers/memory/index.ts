/**
 * In-process broker: the shortest readable reference of the broker contract, for tests and for the demo on a
 * machine without RabbitMQ. It keeps nothing when the process ends.
 *
 * Its faults are public methods, so that what a relay or consumer does in bad weather can be tried without a network.
 *
 * @module
 */

import { Buffer } from 'node:buffer'
import type {
  Broker,
  OutgoingMessage,
  Publisher,
  PublisherOptions,
  PublishResult,
  Source,
} from '../../broker/contract.ts'
import { MemoryLink } from './link.ts'
import { MemoryPublisher } from './publisher.ts'
import { MemorySource } from './source.ts'
import { MemoryQueue, type MemoryQueueOptions } from './topology.ts'

export type { MemoryQueueOptions } from './topology.ts'

export interface MemoryBrokerOptions {
  /** Most payload bytes of one message; larger ones are `invalid`. Default: no limit. */
  readonly messageBytesMax?: number | undefined
}

export class MemoryBroker implements Broker {
  readonly name = 'memory'
  readonly #bytesMax: number
  readonly #link = new MemoryLink()
  readonly #queues = new Map<string, MemoryQueue>()
  readonly #unroutable = new Set<string>()
  #refusals: string[] = []

  constructor(options: MemoryBrokerOptions = {}) {
    this.#bytesMax = options.messageBytesMax ?? Number.POSITIVE_INFINITY
  }

  /** Declares a queue, or binds more topics to the one of that name. */
  queue(name: string, options: MemoryQueueOptions): MemoryQueue {
    const known = this.#queues.get(name)
    if (known !== undefined) {
      for (const topic of options.topics) known.bind(topic)
      return known
    }
    const queue = new MemoryQueue(name, options)
    this.#queues.set(name, queue)
    return queue
  }

  /** The queue as a consumer's source. @throws {TypeError} for a queue that was not declared. */
  source(name: string): Source {
    const queue = this.#queues.get(name)
    if (queue === undefined) throw new TypeError(`memory broker: no queue "${name}"; declare it with queue()`)
    return new MemorySource(this.#link, queue)
  }

  openPublisher(options: PublisherOptions): Publisher {
    return new MemoryPublisher(this.#link, (message) => this.#route(message), options)
  }

  /** Fault: the next `count` publishes are answered with a nack. */
  nackNext(count = 1, reason = 'nacked by a test'): void {
    for (let index = 0; index < count; index += 1) this.#refusals.push(reason)
  }

  /** Fault: the topic reaches no queue, whatever is bound, until called with `false`. */
  unroutable(topic: string, on = true): void {
    if (on) this.#unroutable.add(topic)
    else this.#unroutable.delete(topic)
  }

  /** Fault: every connection is dropped, and is back soon after. */
  disconnect(reason = 'disconnected by a test'): void {
    this.outage(reason)
    setImmediate(() => this.recover())
  }

  /** Fault: every connection is dropped and stays down until `recover`. */
  outage(reason = 'outage made by a test'): void {
    this.#link.set({ kind: 'closed', reason })
  }

  /** Fault: publishers are blocked, as by RabbitMQ's memory alarm, until `recover`. Consumers go on. */
  block(reason = 'blocked by a test'): void {
    this.#link.set({ kind: 'blocked', reason })
  }

  /** Ends an outage or a block. */
  recover(): void {
    if (this.#link.state.kind !== 'open') this.#link.set({ kind: 'open' })
  }

  /** Fault: answers to publishes are held back until called with `false`; messages arrive meanwhile. */
  holdConfirms(on = true): void {
    this.#link.hold(on)
  }

  #route(message: OutgoingMessage): PublishResult {
    const bytes = Buffer.byteLength(message.payload)
    if (bytes > this.#bytesMax) {
      return { kind: 'invalid', reason: `payload of ${bytes} bytes is over the broker's limit of ${this.#bytesMax}` }
    }
    const refusal = this.#refusals.shift()
    if (refusal !== undefined) return { kind: 'refused', reason: refusal }
    const queues = this.#unroutable.has(message.topic)
      ? []
      : [...this.#queues.values()].filter((queue) => queue.takes(message.topic))
    if (queues.length === 0) return { kind: 'returned', reason: 'no queue takes this topic' }
    const full = queues.find((queue) => queue.isFull)
    if (full !== undefined) return { kind: 'refused', reason: `queue ${full.name} is full` }
    for (const queue of queues) queue.push(message)
    return { kind: 'confirmed' }
  }
}

/** Makes an in-process broker without queues: messages are unroutable until `queue()` declares one for their topic. */
export function memoryBroker(options: MemoryBrokerOptions = {}): MemoryBroker {
  return new MemoryBroker(options)
}
