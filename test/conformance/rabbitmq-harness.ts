/**
 * Conformance harness of RabbitMQ: an exchange and queues of its own for each case, faults made on the client's side
 * of the socket, so that it works on any broker.
 */
import type { Socket } from 'node:net'
import type amqp from 'amqplib'
import type { BrokerHarness, BrokerSetup } from '../../src/broker/conformance/index.ts'
import { quorumQueue, rabbitmq, rabbitmqQueue, topicExchange } from '../../src/brokers/rabbitmq/index.ts'
import { connect, uniqueName } from '../rabbitmq.ts'

/** The socket under an amqplib connection. */
export function socketOf(connection: amqp.ChannelModel): Socket {
  const stream: unknown = Reflect.get(connection.connection, 'stream')
  if (stream === null || typeof stream !== 'object' || !('destroy' in stream)) throw new Error('no socket')
  return stream as Socket
}

/** What only a node of one's own can do. */
export interface OwnNodeFaults {
  readonly connect: () => Promise<amqp.ChannelModel>
  readonly payloadBytesMax: number
  readonly block: (on: boolean) => Promise<void>
}

export function rabbitHarness(own?: OwnNodeFaults): BrokerHarness {
  const dial = own?.connect ?? connect
  return {
    lacks: (need) =>
      own === undefined && (need === 'block' || need === 'size-limit')
        ? `${need} needs a node of its own: test/brokers/rabbitmq-publisher.test.ts`
        : undefined,
    open: () => openSetup(dial, own),
  }
}

async function openSetup(dial: () => Promise<amqp.ChannelModel>, own?: OwnNodeFaults): Promise<BrokerSetup> {
  const exchange = uniqueName('exchange')
  const queues: string[] = []
  const connections = new Set<amqp.ChannelModel>()
  const tracked = async () => {
    const connection = await dial()
    connections.add(connection)
    connection.on('close', () => connections.delete(connection))
    return connection
  }
  const reconnect = { minMs: 10, maxMs: 100 }
  return {
    broker: rabbitmq(tracked, { exchange, topology: [topicExchange(exchange)], reconnect }),
    payloadBytesMax: own?.payloadBytesMax ?? Number.POSITIVE_INFINITY,
    async queue(topics, options = {}) {
      const name = uniqueName('queue')
      queues.push(name, `${name}.dead`)
      const bindings = topics.map((pattern) => ({ exchange, pattern }))
      const topology = [topicExchange(exchange), quorumQueue(name, { bindings, ...options })]
      const source = rabbitmqQueue(tracked, name, { topology, reconnect })
      // The queue exists before the case publishes.
      const declaring = await source.subscribe({ prefetch: 1, onDelivery: () => {} }, AbortSignal.timeout(15_000))
      await declaring.close()
      return source
    },
    async disconnect() {
      for (const connection of connections) socketOf(connection).destroy(new Error('network failure made by a test'))
    },
    block: own?.block ?? (() => Promise.reject(new Error('needs a node of its own'))),
    async close() {
      const connection = await dial()
      const channel = await connection.createChannel()
      for (const queue of queues) await channel.deleteQueue(queue)
      await channel.deleteExchange(exchange)
      await connection.close()
      for (const left of connections) await left.close().catch(() => {})
    },
  }
}
