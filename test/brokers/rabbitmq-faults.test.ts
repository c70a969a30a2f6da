/**
 * RabbitMQ in bad weather: a node of our own that is killed, blocked, cut off and rearranged while we use it.
 */
import amqp from 'amqplib'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { ConnectionState, Delivery, OutgoingMessage, Publisher, PublishResult } from '../../src/broker/contract.ts'
import {
  type AmqpConnection,
  quorumQueue,
  rabbitmq,
  rabbitmqQueue,
  type Topology,
  topicExchange,
} from '../../src/brokers/rabbitmq/index.ts'
import { type RabbitService, startRabbit } from '../../src/testing/services/rabbitmq.ts'
import { type TcpProxy, tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { canStartNode, eventually, uniqueName } from '../rabbitmq.ts'

const PAYLOAD_BYTES_MAX = 100_000
const reconnect = { minMs: 20, maxMs: 200 }
const within = (ms = 20_000) => AbortSignal.timeout(ms)

let node: RabbitService
let proxy: TcpProxy
/** Connects through the proxy. */
const connect = () => amqp.connect(proxy.through(node.url))
const cleanups: (() => Promise<unknown>)[] = []

interface World {
  readonly exchange: string
  readonly queue: string
  readonly topology: Topology
}

function world(options: Parameters<typeof quorumQueue>[1] = {}): World {
  const exchange = uniqueName('exchange')
  const queue = uniqueName('queue')
  const bindings = [{ exchange, pattern: 'known.#' }]
  return { exchange, queue, topology: [topicExchange(exchange), quorumQueue(queue, { bindings, ...options })] }
}

function openPublisher(
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
function message(topic = 'known.topic', payload: string | Uint8Array = '{}'): OutgoingMessage {
  numbers += 1
  const id = `m${numbers}`
  return { id, topic, payload, orderingKey: null, contentType: 'application/json', headers: {}, createdAtMs: numbers }
}

/** Publishes and collects each result; `settledTwice` must stay 0. */
function send(publisher: Publisher, messages: readonly OutgoingMessage[]) {
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
async function sendUntilSettled(
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
async function drain(queue: string): Promise<string[]> {
  const connection = await amqp.connect(node.url)
  const channel = await connection.createChannel()
  const { messageCount } = await channel.checkQueue(queue)
  const ids: string[] = []
  await channel.consume(queue, (got) => void ids.push(String(got?.properties.messageId)), { noAck: true })
  await eventually(`${messageCount} messages of ${queue}`, () => ids.length >= messageCount)
  await connection.close()
  return ids
}

describe.skipIf(!canStartNode)('RabbitMQ node of our own', () => {
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

  test('B49 SC32 R29: SIGKILL of the node with 100 unconfirmed settles each once, and resent none is missing', async () => {
    const here = world()
    // Far beyond this test's bound: what settles here was settled because the loss was noticed.
    const { publisher } = openPublisher(here, { publishTimeoutMs: 60_000 })
    await publisher.ready(within())
    await node.flush()
    const messages = Array.from({ length: 100 }, () => message())
    const sent = send(publisher, messages)
    await node.kill()
    await sent.done
    expect(sent.settledTwice()).toBe(0)
    expect(sent.kinds().every((kind) => kind === 'confirmed' || kind === 'disconnected')).toBe(true)
    expect(sent.kinds()).toContain('disconnected')
    expect(publisher.state.kind).toBe('closed')
    await node.start()
    await publisher.ready(within(30_000))
    const again = messages.filter((_, index) => sent.results[index]?.kind !== 'confirmed')
    expect(new Set(await sendUntilSettled(publisher, again))).toEqual(new Set(['confirmed']))
    const ids = new Set(await drain(here.queue))
    expect(messages.filter(({ id }) => !ids.has(id))).toEqual([])
  }, 90_000)

  test('R28: connections closed by the broker come back with topology asserted again, and the state says why', async () => {
    const here = world()
    const { publisher, states } = openPublisher(here)
    const deliveries: Delivery[] = []
    const sourceStates: ConnectionState[] = []
    const source = rabbitmqQueue(connect, here.queue, { topology: here.topology, reconnect })
    const subscription = await source.subscribe(
      {
        prefetch: 5,
        onDelivery: (delivery) => void deliveries.push(delivery),
        onState: (state) => void sourceStates.push(state),
      },
      within(),
    )
    cleanups.push(() => subscription.close())
    await publisher.ready(within())
    await node.closeConnections('operator says go away')
    const said = (list: ConnectionState[]) =>
      list.some((state) => state.kind === 'closed' && state.reason.includes('operator says go away'))
    await eventually('both know why', () => said(states) && said(sourceStates))
    await publisher.ready(within())
    await send(publisher, [message()]).done
    await eventually('a delivery', () => deliveries.length === 1)
  })

  test('B53: under a memory alarm nothing counts, the state says why, and publishing resumes on the same connection', async () => {
    const here = world()
    let opened = 0
    const { publisher, states } = openPublisher(here, {
      publishTimeoutMs: 1_500,
      connect: () => {
        opened += 1
        return connect()
      },
    })
    await publisher.ready(within())
    await node.memoryAlarm(true)
    try {
      // The broker tells of the block when the first message comes; what was sent by then runs into the time-out.
      const first = send(
        publisher,
        Array.from({ length: 3_000 }, () => message()),
      )
      await first.done
      expect(new Set(first.kinds())).toEqual(new Set(['disconnected']))
      expect(publisher.state).toMatchObject({ kind: 'blocked', reason: expect.stringContaining('memory') })
      const second = send(publisher, [message()])
      await second.done
      expect(second.results[0]).toMatchObject({ kind: 'disconnected', reason: expect.stringContaining('memory') })
      await expect(publisher.ready(AbortSignal.timeout(200))).rejects.toThrow()
    } finally {
      await node.memoryAlarm(false)
    }
    await publisher.ready(within())
    const last = message()
    const third = send(publisher, [last])
    await third.done
    expect(third.kinds()).toEqual(['confirmed'])
    expect(opened).toBe(1)
    expect(states.map(({ kind }) => kind)).toEqual(['open', 'blocked', 'open'])
    expect(await drain(here.queue)).toContain(last.id)
  })

  test('B53: closing a blocked publisher is bounded', async () => {
    const here = world()
    const { publisher } = openPublisher(here, { publishTimeoutMs: 500 })
    await publisher.ready(within())
    await node.memoryAlarm(true)
    try {
      const sent = send(publisher, [message()])
      await publisher.close()
      await sent.done
      expect(sent.kinds()).toEqual(['disconnected'])
    } finally {
      await node.memoryAlarm(false)
    }
  })

  test('B49: a network that falls silent ends every publish at its time-out, and a new connection takes over', async () => {
    const here = world()
    const { publisher } = openPublisher(here, { publishTimeoutMs: 800 })
    await publisher.ready(within())
    proxy.silence()
    const sent = send(
      publisher,
      Array.from({ length: 2_000 }, () => message()),
    )
    await sent.done
    expect(new Set(sent.kinds())).toEqual(new Set(['disconnected']))
    await publisher.ready(within())
    const again = send(publisher, [message()])
    await again.done
    expect(again.kinds()).toEqual(['confirmed'])
  })

  test('R28: while the broker refuses connections there is one attempt at a time, and ready waits for the first that works', async () => {
    const here = world()
    let attempts = 0
    let open = 0
    let openMost = 0
    proxy.refuse()
    const { publisher } = openPublisher(here, {
      connect: async () => {
        attempts += 1
        open += 1
        openMost = Math.max(openMost, open)
        try {
          return await connect()
        } finally {
          open -= 1
        }
      },
    })
    const ready = publisher.ready(within())
    await eventually('a few attempts', () => attempts >= 4)
    expect(publisher.state).toMatchObject({ kind: 'closed', reason: expect.stringContaining('ECONNREFUSED') })
    await proxy.pass()
    await ready
    expect(openMost).toBe(1)
  })

  test('B55: a connect function that never answers is given up in time, and what it brings later is closed', async () => {
    const here = world()
    let late: (() => void) | undefined
    const held = new Promise<void>((resolve) => {
      late = resolve
    })
    let calls = 0
    let closed = false
    const publisher = rabbitmq(
      async () => {
        calls += 1
        if (calls > 1) return connect()
        await held
        const connection = await connect()
        connection.on('close', () => {
          closed = true
        })
        return connection
      },
      { exchange: here.exchange, topology: here.topology, reconnect, openTimeoutMs: 300 },
    ).openPublisher({ publishTimeoutMs: 1_000 })
    cleanups.push(() => publisher.close())
    await publisher.ready(within())
    late?.()
    await eventually('the late connection is closed', () => closed)
    expect(calls).toBe(2)
  })

  test('R28: an exchange that is deleted under the publisher is declared again with its bindings', async () => {
    const here = world()
    const { publisher, states } = openPublisher(here)
    await publisher.ready(within())
    const admin = await amqp.connect(node.url)
    const channel = await admin.createChannel()
    await channel.deleteExchange(here.exchange)
    const sent = send(publisher, [message(), message()])
    await sent.done
    expect(sent.kinds()).toEqual(['disconnected', 'disconnected'])
    expect(states.some((state) => state.kind === 'closed' && state.reason.includes('no exchange'))).toBe(true)
    await publisher.ready(within())
    const again = send(publisher, [message(), message()])
    await again.done
    expect(again.kinds()).toEqual(['confirmed', 'confirmed'])
    await admin.close()
  })

  test('R24: without topology a missing exchange is told before anything is published', async () => {
    const exchange = uniqueName('nowhere')
    const publisher = rabbitmq(connect, { exchange, reconnect }).openPublisher({ publishTimeoutMs: 1_000 })
    cleanups.push(() => publisher.close())
    await eventually(
      'the reason',
      () => publisher.state.kind === 'closed' && publisher.state.reason.includes('no exchange'),
    )
    const sent = send(publisher, [message()])
    await sent.done
    expect(sent.kinds()).toEqual(['disconnected'])
  })

  test('a message over max_message_size is invalid, alone; the limit is kept in mind; nobody else is blamed', async () => {
    const here = world()
    const { publisher } = openPublisher(here)
    await publisher.ready(within())
    const large = message('known.large', Buffer.alloc(PAYLOAD_BYTES_MAX + 1, 'x'))
    const messages = [message(), message(), large, message(), message()]
    const sent = send(publisher, messages)
    await sent.done
    expect(sent.results[2]).toMatchObject({
      kind: 'invalid',
      reason: expect.stringContaining(String(PAYLOAD_BYTES_MAX)),
    })
    for (const index of [0, 1, 3, 4]) expect(['confirmed', 'disconnected']).toContain(sent.results[index]?.kind)
    await publisher.ready(within())
    const again = send(publisher, [message(), large, message()])
    await again.done
    expect(again.kinds()).toEqual(['confirmed', 'invalid', 'confirmed'])
    expect(publisher.state.kind).toBe('open')
  })

  test('a message that the broker closes the channel for, without saying which, is found alone and is invalid', async () => {
    const here = world()
    // The broker refuses a user-id that is not the connection's own: a fault we never make, so the client makes it.
    const { publisher } = openPublisher(here, {
      connect: async () => {
        const connection = await connect()
        const create = connection.createConfirmChannel.bind(connection)
        connection.createConfirmChannel = async () => {
          const channel = await create()
          const publish = channel.publish.bind(channel)
          channel.publish = (exchange, key, content, options) =>
            publish(exchange, key, content, key === 'known.poison' ? { ...options, userId: 'somebody' } : options)
          return channel
        }
        return connection
      },
    })
    await publisher.ready(within())
    const poison = message('known.poison')
    const messages = [
      ...Array.from({ length: 20 }, () => message()),
      poison,
      ...Array.from({ length: 20 }, () => message()),
    ]
    const kinds = await sendUntilSettled(publisher, messages)
    expect(kinds).toEqual(messages.map((each) => (each === poison ? 'invalid' : 'confirmed')))
  })

  test('a topic that the user may not publish counts against its own messages only', async () => {
    const here = world()
    const setUp = openPublisher(here)
    await setUp.publisher.ready(within())
    const user = uniqueName('user')
    await node.ctl('add_user', user, 'secret')
    await node.ctl('set_permissions', user, '.*', '.*', '.*')
    await node.ctl('set_topic_permissions', user, here.exchange, '^known\\.allowed$', '.*')
    const url = new URL(node.url)
    url.username = user
    url.password = 'secret'
    const { publisher } = openPublisher({ ...here, topology: [] }, { connect: () => amqp.connect(url.href) })
    await publisher.ready(within())
    const messages = ['known.allowed', 'known.forbidden', 'known.allowed'].map((topic) => message(topic))
    expect(await sendUntilSettled(publisher, messages)).toEqual(['confirmed', 'refused', 'confirmed'])
  })

  test('values that AMQP cannot carry are invalid, and the channel lives on', async () => {
    const here = world()
    const { publisher, states } = openPublisher(here)
    await publisher.ready(within())
    const bad: OutgoingMessage[] = [
      message(`known.${'x'.repeat(260)}`),
      { ...message(), id: 'ä'.repeat(200) },
      { ...message(), contentType: 'y'.repeat(256) },
      { ...message(), headers: { large: 'z'.repeat(70_000) } },
      { ...message(), headers: { ['n'.repeat(300)]: '' } },
      { ...message(), headers: { CC: 'kkkk' } },
    ]
    const sent = send(publisher, [...bad, message()])
    await sent.done
    expect(sent.kinds()).toEqual([...bad.map(() => 'invalid'), 'confirmed'])
    expect(states.map(({ kind }) => kind)).toEqual(['open'])
    for (const result of sent.results) {
      if (result?.kind === 'invalid') expect(result.reason).not.toMatch(/xxx|äää|yyy|zzz|nnn|kkk/)
    }
  })

  test('the largest headers that are let through arrive', async () => {
    const here = world()
    const { publisher } = openPublisher(here)
    await publisher.ready(within())
    const sent = send(publisher, [{ ...message(), headers: { large: 'z'.repeat(59_900) } }])
    await sent.done
    expect(sent.kinds()).toEqual(['confirmed'])
  })

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

  test('SC32: in one window some are confirmed, some returned, some refused, and the connection drops: none is taken for another', async () => {
    const here = world({ lengthMax: 1 })
    const { publisher } = openPublisher(here)
    await publisher.ready(within())
    // Fill the queue until it refuses.
    await eventually('the queue is full', async () => {
      const probe = send(publisher, [message()])
      await probe.done
      return probe.kinds()[0] === 'refused'
    })
    const messages = Array.from({ length: 60 }, (_, index) => message(index % 2 === 0 ? 'known.topic' : 'unknown'))
    const sent = send(publisher, messages)
    await sent.done
    for (const [index, kind] of sent.kinds().entries()) expect(kind).toBe(index % 2 === 0 ? 'refused' : 'returned')
    const cut = send(publisher, messages)
    proxy.cut()
    await cut.done
    for (const [index, kind] of cut.kinds().entries()) {
      expect(['disconnected', index % 2 === 0 ? 'refused' : 'returned']).toContain(kind)
    }
    expect(cut.settledTwice()).toBe(0)
  })
})
