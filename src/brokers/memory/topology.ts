/**
 * Queues and routing of the in-process broker: which queues take a topic, what a queue holds, who gets it next.
 *
 * A queue keeps its messages in the order of arrival. A message that comes back (released, or its consumer's
 * connection is gone) returns to its old place, marked redelivered.
 *
 * @module
 */

import { Buffer } from 'node:buffer'
import type { OutgoingMessage } from '../../broker/contract.ts'

/** One message in one queue. */
export interface QueuedMessage {
  /** Place in the queue. */
  readonly position: number
  readonly message: OutgoingMessage
  readonly body: Uint8Array
  /** How often it was handed to a consumer that did not settle it. */
  deliveryCount: number
}

/** Takes messages while it has room. */
export interface QueueConsumer {
  readonly hasRoom: boolean
  take(queued: QueuedMessage): void
}

export interface MemoryQueueOptions {
  /** Topics routed here, by exact name; `'#'` takes all. */
  readonly topics: readonly string[]
  /** Most messages the queue holds; further ones are refused, as with RabbitMQ's reject-publish. Default: no limit. */
  readonly lengthMax?: number | undefined
}

export class MemoryQueue {
  readonly name: string
  readonly #topics: Set<string>
  readonly #lengthMax: number
  #ready: QueuedMessage[] = []
  readonly #taken = new Set<QueuedMessage>()
  readonly #consumers: QueueConsumer[] = []
  #positions = 0
  #scheduled = false

  constructor(name: string, options: MemoryQueueOptions) {
    this.name = name
    this.#topics = new Set(options.topics)
    this.#lengthMax = options.lengthMax ?? Number.POSITIVE_INFINITY
  }

  /** Messages that nobody has settled yet: waiting ones and those a consumer holds. */
  get length(): number {
    return this.#ready.length + this.#taken.size
  }

  get isFull(): boolean {
    return this.length >= this.#lengthMax
  }

  takes(topic: string): boolean {
    return this.#topics.has(topic) || this.#topics.has('#')
  }

  /** Routes one more topic here, or stops doing so. */
  bind(topic: string, bound = true): void {
    if (bound) this.#topics.add(topic)
    else this.#topics.delete(topic)
  }

  push(message: OutgoingMessage): void {
    this.#positions += 1
    const body = Buffer.from(message.payload)
    this.#ready.push({ position: this.#positions, message, body, deliveryCount: 0 })
    this.dispatch()
  }

  addConsumer(consumer: QueueConsumer): void {
    this.#consumers.push(consumer)
    this.dispatch()
  }

  removeConsumer(consumer: QueueConsumer): void {
    const index = this.#consumers.indexOf(consumer)
    if (index >= 0) this.#consumers.splice(index, 1)
  }

  settle(queued: QueuedMessage): void {
    this.#taken.delete(queued)
    this.dispatch()
  }

  putBack(returned: readonly QueuedMessage[]): void {
    for (const queued of returned) {
      this.#taken.delete(queued)
      queued.deliveryCount += 1
    }
    this.#ready = [...returned, ...this.#ready].sort((one, other) => one.position - other.position)
    this.dispatch()
  }

  /** Hands waiting messages out, in turn, soon after the current event. */
  dispatch(): void {
    if (this.#scheduled) return
    this.#scheduled = true
    setImmediate(() => {
      this.#scheduled = false
      while (this.#ready.length > 0) {
        const consumer = this.#consumers.find((candidate) => candidate.hasRoom)
        const queued = consumer === undefined ? undefined : this.#ready.shift()
        if (consumer === undefined || queued === undefined) return
        this.removeConsumer(consumer)
        this.#consumers.push(consumer)
        this.#taken.add(queued)
        consumer.take(queued)
      }
    })
  }
}
