/**
 * Source of the in-process broker: one queue, bounded by prefetch, settled only on the link that delivered.
 *
 * @module
 */

import type { ConnectionState, Delivery, Source, Subscription, SubscriptionOptions } from '../../broker/contract.ts'
import { Gate } from '../../broker/gate.ts'
import type { MemoryLink } from './link.ts'
import { deliveryOf } from './message.ts'
import type { MemoryQueue, QueueConsumer, QueuedMessage } from './topology.ts'

export class MemorySource implements Source {
  readonly name: string
  readonly #link: MemoryLink
  readonly #queue: MemoryQueue

  constructor(link: MemoryLink, queue: MemoryQueue) {
    this.name = queue.name
    this.#link = link
    this.#queue = queue
  }

  async subscribe(options: SubscriptionOptions, signal: AbortSignal): Promise<Subscription> {
    const gate = new Gate()
    const unwatch = this.#link.watch(() => gate.wake())
    try {
      await gate.until(() => this.#link.state.kind !== 'closed', signal)
    } finally {
      unwatch()
    }
    return new MemorySubscription(this.#link, this.#queue, options)
  }
}

class MemorySubscription implements Subscription, QueueConsumer {
  readonly #link: MemoryLink
  readonly #queue: MemoryQueue
  readonly #options: SubscriptionOptions
  readonly #unwatch: () => void
  readonly #unsettled = new Map<Delivery, QueuedMessage>()
  #flow: 'running' | 'paused' | 'stopped' | 'closed' = 'running'

  constructor(link: MemoryLink, queue: MemoryQueue, options: SubscriptionOptions) {
    this.#link = link
    this.#queue = queue
    this.#options = options
    this.#unwatch = link.watch((state) => this.#onState(state))
    queue.addConsumer(this)
  }

  get state(): ConnectionState {
    return this.#flow === 'closed' ? { kind: 'closed', reason: 'closed by its user' } : this.#link.state
  }

  get hasRoom(): boolean {
    return (
      this.#flow === 'running' && this.#link.state.kind !== 'closed' && this.#unsettled.size < this.#options.prefetch
    )
  }

  take(queued: QueuedMessage): void {
    const delivery = deliveryOf(queued, this.#queue.name)
    this.#unsettled.set(delivery, queued)
    this.#options.onDelivery(delivery)
  }

  ack(deliveries: readonly Delivery[]): number {
    const ours = this.#withdraw(deliveries)
    for (const queued of ours) this.#queue.settle(queued)
    return ours.length
  }

  release(deliveries: readonly Delivery[]): number {
    const ours = this.#withdraw(deliveries)
    this.#queue.putBack(ours)
    return ours.length
  }

  async pause(): Promise<void> {
    if (this.#flow === 'running') this.#flow = 'paused'
  }

  async resume(): Promise<void> {
    if (this.#flow !== 'paused') return
    this.#flow = 'running'
    this.#queue.dispatch()
  }

  async stop(): Promise<void> {
    if (this.#flow !== 'closed') this.#flow = 'stopped'
  }

  async close(): Promise<void> {
    if (this.#flow === 'closed') return
    this.#flow = 'closed'
    this.#unwatch()
    this.#queue.removeConsumer(this)
    this.release([...this.#unsettled.keys()])
  }

  #onState(state: ConnectionState): void {
    if (state.kind === 'closed') {
      const lost = [...this.#unsettled.keys()]
      this.release(lost)
      this.#options.onState?.(state)
      if (lost.length > 0) this.#options.onLost?.(lost)
      return
    }
    this.#options.onState?.(state)
    this.#queue.dispatch()
  }

  #withdraw(deliveries: readonly Delivery[]): QueuedMessage[] {
    const ours: QueuedMessage[] = []
    for (const delivery of deliveries) {
      const queued = this.#unsettled.get(delivery)
      if (queued !== undefined && this.#unsettled.delete(delivery)) ours.push(queued)
    }
    return ours
  }
}
