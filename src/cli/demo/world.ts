/**
 * World: the services of the demo, and the small shop that runs on them.
 *
 * @module
 */

import type { Broker, Source } from '../../broker/contract.ts'
import { type MemoryBroker, memoryBroker } from '../../brokers/memory/index.ts'
import { quorumQueue, rabbitmq, rabbitmqQueue, topicExchange } from '../../brokers/rabbitmq/index.ts'
import { createOnce, type Once } from '../../once.ts'
import type { Outcome } from '../../operation/operation.ts'
import { rejected } from '../../operation/rejected.ts'
import { type PgClient, postgres } from '../../stores/postgres/index.ts'
import { bridgedBroker, bridgedSource } from './bridge.ts'
import { type Drivers, loadDrivers } from './drivers.ts'

/** What every process of the demo needs to know. */
export interface WorldSettings {
  readonly databaseUrl: string
  /** Schema of our tables and of the shop's; thrown away at the end. */
  readonly schema: string
  /** undefined = the in-process broker of the parent. */
  readonly amqpUrl: string | undefined
  /** Name of exchange and queue. */
  readonly exchange: string
  readonly queue: string
}

/** Topic of orders that somebody listens to. */
export const ORDER_CREATED = 'order.created.v1'
/** Topic that no queue is bound to. */
export const ORDER_AUDITED = 'order.audited.v1'
/** Orders above this are refused. */
export const CREDIT_LIMIT = 1_000
/** Lease of lanes in the demo, milliseconds: short, so that a killed relay is replaced while you watch. */
export const LEASE_MS = 1_500

export interface World {
  readonly once: Once<PgClient>
  readonly broker: Broker
  readonly source: Source
  readonly query: (text: string, values?: unknown[]) => Promise<Record<string, unknown>[]>
  close(): Promise<void>
}

export interface OrderRequest {
  readonly customer: string
  readonly amount: number
  readonly topic?: string | undefined
}

/** Connects to what `settings` name; in the parent, `parentBroker` is the in-process broker itself. */
export async function openWorld(settings: WorldSettings, parentBroker?: MemoryBroker): Promise<World> {
  const { pg, amqp } = await loadDrivers(settings.amqpUrl !== undefined)
  const pool = new pg.Pool({ connectionString: settings.databaseUrl, pipeline: true, max: 8 })
  const once = createOnce({ store: postgres(pool, { schema: settings.schema }) })
  return {
    once,
    ...transport(settings, amqp, parentBroker),
    query: async (text, values = []) => (await pool.query({ text, values })).rows,
    close: () => pool.end(),
  }
}

function transport(
  settings: WorldSettings,
  amqp: Drivers['amqp'],
  parentBroker: MemoryBroker | undefined,
): { broker: Broker; source: Source } {
  const { amqpUrl, exchange, queue } = settings
  if (amqpUrl === undefined || amqp === undefined) {
    return parentBroker === undefined
      ? { broker: bridgedBroker(), source: bridgedSource(queue) }
      : { broker: parentBroker, source: parentBroker.source(queue) }
  }
  const topology = [topicExchange(exchange), quorumQueue(queue, { bindings: [{ exchange, pattern: ORDER_CREATED }] })]
  const connect = () => amqp.connect(amqpUrl)
  return {
    broker: rabbitmq(connect, { exchange, topology }),
    source: rabbitmqQueue(connect, queue, { topology }),
  }
}

interface RemovingConnection {
  createChannel(): Promise<{
    deleteQueue(name: string): Promise<unknown>
    deleteExchange(name: string): Promise<unknown>
  }>
  close(): Promise<void>
}

/** Takes exchange and queues of the demo away again: the broker may be somebody's. */
export async function removeTopology({ amqpUrl, exchange, queue }: WorldSettings): Promise<void> {
  if (amqpUrl === undefined) return
  const { amqp } = await loadDrivers(true)
  const connection = (await amqp?.connect(amqpUrl)) as unknown as RemovingConnection | undefined
  const channel = await connection?.createChannel()
  for (const name of [queue, `${queue}.dead`]) await channel?.deleteQueue(name)
  await channel?.deleteExchange(exchange)
  await connection?.close()
}

/** The in-process broker with the demo's queue. */
export function demoBroker(queue: string): MemoryBroker {
  const broker = memoryBroker()
  broker.queue(queue, { topics: [ORDER_CREATED] })
  return broker
}

/** The shop's own tables. Nothing here is unique but the ids: what keeps an order single is the operation. */
export async function createShop(world: World, schema: string): Promise<void> {
  await world.query(
    `create table "${schema}".orders (id bigint generated always as identity primary key, customer text not null, amount int not null)`,
  )
  await world.query(`create table "${schema}".projection (order_id text not null, message_id text not null)`)
}

/** The main job: one order and its event, in one transaction. */
export function placeOrder(
  world: World,
  schema: string,
  key: string,
  request: OrderRequest,
): Promise<Outcome<{ orderId: string; messageId: string }, { code: string; limit: number }>> {
  return world.once.transaction(
    { scope: ['demo', 'orders.create'], key, payload: request },
    async ({ tx, outbox }) => {
      const { rows } = await tx.query({
        text: `insert into "${schema}".orders (customer, amount) values ($1, $2) returning id::text`,
        values: [request.customer, request.amount],
      })
      const orderId = String(rows[0]?.['id'])
      const messageId = await outbox.add({
        topic: request.topic ?? ORDER_CREATED,
        orderingKey: orderId,
        payload: { orderId, amount: request.amount },
      })
      if (request.amount > CREDIT_LIMIT) return rejected({ code: 'CREDIT_LIMIT', limit: CREDIT_LIMIT })
      return { orderId, messageId }
    },
    { whenInProgress: 'wait' },
  )
}
