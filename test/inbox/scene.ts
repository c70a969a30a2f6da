/**
 * What consumer tests stand on: a store, an in-process broker with one queue, consumers that are stopped at the end,
 * and everything they said.
 */
import { randomUUID } from 'node:crypto'
import type { OutgoingMessage, Publisher } from '../../src/broker/contract.ts'
import { type MemoryBroker, memoryBroker } from '../../src/brokers/memory/index.ts'
import type { MemoryQueue } from '../../src/brokers/memory/topology.ts'
import { createConsumer } from '../../src/inbox/consumer.ts'
import type { ConsumerEvent } from '../../src/inbox/events.ts'
import type { Consumer, ConsumerOptions } from '../../src/inbox/options.ts'
import { outboxLimits } from '../../src/outbox/message.ts'
import type { OpenStore, StoreHarness } from '../../src/store/conformance/harness.ts'
import type { InboxStore } from '../../src/store/inbox.ts'
import { memoryHarness } from '../conformance/memory-harness.ts'
import { postgresHarness } from '../conformance/postgres-harness.ts'
import { eventually } from '../eventually.ts'

/** Fast settings: of tests, not of production. */
export const QUICK = { pollMs: 20, leaseMs: 2_000, backoff: { minMs: 5, maxMs: 20 }, stopTimeoutMs: 5_000 }

export const STORES: Readonly<Record<string, StoreHarness>> = {
  memory: memoryHarness,
  postgres: postgresHarness({ pipeline: true }),
}

export type SceneOptions = Partial<ConsumerOptions<unknown>>

export interface Scene {
  readonly opened: OpenStore<unknown>
  readonly inbox: InboxStore<unknown>
  readonly broker: MemoryBroker
  readonly queue: MemoryQueue
  readonly events: ConsumerEvent[]
  /** Events of one kind, in order. */
  told<K extends ConsumerEvent['kind']>(kind: K): Extract<ConsumerEvent, { kind: K }>[]
  /** Publishes messages; their ids. */
  publish(...messages: Partial<OutgoingMessage>[]): Promise<string[]>
  /** A consumer of the queue, not started. `handle` writes the message's id unless the options say otherwise. */
  make(options?: SceneOptions, store?: InboxStore<unknown>): Consumer
  /** The same, started. */
  consume(options?: SceneOptions, store?: InboxStore<unknown>): Promise<Consumer>
  /** How often a message was applied. */
  applied(id: string): Promise<number>
  /** Writes the message's id in the handler's transaction. */
  write(tx: unknown, id: string): Promise<void>
  /** Waits until the queue is empty: everything was acknowledged. */
  settled(): Promise<void>
  close(): Promise<void>
}

/** The store, with some of its methods wrapped. */
export function wrapped(inbox: InboxStore<unknown>, methods: Partial<InboxStore<unknown>>): InboxStore<unknown> {
  return new Proxy(inbox, {
    get(target, name) {
      const method: unknown = Reflect.get(methods, name)
      if (method !== undefined) return method
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

export async function openScene(harness: StoreHarness): Promise<Scene> {
  const opened = await harness.open()
  const broker = memoryBroker()
  const queue = broker.queue('orders', { topics: ['#'] })
  const publisher: Publisher = broker.openPublisher({ publishTimeoutMs: 5_000 })
  const consumers: Consumer[] = []
  const events: ConsumerEvent[] = []
  const scene: Scene = {
    opened,
    inbox: opened.store.inbox,
    broker,
    queue,
    events,
    told: (kind) =>
      events.filter((event): event is Extract<ConsumerEvent, { kind: typeof kind }> => event.kind === kind),
    async publish(...messages) {
      const all = messages.map((parts): OutgoingMessage => {
        return {
          id: randomUUID(),
          topic: 'order.created.v1',
          orderingKey: null,
          payload: '{}',
          contentType: 'application/json',
          headers: {},
          createdAtMs: Date.now(),
          ...parts,
        }
      })
      await Promise.all(
        all.map(
          (message) =>
            new Promise<void>((resolve, reject) => {
              publisher.publish(message, (result) => {
                if (result.kind === 'confirmed') resolve()
                else reject(new Error(result.reason))
              })
            }),
        ),
      )
      return all.map(({ id }) => id)
    },
    make(options = {}, store = opened.store.inbox) {
      const many = options.handlers !== undefined || options.handleBatch !== undefined || options.handle !== undefined
      const consumer = createConsumer<unknown>(
        {
          name: 'billing',
          source: broker.source('orders'),
          ...QUICK,
          ...(many ? {} : { handle: ({ tx, message }) => opened.write(tx, message.id) }),
          ...options,
          onEvent(event) {
            events.push(event)
            options.onEvent?.(event)
          },
        },
        { store, outbox: outboxLimits() },
      )
      consumers.push(consumer)
      return consumer
    },
    async consume(options, store) {
      const consumer = scene.make(options, store)
      await consumer.start()
      return consumer
    },
    applied: (id) => opened.count(id),
    write: (tx, id) => opened.write(tx, id),
    settled: () => eventually('everything is acknowledged', () => queue.length === 0),
    async close() {
      await Promise.all(consumers.map((consumer) => consumer.stop()))
      await publisher.close()
      await opened.close()
    },
  }
  return scene
}
