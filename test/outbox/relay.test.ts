/**
 * The relay on a real database, towards an in-process broker whose faults are chosen by the test.
 */
import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import { memoryBroker } from '../../src/brokers/memory/index.ts'
import type { Message } from '../../src/outbox/message.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { ACT, type Bench, openBench, SCHEMA, sink, until } from './relay-bench.ts'

let bench: Bench

beforeAll(async () => {
  bench = await openBench()
})
afterEach(() => bench.reset())
afterAll(() => bench.close())

/** A small generator (mulberry32), so that a run can be repeated. */
function seededRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

const pending = () =>
  bench.number(`select (select count(*) from ${SCHEMA}.outbox) + (select count(*) from ${SCHEMA}.outbox_parked)`)
const parked = (where = 'true') => bench.number(`select count(*) from ${SCHEMA}.outbox_parked where ${where}`)
const quarantined = () => bench.number(`select count(*) from ${SCHEMA}.outbox_quarantine`)

/** `count` messages of one key, numbered. */
function series(orderingKey: string, count: number, topic = 'order.changed.v1'): Message[] {
  return Array.from({ length: count }, (_, n) => ({ topic, orderingKey, payload: { key: orderingKey, n } }))
}

const bodyOf = (key: string, n: number) => JSON.stringify({ key, n })
const allOf = (key: string, count: number) => Array.from({ length: count }, (_, n) => bodyOf(key, n))

describe('what is committed is published', () => {
  test('R22, R23, B55: with the broker down work commits; afterwards its messages leave with their ids, nothing counted', async () => {
    const { broker, ids } = await sink()
    broker.outage()
    const relay = await bench.relay({ broker })
    const committed = await bench.commit(
      Array.from({ length: 500 }, (_, n) => ({ topic: 'order.created.v1', payload: { n } })),
    )
    await until('the relay says so', async () => (await relay.health()).state === 'disconnected')
    expect((await relay.health()).reason).toContain('outage')
    expect(ids()).toEqual([])
    broker.recover()
    await relay.drain(AbortSignal.timeout(15_000))
    expect(ids()).toEqual(committed)
    expect(await pending()).toBe(0)
    expect(bench.events.filter((event) => event.kind === 'parked' || event.kind === 'quarantined')).toEqual([])
  })

  test('B41, SC25, I6: messages of a work that fails are never published', async () => {
    const { broker, bodies } = await sink()
    const relay = await bench.relay({ broker })
    const boom = new Error('the work fails')
    const failing = bench.once.transaction({ scope: 'relay', key: 'b41', payload: null }, async ({ tx, outbox }) => {
      await outbox.add({ topic: 'order.created.v1', payload: 'lost' })
      await tx.query('select 1')
      throw boom
    })
    await expect(failing).rejects.toBe(boom)
    await bench.commit({ topic: 'order.created.v1', payload: 'kept' })
    await relay.drain(AbortSignal.timeout(15_000))
    expect(bodies()).toEqual(['"kept"'])
  })

  test.each([1, 3, 7])(
    'B39, R27: 20 messages of one transaction arrive in insertion order with pages of %i',
    async (batchMax) => {
      const { broker, bodies } = await sink()
      await bench.commit(series('a', 20))
      const relay = await bench.relay({ broker, batchMax })
      await relay.drain(AbortSignal.timeout(15_000))
      expect(bodies()).toEqual(allOf('a', 20))
    },
  )

  test('B46: payloads of 70 KB and 8 MiB arrive whole, text and bytes', async () => {
    const { broker, arrived } = await sink()
    const relay = await bench.relay({ broker })
    const text = 'ü'.repeat(35_000)
    const bytes = Buffer.alloc(8 * 1_048_576, 7)
    await bench.commit([
      { topic: 'big.v1', payload: text },
      { topic: 'big.v1', payload: bytes, contentType: 'application/octet-stream' },
      { topic: 'big.v1', payload: 'small' },
    ])
    await relay.drain(AbortSignal.timeout(20_000))
    expect(arrived.map(({ body }) => body.byteLength)).toEqual([70_002, bytes.byteLength, 7])
    expect(Buffer.from(arrived[0]?.body ?? []).toString()).toBe(JSON.stringify(text))
    expect(bytes.equals(arrived[1]?.body ?? Buffer.alloc(0))).toBe(true)
  })

  test('B37, SC26, I7: a message whose transaction commits late is published although later ones are gone', async () => {
    const { broker, bodies } = await sink()
    const relay = await bench.relay({ broker })
    const client = await bench.pool.connect()
    await client.query('begin')
    await bench.once.in(client).outbox.add({ topic: 'order.created.v1', payload: 'early' })
    await bench.commit({ topic: 'order.created.v1', payload: 'later' })
    await until('the later one is published and settled', async () => bodies().length === 1 && (await pending()) === 0)
    await client.query('commit')
    client.release()
    await until('the early one follows', () => bodies().length === 2)
    await relay.drain(AbortSignal.timeout(15_000))
    expect(bodies()).toEqual(['"later"', '"early"'])
  })

  test('B65, I7: under concurrent commits and rollbacks exactly what was committed is published', async () => {
    const { broker, ids } = await sink()
    const relay = await bench.relay({ broker, batchMax: 50 })
    const committed: string[] = []
    await Promise.all(
      Array.from({ length: 8 }, async (_, writer) => {
        for (let n = 0; n < 40; n += 1) {
          const client = await bench.pool.connect()
          try {
            await client.query('begin')
            const id = await bench.once.in(client).outbox.add({ topic: 'load.v1', payload: { writer, n } })
            await client.query(n % 5 === 0 ? 'rollback' : 'commit')
            if (n % 5 !== 0) committed.push(id)
          } finally {
            client.release()
          }
        }
      }),
    )
    await relay.drain(AbortSignal.timeout(20_000))
    expect([...ids()].sort()).toEqual(committed.sort())
  })
})

describe('a message that fails', () => {
  test('R24, B51, SC32: an unroutable message stays pending, the others leave, and it arrives once a queue takes it', async () => {
    const { broker, bodies, ids } = await sink(['order.changed.v1'])
    const relay = await bench.relay({ broker })
    const good = (from: number) =>
      Array.from({ length: 25 }, (_, n) => ({ topic: 'order.changed.v1', payload: from + n }))
    const committed = await bench.commit([...good(0), { topic: 'nobody.listens.v1', payload: 'odd' }, ...good(25)])
    await relay.drain(AbortSignal.timeout(15_000))
    await until('it was tried again', () => parked('attempts >= 2'))
    expect(bodies()).toHaveLength(50)
    expect(await parked(`reason = 'returned' and last_error is not null and topic = 'nobody.listens.v1'`)).toBe(1)
    expect((await relay.health()).pending?.oldestParkedMs).toBeGreaterThanOrEqual(0)
    broker.queue('sink', { topics: ['nobody.listens.v1'] })
    await until('it arrives', async () => (await pending()) === 0)
    expect([...ids()].sort()).toEqual([...committed].sort())
    expect(await quarantined()).toBe(0)
  })

  test('SC28, I8: while message 1 of a key is refused, 2 and 3 wait and other keys go on', async () => {
    const { broker, bodies } = await sink(['other.v1'])
    const relay = await bench.relay({ broker })
    await bench.commit([...series('a', 3, 'late.v1'), ...series('b', 3, 'other.v1')])
    await until('the first is tried again', () => parked('attempts >= 2'))
    await bench.commit([...series('b', 3, 'other.v1'), { topic: 'other.v1', orderingKey: 'a', payload: 'behind' }])
    await until('what follows in the key waits too', async () => (await parked()) === 4)
    expect(bodies()).toEqual([...allOf('b', 3), ...allOf('b', 3)])
    broker.queue('sink', { topics: ['late.v1'] })
    await until('the key flows again', async () => (await pending()) === 0)
    expect(bodies().slice(6)).toEqual([...allOf('a', 3), '"behind"'])
    await relay.drain(AbortSignal.timeout(5_000))
  })

  test('SC36, I8: 100 messages of one key arrive in order although many of them are refused at first', async () => {
    const { broker, bodies } = await sink()
    // After each settling, by chance, the next one or two publishes are refused.
    const random = seededRandom(36)
    broker.nackNext(1)
    const relay = await bench.relay({
      broker,
      strictOrder: true,
      backoff: { minMs: 1, maxMs: 3 },
      pollMs: 10,
      onEvent: (event) => {
        if (event.kind === 'published' && random() < 0.4) broker.nackNext(random() < 0.5 ? 1 : 2)
      },
    })
    await bench.commit(series('a', 100))
    await until('all arrive', () => bodies().length === 100, 25_000)
    await until('all are settled', async () => (await pending()) === 0)
    expect(bodies()).toEqual(allOf('a', 100))
    expect(bench.events.some((event) => event.kind === 'parked')).toBe(true)
    await relay.drain(AbortSignal.timeout(5_000))
  })

  test('B54: messages refused by a full queue wait with backoff and leave when there is room, none quarantined', async () => {
    const broker = memoryBroker()
    broker.queue('full', { topics: ['#'], lengthMax: 5 })
    const relay = await bench.relay({ broker })
    await bench.commit(Array.from({ length: 20 }, (_, n) => ({ topic: 'order.created.v1', payload: n })))
    await until('the rest is parked', async () => (await parked(`reason = 'refused'`)) === 15)
    const got: string[] = []
    const subscription = await broker.source('full').subscribe(
      {
        prefetch: 1,
        onDelivery: (delivery) => {
          got.push(delivery.messageId ?? '')
          setImmediate(() => subscription.ack([delivery]))
        },
      },
      AbortSignal.timeout(5_000),
    )
    await until('all arrive', async () => got.length === 20 && (await pending()) === 0)
    expect(new Set(got).size).toBe(20)
    expect(await quarantined()).toBe(0)
    await relay.drain(AbortSignal.timeout(5_000))
    await subscription.close()
  })

  test('B45, SC33: rows that this release cannot decode are quarantined with the reason, and the 100 others leave', async () => {
    const { broker, bodies } = await sink()
    const ids = await bench.commit(Array.from({ length: 102 }, (_, n) => ({ topic: 'order.created.v1', payload: n })))
    await bench.pool.query(`update ${SCHEMA}.outbox set encoding = 'brotli' where id = $1`, [ids[50]])
    await bench.pool.query(`update ${SCHEMA}.outbox set headers = '[1' where id = $1`, [ids[70]])
    const relay = await bench.relay({ broker })
    await relay.drain(AbortSignal.timeout(15_000))
    expect(bodies()).toHaveLength(100)
    const views = await bench.store.outbox.quarantined(10)
    expect(new Map(views.map(({ id, reason }) => [id, reason]))).toEqual(
      new Map([
        [ids[50], 'undecodable'],
        [ids[70], 'undecodable'],
      ]),
    )
    expect(views.map(({ lastError }) => lastError).join()).toContain('brotli')
    // The release that knows it is there; the operator redrives.
    await bench.pool.query(`update ${SCHEMA}.outbox_quarantine set encoding = 'text' where id = $1`, [ids[50]])
    expect(await bench.store.outbox.redrive([String(ids[50])], ACT)).toEqual([ids[50]])
    await relay.drain(AbortSignal.timeout(15_000))
    expect(bodies().at(-1)).toBe('50')
  })

  test('a message over the limit of the broker is quarantined at once, and its key goes on', async () => {
    const broker = memoryBroker({ messageBytesMax: 1_000 })
    broker.queue('sink', { topics: ['#'] })
    const relay = await bench.relay({ broker })
    const [large] = await bench.commit([
      { topic: 'order.created.v1', orderingKey: 'a', payload: 'x'.repeat(2_000) },
      ...series('a', 2),
    ])
    await relay.drain(AbortSignal.timeout(15_000))
    const [view] = await bench.store.outbox.quarantined(10)
    expect(view).toMatchObject({ id: large, reason: 'invalid', stopsKey: false })
    expect(view?.lastError).toMatch(/2002 bytes.*1000/)
    expect(broker.queue('sink', { topics: [] }).length).toBe(2)
  })

  test('SC28, SC29, R45, I8: where quarantine stops the key, later ones wait until the message is redriven, then follow it', async () => {
    const { broker, bodies, ids } = await sink()
    const committed = await bench.commit(series('a', 4))
    await bench.pool.query(`update ${SCHEMA}.outbox set headers = '?' where id = $1`, [committed[1]])
    const relay = await bench.relay({ broker, stopKeyOnQuarantine: ['order.changed.v1'] })
    await until('the rest of the key waits', async () => (await parked()) === 2 && (await quarantined()) === 1)
    await relay.drain(AbortSignal.timeout(5_000))
    expect(bodies()).toEqual([bodyOf('a', 0)])
    await bench.pool.query(`update ${SCHEMA}.outbox_quarantine set headers = '{}'`)
    await bench.store.outbox.redrive([String(committed[1])], ACT)
    await until('the key flows again', async () => (await pending()) === 0)
    expect(bodies()).toEqual(allOf('a', 4))
    expect(ids()).toEqual(committed)
    expect(await bench.number(`select count(*) from ${SCHEMA}.audit where act = 'outbox.redrive'`)).toBe(1)
  })

  test('B62, I8: with event 1 of a key failing twice, two relays and one of them stopping, nothing overtakes it', async () => {
    const { broker, bodies } = await sink()
    broker.unroutable('order.changed.v1')
    const first = await bench.relay({ broker })
    const second = await bench.relay({ broker })
    await bench.commit([...series('a', 5), ...series('b', 5, 'other.v1')])
    await until('event 1 failed twice', () => parked('attempts >= 2'))
    await first.stop()
    broker.unroutable('order.changed.v1', false)
    await until('everything is published', async () => (await pending()) === 0)
    expect(bodies().filter((body) => body.includes('"a"'))).toEqual(allOf('a', 5))
    expect(bodies().filter((body) => body.includes('"b"'))).toEqual(allOf('b', 5))
    await second.drain(AbortSignal.timeout(5_000))
  })
})

describe('several relays, and relays that go', () => {
  test('B60, SC30: four relays started together on 10,000 rows publish each exactly once', async () => {
    await bench.pool.query(
      `insert into ${SCHEMA}.outbox (lane, id, topic, ordering_key, payload, encoding, content_type, headers)
       select 0, gen_random_uuid(), 'bulk.v1', 'k' || g % 50, g::text, 'text', 'application/json', '{}' from generate_series(1, 10000) g`,
    )
    const { broker, ids, bodies } = await sink()
    const relays = await Promise.all(Array.from({ length: 4 }, () => bench.relay({ broker })))
    await relays[0]?.drain(AbortSignal.timeout(25_000))
    expect(ids()).toHaveLength(10_000)
    expect(new Set(ids()).size).toBe(10_000)
    expect(bodies().map(Number)).toEqual(Array.from({ length: 10_000 }, (_, n) => n + 1))
  })

  test('SC33, R28: stop waits for the confirms of what is in flight, settles it and hands the lane back', async () => {
    const { broker, ids } = await sink()
    broker.holdConfirms()
    const relay = await bench.relay({ broker, windowMax: 10, batchMax: 10 })
    const committed = await bench.commit(
      Array.from({ length: 30 }, (_, n) => ({ topic: 'order.created.v1', payload: n })),
    )
    await until('the window is full', () => ids().length === 10)
    const stopped = relay.stop()
    expect((await relay.health()).state).toBe('stopping')
    broker.holdConfirms(false)
    await stopped
    expect(await pending()).toBe(20)
    expect((await bench.store.outbox.lanes())[0]?.owner).toBeNull()
    const next = await bench.relay({ broker })
    await next.drain(AbortSignal.timeout(15_000))
    expect(ids()).toEqual(committed)
    expect(bench.events.filter((event) => event.kind === 'laneAcquired').map((event) => event.deaths)).toEqual([0, 0])
  })

  test('SC33: stop does not wait for ever for confirms that never come', async () => {
    const { broker, ids } = await sink()
    broker.holdConfirms()
    const relay = await bench.relay({ broker, stopTimeoutMs: 50 })
    const [id] = await bench.commit([{ topic: 'order.created.v1', payload: 1 }])
    await until('it is in flight', () => ids().length === 1)
    await relay.stop()
    expect(await pending()).toBe(1)
    broker.holdConfirms(false)
    const next = await bench.relay({ broker })
    await next.drain(AbortSignal.timeout(15_000))
    expect(ids()).toEqual([id, id])
  })

  test('start, stop and start again: each once, however often called', async () => {
    const { broker, bodies } = await sink()
    const relay = await bench.relay({ broker })
    await relay.start()
    await Promise.all([relay.stop(), relay.stop()])
    expect((await relay.health()).state).toBe('stopped')
    await bench.commit({ topic: 'order.created.v1', payload: 1 })
    expect(bodies()).toEqual([])
    await relay.start()
    await relay.drain(AbortSignal.timeout(15_000))
    expect(bodies()).toEqual(['1'])
    expect((await relay.health()).state).toBe('running')
  })

  test('R25, I5: a relay whose lane was taken over publishes no more of it, and its late answers change nothing', async () => {
    const { broker, ids } = await sink()
    broker.holdConfirms()
    await bench.relay({ broker, windowMax: 5, batchMax: 5 })
    const committed = await bench.commit(series('a', 20))
    await until('the window is full', () => ids().length === 5)
    await bench.pool.query(
      `update ${SCHEMA}.outbox_lane set owner = gen_random_uuid(), fence = fence + 1, lease_until = now() + interval '1 hour'`,
    )
    broker.holdConfirms(false)
    await until('it knows', () => bench.events.some((event) => event.kind === 'laneLost'))
    // What it sent before it could know is at most a window more; the rest is left to whoever gets the lane.
    const sent = ids().length
    expect(sent).toBeLessThanOrEqual(10)
    expect(await pending()).toBe(20)
    await bench.pool.query(`update ${SCHEMA}.outbox_lane set owner = null, lease_until = null`)
    const next = await bench.relay({ broker })
    await next.drain(AbortSignal.timeout(15_000))
    expect(ids().slice(sent)).toEqual(committed)
  })

  test('SC57, R14, I14: a process whose clock is an hour wrong neither takes a held lane nor loses its own', async () => {
    const { broker, bodies } = await sink()
    const relay = await bench.relay({ broker })
    await until('it has the lane', async () => (await relay.health()).lanes.length === 1)
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 3_600_000 })
    try {
      const other = await bench.relay({ broker })
      await bench.commit(series('a', 10))
      await relay.drain(AbortSignal.timeout(15_000))
      expect((await other.health()).lanes).toEqual([])
      expect((await relay.health()).lanes).toEqual([0])
      expect(bodies()).toEqual(allOf('a', 10))
    } finally {
      vi.useRealTimers()
    }
  })

  test('SC8: a lane whose acquisition was answered to nobody is free again when that lease is over', async () => {
    const { broker, bodies } = await sink()
    const proxy = await tcpProxy({ target: { port: Number(new URL(bench.url).port) } })
    const led = new pg.Pool({ connectionString: proxy.through(bench.url), max: 6 })
    led.on('error', () => {})
    const lost = proxy.swallow((packet) => packet.includes('acquire'))
    const relay = await bench.relay({ broker, leaseMs: 1_500, publishTimeoutMs: 400 }, postgres(led).outbox)
    await bench.commit({ topic: 'order.created.v1', payload: 1 })
    await lost.met
    lost.disarm()
    const owned = `select count(*) from ${SCHEMA}.outbox_lane where owner is not null and lease_until > clock_timestamp()`
    expect(bench.events.some((event) => event.kind === 'laneAcquired')).toBe(false)
    await until('it arrives', () => bodies().length === 1)
    expect(await bench.number(owned)).toBe(1)
    await relay.drain(AbortSignal.timeout(10_000))
    await relay.stop()
    await led.end()
    await proxy.close()
  })

  test('B63: without a relay, health tells the age of the oldest message and which lanes nobody serves', async () => {
    await bench.commit({ topic: 'order.created.v1', payload: 1 })
    await bench.pool.query(`update ${SCHEMA}.outbox set created_at = created_at - interval '9 days'`)
    const view = await bench.store.outbox.pending()
    expect(view).toMatchObject({ relayAlive: false, lanesWithoutOwner: [0] })
    expect(view.oldestMs).toBeGreaterThan(8 * 86_400_000)
  })

  test('R26: while the broker does not answer, no transaction is open and almost no connection is used', async () => {
    const { broker, ids } = await sink()
    broker.holdConfirms()
    const relay = await bench.relay({ broker, publishTimeoutMs: 1_600, leaseMs: 5_000 })
    await bench.commit(Array.from({ length: 50 }, (_, n) => ({ topic: 'order.created.v1', payload: n })))
    await until('all are in flight', () => ids().length >= 50)
    const inTransaction = await bench.number(
      `select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`,
    )
    expect(inTransaction).toBe(0)
    // One listens.
    expect(bench.pool.totalCount - bench.pool.idleCount).toBeLessThanOrEqual(2)
    broker.holdConfirms(false)
    await relay.drain(AbortSignal.timeout(15_000))
  })
})
