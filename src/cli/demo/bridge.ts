/**
 * Bridge: lets a child process use the in-process broker of its parent, for the demo on a machine without RabbitMQ.
 *
 * The parent gives back to the queue what a child held when it ended, as a broker does when a connection is lost.
 *
 * @module
 */

import type { ChildProcess } from 'node:child_process'
import type {
  Broker,
  Delivery,
  OutgoingMessage,
  PublishResult,
  Source,
  Subscription,
  SubscriptionOptions,
} from '../../broker/contract.ts'
import type { MemoryBroker } from '../../brokers/memory/index.ts'

type FromChild =
  | { readonly kind: 'publish'; readonly tag: number; readonly message: OutgoingMessage }
  | { readonly kind: 'subscribe'; readonly queue: string; readonly prefetch: number }
  | { readonly kind: 'ack'; readonly tags: readonly number[] }

type FromParent =
  | { readonly kind: 'settled'; readonly tag: number; readonly result: PublishResult }
  | {
      readonly kind: 'delivery'
      readonly tag: number
      readonly delivery: Omit<Delivery, 'body'>
      readonly body: string
    }

const PUBLISH_TIMEOUT_MS = 5_000

/** Parent's side: serves one child until it ends. */
export function serveChild(child: ChildProcess, broker: MemoryBroker): void {
  const publisher = broker.openPublisher({ publishTimeoutMs: PUBLISH_TIMEOUT_MS })
  const held = new Map<number, Delivery>()
  let subscription: Subscription | undefined
  let tags = 0
  const tell = (message: FromParent) => {
    if (child.connected) child.send(message, () => {})
  }
  child.on('message', (raw) => {
    const message = raw as FromChild
    if (message.kind === 'publish') {
      publisher.publish(message.message, (result) => tell({ kind: 'settled', tag: message.tag, result }))
    } else if (message.kind === 'ack') {
      const deliveries = message.tags.flatMap((tag) => held.get(tag) ?? [])
      for (const tag of message.tags) held.delete(tag)
      subscription?.ack(deliveries)
    } else {
      const onDelivery = (delivery: Delivery) => {
        tags += 1
        held.set(tags, delivery)
        const { body, ...rest } = delivery
        tell({ kind: 'delivery', tag: tags, delivery: rest, body: Buffer.from(body).toString('base64') })
      }
      void broker
        .source(message.queue)
        .subscribe({ prefetch: message.prefetch, onDelivery }, new AbortController().signal)
        .then((opened) => {
          subscription = opened
          if (!child.connected) void opened.close()
        })
    }
  })
  child.once('close', () => {
    void subscription?.close()
    void publisher.close()
  })
}

/** Child's side: publishes through the parent. */
export function bridgedBroker(): Broker {
  return {
    name: 'memory',
    openPublisher() {
      const waiting = new Map<number, (result: PublishResult) => void>()
      let tags = 0
      process.on('message', (raw) => {
        const message = raw as FromParent
        if (message.kind !== 'settled') return
        const settled = waiting.get(message.tag)
        waiting.delete(message.tag)
        settled?.(message.result)
      })
      return {
        state: { kind: 'open' },
        publish(message, settled) {
          tags += 1
          waiting.set(tags, settled)
          tellParent({ kind: 'publish', tag: tags, message })
        },
        ready: async () => {},
        close: async () => {},
      }
    },
  }
}

/** Child's side: reads a queue of the parent. */
export function bridgedSource(queue: string): Source {
  return {
    name: queue,
    async subscribe(options: SubscriptionOptions): Promise<Subscription> {
      const tagOf = new Map<Delivery, number>()
      process.on('message', (raw) => {
        const message = raw as FromParent
        if (message.kind !== 'delivery') return
        const delivery: Delivery = { ...message.delivery, body: Buffer.from(message.body, 'base64') }
        tagOf.set(delivery, message.tag)
        options.onDelivery(delivery)
      })
      tellParent({ kind: 'subscribe', queue, prefetch: options.prefetch })
      return {
        state: { kind: 'open' },
        ack(deliveries) {
          const tags = deliveries.flatMap((delivery) => tagOf.get(delivery) ?? [])
          tellParent({ kind: 'ack', tags })
          return tags.length
        },
        release: () => 0,
        pause: async () => {},
        resume: async () => {},
        stop: async () => {},
        close: async () => {},
      }
    },
  }
}

function tellParent(message: FromChild): void {
  process.send?.(message)
}
