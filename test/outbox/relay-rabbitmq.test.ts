/** The relay from a real database to a real RabbitMQ. */
import type amqp from 'amqplib'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { quorumQueue, rabbitmq, topicExchange } from '../../src/brokers/rabbitmq/index.ts'
import { socketOf } from '../conformance/rabbitmq-harness.ts'
import { amqpUrl, connect, uniqueName } from '../rabbitmq.ts'
import { type Bench, openBench, SCHEMA, until } from './relay-bench.ts'

let bench: Bench
beforeAll(async () => {
  bench = await openBench()
})
afterEach(() => bench.reset())
afterAll(() => bench.close())

/** An exchange and a queue of the test's own, connections that it can break, and what is in the queue. */
async function rabbit(patterns: readonly string[]) {
  const [exchange, queue] = [uniqueName('exchange'), uniqueName('queue')]
  const connections = new Set<amqp.ChannelModel>()
  const tracked = async () => {
    const connection = await connect()
    connections.add(connection)
    connection.on('close', () => connections.delete(connection))
    return connection
  }
  const bindings = patterns.map((pattern) => ({ exchange, pattern }))
  const topology = [topicExchange(exchange), quorumQueue(queue, { bindings })]
  const control = await connect()
  const channel = await control.createChannel()
  return {
    channel,
    exchange,
    queue,
    broker: rabbitmq(tracked, { exchange, topology, reconnect: { minMs: 10, maxMs: 100 } }),
    drop() {
      for (const connection of connections) socketOf(connection).destroy(new Error('network failure made by a test'))
    },
    /** Takes everything that is in the queue, in order. */
    async take(): Promise<amqp.GetMessage[]> {
      const taken: amqp.GetMessage[] = []
      for (;;) {
        const message = await channel.get(queue, { noAck: true })
        if (message === false) return taken
        taken.push(message)
      }
    },
    async close() {
      await channel.deleteQueue(queue)
      await channel.deleteQueue(`${queue}.dead`)
      await channel.deleteExchange(exchange)
      await control.close()
    },
  }
}

const pending = () =>
  bench.number(`select (select count(*) from ${SCHEMA}.outbox) + (select count(*) from ${SCHEMA}.outbox_parked)`)

describe.skipIf(amqpUrl === null)('relay to RabbitMQ', () => {
  test('R23, R28: messages arrive persistent, in order, with their id, type and headers', async () => {
    const to = await rabbit(['#'])
    const relay = await bench.relay({ broker: to.broker })
    const ids = await bench.commit(
      Array.from({ length: 50 }, (_, n) => ({
        topic: 'order.changed.v1',
        orderingKey: 'a',
        payload: { n },
        headers: { trace: `t${n}` },
      })),
    )
    await relay.drain(AbortSignal.timeout(20_000))
    await relay.stop()
    const taken = await to.take()
    expect(taken.map((message) => String(message.properties.messageId))).toEqual(ids)
    expect(taken.map((message) => message.content.toString())).toEqual(ids.map((_, n) => JSON.stringify({ n })))
    expect(taken[7]?.properties).toMatchObject({ deliveryMode: 2, contentType: 'application/json' })
    expect(taken[7]?.properties.headers?.['trace']).toBe('t7')
    await to.close()
  })

  test('R24, B51: among 50 routable messages the unroutable one stays pending, and leaves once a binding exists', async () => {
    const to = await rabbit(['order.#'])
    const relay = await bench.relay({ broker: to.broker })
    const good = Array.from({ length: 25 }, (_, n) => ({ topic: 'order.changed.v1', payload: n }))
    await bench.commit([...good, { topic: 'nobody.v1', payload: 'odd' }, ...good])
    await relay.drain(AbortSignal.timeout(20_000))
    await until('it was tried again', () =>
      bench.number(`select count(*) from ${SCHEMA}.outbox_parked where reason = 'returned' and attempts >= 2`),
    )
    expect(await to.take()).toHaveLength(50)
    await to.channel.bindQueue(to.queue, to.exchange, 'nobody.v1')
    await until('it leaves', async () => (await pending()) === 0)
    await relay.stop()
    expect((await to.take()).map((message) => message.content.toString())).toEqual(['"odd"'])
    await to.close()
  })

  test('R29, B49, SC32: connections lost between send and confirm lose nothing, keep order and ids, and count nothing', async () => {
    const to = await rabbit(['#'])
    const relay = await bench.relay({ broker: to.broker, batchMax: 100 })
    const ids: string[] = []
    for (let round = 0; round < 5; round += 1) {
      const messages = Array.from({ length: 200 }, (_, n) => ({
        topic: 'order.changed.v1',
        orderingKey: `k${n % 5}`,
        payload: { n: round * 200 + n },
      }))
      ids.push(...(await bench.commit(messages)))
      to.drop()
    }
    await until('all are settled', async () => (await pending()) === 0)
    await relay.stop()
    expect(bench.events.some((event) => event.kind === 'disconnected')).toBe(true)
    const taken = await to.take()
    const first = new Map<string, number>()
    for (const message of taken) {
      const id = String(message.properties.messageId)
      if (!first.has(id)) first.set(id, (JSON.parse(message.content.toString()) as { n: number }).n)
    }
    expect([...first.keys()].sort()).toEqual([...ids].sort())
    for (let key = 0; key < 5; key += 1) {
      const order = [...first.values()].filter((n) => n % 5 === key)
      expect(order).toEqual([...order].sort((one, other) => one - other))
    }
    expect(bench.events.filter((event) => event.kind === 'parked' || event.kind === 'quarantined')).toEqual([])
    await to.close()
  })
})
