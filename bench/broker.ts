/**
 * Broker: a private RabbitMQ node, quorum queues that are made for one measurement, and publishing with confirms as a
 * careful user without us does it.
 *
 * @module
 */

import { randomBytes, randomUUID } from 'node:crypto'
import amqp from 'amqplib'
import { startRabbit } from '../src/testing/services/rabbitmq.ts'

export interface BenchBroker {
  readonly url: string
  readonly version: string
  readonly connection: amqp.ChannelModel
  /** An empty quorum queue; messages published to the default exchange under its name arrive there. */
  queue(): Promise<string>
  remove(queue: string): Promise<void>
  stop(): Promise<void>
}

/** What is published from memory. */
export interface Prepared {
  readonly id: string
  readonly key: string
  readonly body: Buffer
}

export async function startBroker(): Promise<BenchBroker> {
  const node = await startRabbit()
  try {
    const connection = await amqp.connect(node.url)
    connection.on('error', () => {})
    const admin = await connection.createChannel()
    return {
      url: node.url,
      version: String(connection.connection.serverProperties.version),
      connection,
      async queue() {
        const name = `bench.${randomBytes(6).toString('hex')}`
        await admin.assertQueue(name, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
        return name
      },
      async remove(queue) {
        await admin.deleteQueue(queue)
      },
      async stop() {
        await connection.close().catch(() => {})
        await node.stop()
      },
    }
  } catch (error) {
    await node.stop()
    throw error
  }
}

/** About 190 bytes each, a thousand keys. */
export function prepareMessages(count: number): Prepared[] {
  return Array.from({ length: count }, (_, index) => {
    const key = `k-${index % 1_000}`
    return { id: randomUUID(), key, body: Buffer.from(payloadOf(index, key)) }
  })
}

export function payloadOf(index: number, key: string): string {
  return JSON.stringify({ orderId: index, customer: key, amountCents: 4_200, note: 'x'.repeat(120) })
}

/** Messages of one batch. */
export const BATCH = 1_000
/** Unconfirmed batches: enough to keep the broker busy, few enough to be bounded. */
export const BATCHES = 3

/** Publishes persistent, mandatory messages with confirms, three batches of a thousand unconfirmed at once. */
export async function publishAll(broker: BenchBroker, queue: string, messages: readonly Prepared[]): Promise<void> {
  const channel = await broker.connection.createConfirmChannel()
  const waiting: Promise<void>[] = []
  for (let from = 0; from < messages.length; from += BATCH) {
    waiting.push(publishBatch(channel, queue, messages.slice(from, from + BATCH)))
    if (waiting.length >= BATCHES) await waiting.shift()
  }
  await Promise.all(waiting)
  await channel.close()
}

function publishBatch(channel: amqp.ConfirmChannel, queue: string, batch: readonly Prepared[]): Promise<void> {
  return new Promise((resolve, reject) => {
    let left = batch.length
    for (const { id, key, body } of batch) {
      channel.publish(
        '',
        queue,
        body,
        {
          persistent: true,
          mandatory: true,
          messageId: id,
          contentType: 'application/json',
          headers: { 'ordering-key': key },
        },
        (error: unknown) => {
          if (error !== null && error !== undefined) reject(new Error('a publish was refused', { cause: error }))
          left -= 1
          if (left === 0) resolve()
        },
      )
    }
  })
}
