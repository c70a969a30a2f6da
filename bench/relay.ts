/**
 * Relay: a full outbox to a quorum queue with confirms, against publishing the same messages from memory.
 *
 * @module
 */

import { setTimeout as sleep } from 'node:timers/promises'
import amqp from 'amqplib'
import type pg from 'pg'
import type { PublishResult } from '../src/broker/contract.ts'
import type { Once } from '../src/once.ts'
import type { RelayEvent } from '../src/outbox/events.ts'
import { BATCH, BATCHES, type BenchBroker, type Prepared, prepareMessages, publishAll, startBroker } from './broker.ts'
import { startChild } from './children.ts'
import { type BenchDatabase, startDatabase } from './database.ts'
import { median, quartiles } from './paired.ts'
import { type Result, type Say, valueResult } from './report.ts'
import { brokers, core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

const HISTORY_ROWS = 1_000_000
const IDLE_SAMPLES = 60
/** Measured when it is asked for: it is about a part of the relay. */
const PUBLISHER = 'relay-publisher'
const NO_HEADERS = {}

interface Bench {
  readonly database: BenchDatabase
  readonly broker: BenchBroker
  readonly pool: pg.Pool
  readonly once: Once<pg.PoolClient>
}

export async function relaySuite(options: SuiteOptions): Promise<SuiteResult> {
  const { say, only } = options
  const database = await startDatabase()
  let broker: BenchBroker | undefined
  try {
    broker = await startBroker()
    const pool = database.pool({ pipeline: true })
    const once = core.createOnce({ store: stores.postgres(pool) })
    await once.migrate()
    const bench: Bench = { database, broker, pool, once }
    const results: Result[] = []
    const wanted = (name: string) => only === undefined || only === name
    if (wanted('relay-idle-p50')) results.push(...(await idle(bench, say)))
    if (wanted('relay-rss')) results.push(await memory(bench, options))
    results.push(...(await backlog(bench, options)))
    const versions = { postgresql: database.version, rabbitmq: broker.version }
    return { durable: database.durable, versions, results }
  } finally {
    await broker?.stop()
    await database.stop()
  }
}

/** The backlog figures share the baseline of their repetition. */
async function backlog(bench: Bench, options: SuiteOptions): Promise<Result[]> {
  const { say, pairs = 3, messages: count = 100_000, only } = options
  const messages = prepareMessages(count)
  const variants = [
    { name: 'relay-rabbitmq', limit: 0.75, history: false, writer: false },
    { name: 'relay-history', limit: 0.68, history: true, writer: false },
    { name: 'relay-open-writer', limit: undefined, history: false, writer: true },
    { name: PUBLISHER, limit: 0.95, history: false, writer: false },
  ].filter(({ name }) => (only === undefined ? name !== PUBLISHER : only === name))
  if (variants.length === 0) return []
  if (variants.some(({ history }) => history)) await fillHistory(bench)
  await fromMemory(bench, messages.slice(0, Math.ceil(count / 10)))
  const memory: number[] = []
  const control: number[] = []
  const rates = new Map<string, number[]>(variants.map(({ name }) => [name, []]))
  for (let repetition = 0; repetition < pairs; repetition++) {
    const order = repetition % 2 === 0 ? variants : [...variants].reverse()
    const before = await fromMemory(bench, messages)
    for (const variant of order) {
      const rate =
        variant.name === PUBLISHER
          ? await throughPublisher(bench, messages)
          : await throughRelay(bench, messages, variant)
      rates.get(variant.name)?.push(rate)
      say(`  ${variant.name}: ${Math.round(rate)}/s`)
    }
    const after = await fromMemory(bench, messages)
    say(`  from memory: ${Math.round(before)}/s and ${Math.round(after)}/s`)
    memory.push((before + after) / 2)
    control.push(after / before)
  }
  return variants.map(({ name, limit }) => {
    const own = rates.get(name) ?? []
    const ratios = own.map((rate, index) => rate / (memory[index] ?? rate))
    const ratio = median(ratios)
    return valueResult(
      {
        name,
        value: median(own),
        unit: 'messages/s',
        direction: 'higher',
        baseline: median(memory),
        ratio,
        quartiles: quartiles(ratios),
        pairs,
        controlRatio: median(control),
        ...(limit === undefined ? {} : { limit, ok: ratio >= limit }),
      },
      say,
    )
  })
}

async function fromMemory({ broker }: Bench, messages: readonly Prepared[]): Promise<number> {
  const queue = await broker.queue()
  const startedAt = performance.now()
  await publishAll(broker, queue, messages)
  const seconds = (performance.now() - startedAt) / 1_000
  await broker.remove(queue)
  return messages.length / seconds
}

/** The relay's publisher with the same messages from memory, as many unconfirmed: its cost beside the client it uses. */
async function throughPublisher({ broker }: Bench, messages: readonly Prepared[]): Promise<number> {
  const queue = await broker.queue()
  const ours = brokers.rabbitmq(() => amqp.connect(broker.url), { exchange: '' })
  const publisher = ours.openPublisher({ publishTimeoutMs: 10_000 })
  await publisher.ready(AbortSignal.timeout(10_000))
  const createdAtMs = Date.now()
  const startedAt = performance.now()
  await new Promise<void>((resolve, reject) => {
    let sent = 0
    let left = messages.length
    const send = () => {
      for (const { id, key, body } of messages.slice(sent, sent + BATCH)) {
        publisher.publish(
          {
            id,
            topic: queue,
            orderingKey: key,
            payload: body,
            contentType: 'application/json',
            headers: NO_HEADERS,
            createdAtMs,
          },
          settled,
        )
      }
      sent += BATCH
    }
    const settled = ({ kind }: PublishResult) => {
      if (kind !== 'confirmed') reject(new Error(`a message was ${kind}`))
      left -= 1
      if (left === 0) resolve()
      else if (left % BATCH === 0) send()
    }
    for (let batch = 0; batch < BATCHES; batch++) send()
  })
  const seconds = (performance.now() - startedAt) / 1_000
  await publisher.close()
  await broker.remove(queue)
  return messages.length / seconds
}

async function throughRelay(
  bench: Bench,
  messages: readonly Prepared[],
  { history, writer }: { readonly history: boolean; readonly writer: boolean },
): Promise<number> {
  const queue = await bench.broker.queue()
  await bench.pool.query('vacuum analyze effectively_once.outbox')
  await bench.database.settle()
  const open = writer ? await openWriter(bench) : undefined
  let published = 0
  let done: () => void = () => {}
  const all = new Promise<void>((resolve) => {
    done = resolve
  })
  const relay = bench.once.relay({
    broker: brokers.rabbitmq(() => amqp.connect(bench.broker.url), { exchange: '' }),
    history,
    onEvent: (event: RelayEvent) => {
      if (event.kind === 'published') published += event.count
      if (published >= messages.length) done()
    },
  })
  await relay.start()
  try {
    await fillOutbox(bench, queue, messages)
    const startedAt = performance.now()
    bench.once.wake()
    await all
    const seconds = (performance.now() - startedAt) / 1_000
    return messages.length / seconds
  } finally {
    await relay.stop()
    await open?.()
    await bench.broker.remove(queue)
  }
}

/** One statement, hence visible all at once. */
async function fillOutbox({ pool }: Bench, queue: string, messages: readonly Prepared[]): Promise<void> {
  await pool.query(
    `insert into effectively_once.outbox (lane, id, topic, ordering_key, payload, encoding, content_type, headers)
     select 0, m.id, $1, m.key, m.body, 'text', 'application/json', '{}'
     from unnest($2::uuid[], $3::text[], $4::text[]) as m(id, key, body)`,
    [
      queue,
      messages.map((message) => message.id),
      messages.map((message) => message.key),
      messages.map((message) => message.body.toString()),
    ],
  )
}

async function fillHistory({ pool, database }: Bench): Promise<void> {
  await pool.query(
    `insert into effectively_once.outbox_history
       (lane, seq, id, topic, ordering_key, payload, encoding, content_type, headers, created_at)
     select 0, -n, gen_random_uuid(), 'order.created.v1', 'k-' || n % 1000, repeat('x', 190), 'text',
       'application/json', '{}', clock_timestamp() from generate_series(1, $1::int) n`,
    [HISTORY_ROWS],
  )
  await pool.query('vacuum analyze effectively_once.outbox_history')
  await database.settle()
}

/** A transaction that has written and does not end: it holds the horizon, so no dead row can go. */
async function openWriter({ pool }: Bench): Promise<() => Promise<void>> {
  const client = await pool.connect()
  await client.query('begin')
  await client.query("insert into orders (customer, amount_cents) values ('open', 1)")
  return async () => {
    await client.query('rollback')
    client.release()
  }
}

/** From the answer to COMMIT to the delivery at a consumer of this process. */
async function idle(bench: Bench, say: Say): Promise<Result[]> {
  const relay = bench.once.relay({ broker: brokers.rabbitmq(() => amqp.connect(bench.broker.url), { exchange: '' }) })
  await relay.start()
  const same = await idleSamples(bench)
  await relay.stop()
  const child = await startChild('relay', bench.database.url, bench.broker.url)
  const other = await idleSamples(bench)
  await child.stop()
  const result = (name: string, samples: readonly number[], limit: number): Result =>
    valueResult(
      {
        name,
        value: median(samples),
        unit: 'ms',
        direction: 'lower',
        quartiles: quartiles(samples),
        pairs: samples.length,
        limit,
      },
      say,
    )
  return [result('relay-idle-p50', same, 10), result('relay-idle-p50-other-process', other, 20)]
}

async function idleSamples({ once, broker }: Bench): Promise<number[]> {
  const queue = await broker.queue()
  const channel = await broker.connection.createChannel()
  let arrived: (at: number) => void = () => {}
  await channel.consume(queue, () => arrived(performance.now()), { noAck: true })
  const samples: number[] = []
  for (let sample = 0; sample < IDLE_SAMPLES + 5; sample++) {
    // Longer than any batch is gathered, and out of step with every timer.
    await sleep(40 + Math.random() * 60)
    const delivered = new Promise<number>((resolve) => {
      arrived = resolve
    })
    await once.transaction({ scope: 'idle', key: crypto.randomUUID(), payload: null }, async ({ outbox }) => {
      await outbox.add({ topic: queue, payload: { sample } })
    })
    const committedAt = performance.now()
    samples.push(Math.max(0, (await delivered) - committedAt))
  }
  await channel.close()
  await broker.remove(queue)
  // The first ones connect, prepare and compile.
  return samples.slice(5)
}

async function memory(bench: Bench, { say, messages: count = 100_000 }: SuiteOptions): Promise<Result> {
  const queue = await bench.broker.queue()
  await fillOutbox(bench, queue, prepareMessages(count))
  const child = await startChild('relay', bench.database.url, bench.broker.url)
  try {
    await bench.once.relay({ broker: brokers.rabbitmq(() => amqp.connect(bench.broker.url), { exchange: '' }) }).drain()
    const peak = await child.stop()
    return valueResult(
      {
        name: 'relay-rss',
        value: peak,
        unit: 'MiB',
        direction: 'lower',
        quartiles: [peak, peak],
        pairs: 1,
        limit: 200,
      },
      say,
    )
  } finally {
    child.kill()
    await bench.broker.remove(queue)
  }
}
