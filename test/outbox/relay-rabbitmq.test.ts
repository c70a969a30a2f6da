/** The relay from a real database to a real RabbitMQ. */
import type amqp from 'amqplib'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { quorumQueue, rabbitmq, rabbitmqQueue, topicExchange } from '../../src/brokers/rabbitmq/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
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
async function rabbit(patterns: readonly string[], lengthMax?: number) {
  const [exchange, queue] = [uniqueName('exchange'), uniqueName('queue')]
  const connections = new Set<amqp.ChannelModel>()
  const tracked = async () => {
    const connection = await connect()
    connections.add(connection)
    connection.on('close', () => connections.delete(connection))
    return connection
  }
  const bindings = patterns.map((pattern) => ({ exchange, pattern }))
  const topology = [topicExchange(exchange), quorumQueue(queue, { bindings, lengthMax })]
  const control = await connect()
  const channel = await control.createChannel()
  return {
    channel,
    exchange,
    queue,
    topology,
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

  test('B54, SC32: what a full queue refuses waits with backoff and leaves when there is room, none quarantined', async () => {
    const to = await rabbit(['#'], 5)
    const relay = await bench.relay({ broker: to.broker })
    const numbered = (from: number, to: number) =>
      Array.from({ length: to - from }, (_, n) => ({ topic: 'order.created.v1', payload: from + n }))
    // A quorum queue looks at its length after the fact: it is full from the next message on.
    const ids = await bench.commit(numbered(0, 6))
    await relay.drain(AbortSignal.timeout(10_000))
    ids.push(...(await bench.commit(numbered(6, 26))))
    await until('the rest is parked and was tried again', () =>
      bench.number(`select count(*) from ${SCHEMA}.outbox_parked where reason = 'refused' and attempts >= 2`),
    )
    const taken: string[] = []
    await until('all arrive', async () => {
      taken.push(...(await to.take()).map((message) => String(message.properties.messageId)))
      return taken.length >= ids.length && (await pending()) === 0
    })
    expect(taken.toSorted((a, b) => a.localeCompare(b))).toEqual(ids.toSorted((a, b) => a.localeCompare(b)))
    expect(await bench.number(`select count(*) from ${SCHEMA}.outbox_quarantine`)).toBe(0)
    expect((await relay.health()).pending).toMatchObject({ oldestMs: null })
    await relay.stop()
    await to.close()
  })

  test('B66, R23, SC34: with the database cut off between confirm and mark, the same bytes are sent again and applied once', async () => {
    const to = await rabbit(['#'])
    const proxy = await tcpProxy({ target: { port: Number(new URL(bench.url).port) } })
    const led = new pg.Pool({ connectionString: proxy.through(bench.url), max: 6, connectionTimeoutMillis: 1_000 })
    led.on('error', () => {})
    // The statement's text and its name both tell.
    const cut = proxy.cutAt((packet) => packet.includes('settle'))
    void cut.met.then(() => {
      proxy.refuse()
      proxy.cut()
    })
    const relay = await bench.relay({ broker: to.broker, leaseMs: 1_500, publishTimeoutMs: 400 }, postgres(led).outbox)
    const ids = await bench.commit(
      Array.from({ length: 10 }, (_, n) => ({
        topic: 'order.created.v1',
        payload: { n },
        headers: { trace: `t${n}` },
      })),
    )
    await cut.met
    expect(await pending()).toBe(10)
    // Longer than its lease away, so the lane is lost with what was confirmed.
    await until('its lane is lost', () => bench.events.some((event) => event.kind === 'laneLost'))
    await proxy.pass()
    await until('all are marked', async () => (await pending()) === 0)
    await relay.stop()

    const taken = await to.take()
    const copies = new Map<string, Set<string>>()
    for (const { content, properties, fields } of taken) {
      const id = String(properties.messageId)
      const copy = JSON.stringify([properties, fields.routingKey, content.toString()])
      copies.set(id, (copies.get(id) ?? new Set()).add(copy))
    }
    expect([...copies.keys()]).toEqual(ids)
    expect([...copies.values()].map((different) => different.size)).toEqual(ids.map(() => 1))
    expect(taken.length).toBeGreaterThan(ids.length)
    for (const { content, properties } of taken) to.channel.publish(to.exchange, 'again', content, properties)
    await bench.pool.query('create table applied (id text not null)')
    const settled: string[] = []
    const consumer = bench.once.consumer({
      name: to.queue,
      source: rabbitmqQueue(connect, to.queue),
      handle: ({ tx, message }) => tx.query('insert into applied (id) values ($1)', [message.id]),
      onEvent: (event) => void (event.kind === 'applied' || event.kind === 'duplicate' ? settled.push(event.id) : 0),
    })
    await consumer.start()
    await until('all deliveries are settled', () => settled.length === taken.length)
    await consumer.stop()
    const { rows } = await bench.pool.query('select id from applied')
    expect(new Set(rows.map(({ id }) => String(id)))).toEqual(new Set(ids))
    expect(rows).toHaveLength(ids.length)
    await led.end()
    await proxy.close()
    await to.close()
  })

  test('B63: relays that reach no broker leave the lane free, and health tells the age of what waits and that nobody sends it', async () => {
    await bench.commit({ topic: 'order.created.v1', payload: 1 })
    await bench.pool.query(`update ${SCHEMA}.outbox set created_at = created_at - interval '9 days'`)
    const away = rabbitmq(() => Promise.reject(new Error('connection refused')), { exchange: 'events' })
    const [one, other] = [await bench.relay({ broker: away }), await bench.relay({ broker: away })]
    await until('both say that they cannot', async () =>
      (await Promise.all([one.health(), other.health()])).every(({ state }) => state === 'disconnected'),
    )
    for (const relay of [one, other]) {
      const health = await relay.health()
      expect(health).toMatchObject({ lanes: [], pending: { relayAlive: false, lanesWithoutOwner: [0] } })
      expect(health.reason).toContain('connection refused')
      expect(health.pending?.oldestMs).toBeGreaterThan(8 * 86_400_000)
    }
    await one.stop()
    expect(await one.health()).toMatchObject({ state: 'stopped', pending: { relayAlive: false } })
    // A consumer says so too, and goes on by itself.
    const to = await rabbit(['#'])
    let isAway = true
    const source = rabbitmqQueue(
      () => (isAway ? Promise.reject(new Error('connection refused')) : connect()),
      to.queue,
      { topology: to.topology, reconnect: { minMs: 10, maxMs: 50 } },
    )
    const consumer = bench.once.consumer({ name: 'away', source, handle: () => {} })
    const started = consumer.start()
    await until('it says that it cannot', () => consumer.health().state !== 'idle')
    expect(consumer.health().state).not.toBe('running')
    isAway = false
    await started
    expect(consumer.health()).toMatchObject({ state: 'running', reason: undefined })
    await consumer.stop()
    await to.close()
  })
})
