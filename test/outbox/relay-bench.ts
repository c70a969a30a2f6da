/**
 * What relay tests stand on: a real database, an in-process broker that records what arrives, relays that are stopped
 * at the end, and messages committed through the public surface.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import type { Delivery } from '../../src/broker/contract.ts'
import { type MemoryBroker, memoryBroker } from '../../src/brokers/memory/index.ts'
import { createOnce, type Once } from '../../src/index.ts'
import type { RelayEvent } from '../../src/outbox/events.ts'
import type { Message } from '../../src/outbox/message.ts'
import { createRelay, type Relay } from '../../src/outbox/relay.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import type { OutboxStore } from '../../src/store/outbox.ts'
import type { Store } from '../../src/store/store.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export const ACT = { actor: 'ops@example.com', reason: 'the cause is gone' }
export const SCHEMA = 'effectively_once'

/** Fast settings: leases and polls of tests, not of production. */
export const QUICK: Pick<RelayOptions, 'leaseMs' | 'publishTimeoutMs' | 'pollMs' | 'backoff'> = {
  leaseMs: 5_000,
  publishTimeoutMs: 1_000,
  pollMs: 50,
  backoff: { minMs: 20, maxMs: 60 },
}

export interface Bench {
  readonly url: string
  readonly pool: pg.Pool
  readonly store: Store<pg.PoolClient>
  readonly once: Once<pg.PoolClient>
  /** Commits messages in one transaction. */
  commit(messages: Message | readonly Message[]): Promise<string[]>
  /** Starts a relay that ends with the bench. */
  relay(options: Partial<RelayOptions> & Pick<RelayOptions, 'broker'>, store?: OutboxStore): Promise<Relay>
  /** What relays of this bench said, in order. */
  readonly events: RelayEvent[]
  /** One number of one statement. */
  number(sql: string, values?: unknown[]): Promise<number>
  /** Stops relays and empties the tables. */
  reset(): Promise<void>
  close(): Promise<void>
}

export async function openBench(outbox: { readonly lanes?: number } = {}): Promise<Bench> {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 16 })
  const store = postgres(pool)
  const once = createOnce({ store, outbox })
  await once.migrate()
  const relays: Relay[] = []
  const events: RelayEvent[] = []
  const stopRelays = async () => {
    await Promise.all(relays.splice(0).map((relay) => relay.stop()))
  }
  return {
    url: database.url,
    pool,
    store,
    once,
    events,
    async commit(messages) {
      const { value } = await once.transaction(
        { scope: 'relay', key: randomUUID(), payload: null },
        ({ outbox: out }) => out.add([messages].flat() as readonly Message[]),
      )
      return value ?? []
    },
    async relay(options, other = store.outbox) {
      const onEvent = (event: RelayEvent) => {
        events.push(event)
        options.onEvent?.(event)
      }
      const relay = createRelay({ ...QUICK, ...options, onEvent, store: other })
      relays.push(relay)
      await relay.start()
      return relay
    },
    async number(sql, values = []) {
      const { rows } = await pool.query(sql, values)
      return Number(Object.values(rows[0] ?? {})[0])
    },
    async reset() {
      await stopRelays()
      events.length = 0
      await pool.query(
        `truncate ${SCHEMA}.outbox, ${SCHEMA}.outbox_parked, ${SCHEMA}.outbox_quarantine, ${SCHEMA}.outbox_history, ${SCHEMA}.audit`,
      )
      await pool.query(
        `update ${SCHEMA}.outbox_lane set owner = null, lease_until = null, deaths = 0, alone_seq = null, alone_claims = '{}', wanted_by = null`,
      )
    },
    async close() {
      await stopRelays()
      await pool.end()
      await database.drop()
    },
  }
}

/** A broker with one queue that takes everything, and what arrived in it, in order. */
export interface Sink {
  readonly broker: MemoryBroker
  readonly arrived: Delivery[]
  readonly ids: () => string[]
  /** Text bodies in order of arrival. */
  readonly bodies: () => string[]
}

export async function sink(topics: readonly string[] = ['#']): Promise<Sink> {
  const broker = memoryBroker()
  broker.queue('sink', { topics })
  const arrived: Delivery[] = []
  const subscription = await broker.source('sink').subscribe(
    {
      prefetch: 1_000_000,
      onDelivery: (delivery) => {
        if (!delivery.redelivered) arrived.push(delivery)
      },
    },
    AbortSignal.timeout(5_000),
  )
  void subscription
  return {
    broker,
    arrived,
    ids: () => arrived.map((delivery) => delivery.messageId ?? ''),
    bodies: () => arrived.map((delivery) => Buffer.from(delivery.body).toString()),
  }
}

/** Waits until `condition` holds. */
export async function until(what: string, condition: () => unknown, boundMs = 20_000): Promise<void> {
  const end = performance.now() + boundMs
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`not within ${boundMs} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

/** The store, with `before` run ahead of each call of `method`: a moment that a test wants to meet. */
export function meeting(store: OutboxStore, method: keyof OutboxStore, around: Around): OutboxStore {
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      if (name !== method) return value.bind(target)
      return (...parts: unknown[]) => around(() => Reflect.apply(value, target, parts))
    },
  })
}

export type Around = (call: () => Promise<unknown>) => Promise<unknown>
