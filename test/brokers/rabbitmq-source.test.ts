/**
 * RabbitMQ source in bad weather: ack limit, cancelled consumers, queues that are gone or lose messages.
 */
import amqp from 'amqplib'
import { describe, expect, test } from 'vitest'
import type { ConnectionState, Delivery } from '../../src/broker/contract.ts'
import { quorumQueue, rabbitmqQueue } from '../../src/brokers/rabbitmq/index.ts'
import { canStartNode, eventually, uniqueName } from '../rabbitmq.ts'
import {
  cleanups,
  connect,
  drain,
  message,
  node,
  openPublisher,
  reconnect,
  send,
  useOwnNode,
  within,
  world,
} from './own-node.ts'

describe.skipIf(!canStartNode)('RabbitMQ node of our own', () => {
  useOwnNode()

  test("B69: the broker's ack limit closes the channel, the consumer subscribes again, and the state names the limit", async () => {
    await node.ctl(
      'eval',
      'application:set_env(rabbit, consumer_timeout, 800), application:set_env(rabbit, channel_tick_interval, 200).',
    )
    try {
      const here = world()
      const { publisher } = openPublisher(here)
      await publisher.ready(within())
      const deliveries: Delivery[] = []
      const lost: Delivery[] = []
      const source = rabbitmqQueue(connect, here.queue, { topology: here.topology, reconnect })
      const subscription = await source.subscribe(
        {
          prefetch: 5,
          onDelivery: (delivery) => void deliveries.push(delivery),
          onLost: (gone) => void lost.push(...gone),
        },
        within(),
      )
      cleanups.push(() => subscription.close())
      const one = message()
      await send(publisher, [one]).done
      await eventually('the first delivery', () => deliveries.length === 1)
      await eventually('it is lost and comes again', () => lost.length === 1 && deliveries.length === 2)
      const [first, again] = deliveries
      expect(lost).toEqual([first])
      expect(again).toMatchObject({ messageId: one.id, redelivered: true, deliveryCount: 1 })
      await eventually('open again', () => subscription.state.kind === 'open')
      expect(subscription.state).toMatchObject({ warning: expect.stringContaining('800 ms') })
      expect(subscription.ack(first === undefined ? [] : [first])).toBe(0)
      expect(subscription.ack(again === undefined ? [] : [again])).toBe(1)
    } finally {
      await node.ctl(
        'eval',
        'application:set_env(rabbit, consumer_timeout, 1800000), application:set_env(rabbit, channel_tick_interval, 60000).',
      )
    }
  })

  test('R28: a queue that is deleted under its consumer is declared again and consumed', async () => {
    const here = world()
    const { publisher } = openPublisher(here)
    await publisher.ready(within())
    const deliveries: Delivery[] = []
    const states: ConnectionState[] = []
    const source = rabbitmqQueue(connect, here.queue, { topology: here.topology, reconnect })
    const subscription = await source.subscribe(
      {
        prefetch: 5,
        onDelivery: (delivery) => void deliveries.push(delivery),
        onState: (state) => void states.push(state),
      },
      within(),
    )
    cleanups.push(() => subscription.close())
    const admin = await amqp.connect(node.url)
    const channel = await admin.createChannel()
    await channel.deleteQueue(here.queue)
    await eventually('the loss and the recovery', () => states.at(-1)?.kind === 'open' && states.length >= 3)
    expect(states.some((state) => state.kind === 'closed' && state.reason.includes('cancelled'))).toBe(true)
    await send(publisher, [message()]).done
    await eventually('a delivery', () => deliveries.length === 1)
    await admin.close()
  })

  test('a queue that is not there is told as the reason, and consumed once somebody declares it', async () => {
    const queue = uniqueName('later')
    const source = rabbitmqQueue(connect, queue, { reconnect })
    await expect(source.subscribe({ prefetch: 1, onDelivery: () => {} }, AbortSignal.timeout(500))).rejects.toThrow()
    const states: ConnectionState[] = []
    const subscribing = source.subscribe(
      { prefetch: 1, onDelivery: () => {}, onState: (state) => void states.push(state) },
      within(),
    )
    await eventually('the reason', () =>
      states.some((state) => state.kind === 'closed' && state.reason.includes('no queue')),
    )
    const admin = await amqp.connect(node.url)
    await (await admin.createChannel()).assertQueue(queue, { durable: true })
    const subscription = await subscribing
    expect(subscription.state.kind).toBe('open')
    await subscription.close()
    await admin.close()
  })

  test('B76: a queue that exists without dead letters refuses our declaration, and the state says so', async () => {
    const queue = uniqueName('bare')
    const admin = await amqp.connect(node.url)
    await (await admin.createChannel()).assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
    const source = rabbitmqQueue(connect, queue, { topology: [quorumQueue(queue)], reconnect })
    const states: ConnectionState[] = []
    await expect(
      source.subscribe(
        { prefetch: 1, onDelivery: () => {}, onState: (state) => void states.push(state) },
        AbortSignal.timeout(1_000),
      ),
    ).rejects.toThrow()
    expect(states.some((state) => state.kind === 'closed' && /inequivalent arg/.test(state.reason))).toBe(true)
    await admin.close()
  })

  test('B76: a consumer that dies 25 times with prefetch 50 loses no message: the broker gives up into the dead letters', async () => {
    const here = world({ deliveryLimit: 20 })
    const { publisher } = openPublisher(here)
    await publisher.ready(within())
    const messages = Array.from({ length: 50 }, () => message())
    await send(publisher, messages).done
    const admin = await amqp.connect(node.url)
    const look = await admin.createChannel()
    for (let death = 0; death < 25; death += 1) {
      const connection = await amqp.connect(node.url)
      const channel = await connection.createChannel()
      await channel.prefetch(50)
      let seen = 0
      await channel.consume(here.queue, () => {
        seen += 1
      })
      const empty = async () => (await look.checkQueue(here.queue)).messageCount === 0
      await eventually('deliveries, or all given up', async () => seen > 0 || empty())
      await connection.close()
    }
    await admin.close()
    const kept = new Set<string>()
    await eventually('every message in the queue or its dead letters', async () => {
      for (const id of [...(await drain(here.queue)), ...(await drain(`${here.queue}.dead`))]) kept.add(id)
      return messages.every(({ id }) => kept.has(id))
    })
  }, 60_000)
})
