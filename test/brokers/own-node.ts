/**
 * A RabbitMQ node of our own for one test file, a proxy before it, and what tests do with a publisher.
 */
import amqp from 'amqplib'
import { afterAll, afterEach, beforeAll } from 'vitest'
import type { ConnectionState, OutgoingMessage, Publisher, PublishResult } from '../../src/broker/contract.ts'
import {
  type AmqpConnection,
  type QuorumQueueOptions,
  quorumQueue,
  rabbitmq,
  type Topology,
  topicExchange,
} from '../../src/brokers/rabbitmq/index.ts'
import { type RabbitService, startRabbit } from '../../src/testing/services/rabbitmq.ts'
import { type TcpProxy, tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { eventually, uniqueName } from '../rabbitmq.ts'

export const PAYLOAD_BYTES_MAX = 100_000
export const reconnect = { minMs: 20, maxMs: 200 }
export const within = (ms: number = 20_000): AbortSignal => AbortSignal.timeout(ms)

export let node: RabbitService
export let proxy: TcpProxy
/** Connects through the proxy. */
export const connect = (): Promise<amqp.ChannelModel> => amqp.connect(proxy.through(node.url))
export const cleanups: (() => Promise<unknown>)[] = []

export interface World {
  readonly exchange: string
  readonly queue: string
  readonly topology: Topology
}

export function world(options: QuorumQueueOptions = {}): World {
  const exchange = uniqueName('exchange')
  const queue = uniqueName('queue')
  const bindings = [{ exchange, pattern: 'known.#' }]
  return { exchange, queue, topology: [topicExchange(exchange), quorumQueue(queue, { bindings, ...options })] }
}

export function openPublisher(
  { exchange, topology }: World,
  options: { publishTimeoutMs?: number; connect?: () => Promise<AmqpConnection> } = {},
): { publisher: Publisher; states: ConnectionState[] } {
  const states: ConnectionState[] = []
  const publisher = rabbitmq(options.connect ?? connect, { exchange, topology, reconnect }).openPublisher({
    publishTimeoutMs: options.publishTimeoutMs ?? 5_000,
    onState: (state) => void states.push(state),
  })
  cleanups.push(() => publisher.close())
  return { publisher, states }
}

let numbers = 0
export function message(topic = 'known.topic', payload: string | Uint8Array = '{}'): OutgoingMessage {
  numbers += 1
  const id = `m${numbers}`
  return { id, topic, payload, orderingKey: null, contentType: 'application/json', headers: {}, createdAtMs: numbers }
}

export interface Sent {
  readonly done: Promise<unknown>
  readonly results: readonly (PublishResult | undefined)[]
  kinds(): (string | undefined)[]
  settledTwice(): number
}

/** Publishes and collects each result; `settledTwice` must stay 0. */
export function send(publisher: Publisher, messages: readonly OutgoingMessage[]): Sent {
  const results: (PublishResult | undefined)[] = messages.map(() => undefined)
  const counts = messages.map(() => 0)
  const done = Promise.all(
    messages.map(
      (each, index) =>
        new Promise<void>((resolve) => {
          publisher.publish(each, (result) => {
            results[index] = result
            counts[index] = (counts[index] ?? 0) + 1
            resolve()
          })
        }),
    ),
  )
  return {
    done,
    kinds: () => results.map((result) => result?.kind),
    results,
    settledTwice: () => counts.filter((n) => n > 1).length,
  }
}

/** Publishes as a relay does: what ended as disconnected is sent again, in order, until each has a result of its own. */
export async function sendUntilSettled(
  publisher: Publisher,
  messages: readonly OutgoingMessage[],
): Promise<(string | undefined)[]> {
  const final = new Map<string, string | undefined>()
  const deadline = performance.now() + 30_000
  while (final.size < messages.length && performance.now() < deadline) {
    await publisher.ready(within())
    const open = messages.filter(({ id }) => !final.has(id))
    const sent = send(publisher, open)
    await sent.done
    for (const [index, kind] of sent.kinds().entries()) {
      const each = open[index]
      if (kind !== 'disconnected' && each !== undefined) final.set(each.id, kind)
    }
  }
  return messages.map(({ id }) => final.get(id))
}

/** Takes everything out of a queue; the ids of what was in it. */
export async function drain(queue: string): Promise<string[]> {
  const connection = await amqp.connect(node.url)
  const channel = await connection.createChannel()
  const { messageCount } = await channel.checkQueue(queue)
  const ids: string[] = []
  await channel.consume(queue, (got) => void ids.push(String(got?.properties.messageId)), { noAck: true })
  await eventually(`${messageCount} messages of ${queue}`, () => ids.length >= messageCount)
  await connection.close()
  return ids
}

/** Starts the node before the tests of the file and takes it away after them; closes what each test opened. */
export function useOwnNode(): void {
  beforeAll(async () => {
    node = await startRabbit({ settings: { max_message_size: String(PAYLOAD_BYTES_MAX) } })
    proxy = await tcpProxy({ target: { port: node.port } })
  }, 120_000)
  afterAll(async () => {
    await proxy?.close()
    await node?.stop()
  })
  afterEach(async () => {
    await proxy.pass()
    await Promise.all(cleanups.splice(0).map((close) => close()))
  })
}
