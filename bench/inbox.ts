/**
 * Inbox: a full queue applied once to a projection, against consuming and acknowledging it.
 *
 * @module
 */

import amqp from 'amqplib'
import type pg from 'pg'
import type { ConsumerEvent } from '../src/inbox/events.ts'
import type { ConsumerOptions } from '../src/inbox/options.ts'
import type { Once } from '../src/once.ts'
import { type BenchBroker, type Prepared, prepareMessages, publishAll, startBroker } from './broker.ts'
import { startChild } from './children.ts'
import type { CpuUsed } from './cpu.ts'
import { type BenchDatabase, startDatabase } from './database.ts'
import { median, quartiles } from './paired.ts'
import { applyBatch, applyOne, insertOne, PROJECTION } from './projection.ts'
import { type Result, valueResult } from './report.ts'
import { brokers, core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

interface Bench {
  readonly database: BenchDatabase
  readonly broker: BenchBroker
  readonly pool: pg.Pool
  readonly once: Once<pg.PoolClient>
}

/** Consumes everything that lies in a queue; resolves with messages a second. */
type Consume = (bench: Bench, queue: string, count: number) => Promise<number>

/** Of the baselines, and of us where it says so. */
const PREFETCH = 500
/** Two batches in hand, and as many messages on their way as we have in hand: what a consumer does by itself. */
const BATCH = { batchMax: 500, prefetch: 2_000 }
/** Messages handled at the same time, by us and by the baseline. */
const CONCURRENCY = 20

export async function inboxSuite(options: SuiteOptions): Promise<SuiteResult> {
  const { only } = options
  const database = await startDatabase()
  let broker: BenchBroker | undefined
  try {
    broker = await startBroker()
    const pool = database.pool({ pipeline: true, max: CONCURRENCY + 5 })
    const once = core.createOnce({ store: stores.postgres(pool) })
    await once.migrate()
    await pool.query(PROJECTION)
    const bench: Bench = { database, broker, pool, once }
    const results: Result[] = []
    const wanted = (name: string) => only === undefined || only === name
    if (wanted('inbox-batch')) {
      results.push(await compared(bench, options, 'inbox-batch', 60_000, inBatches, acknowledgeAll, 0.55))
    }
    if (wanted('inbox-batch-500')) {
      results.push(await compared(bench, options, 'inbox-batch-500', 60_000, inSmallBatches, acknowledgeAll, undefined))
    }
    if (wanted('inbox-each')) {
      results.push(await compared(bench, options, 'inbox-each', 10_000, oneByOne, bareTransactions, 0.9))
    }
    if (wanted('inbox-rss')) results.push(await memory(bench, options))
    return { durable: database.durable, versions: { postgresql: database.version, rabbitmq: broker.version }, results }
  } finally {
    await broker?.stop()
    await database.stop()
  }
}

async function compared(
  bench: Bench,
  { say, pairs = 5, messages: limited }: SuiteOptions,
  name: string,
  full: number,
  candidate: Consume,
  baseline: Consume,
  limit: number | undefined,
): Promise<Result> {
  const count = Math.min(full, limited ?? full)
  const used = new Map<Consume, CpuUsed[]>([candidate, baseline].map((consume) => [consume, []]))
  const run = async (consume: Consume, messages: readonly Prepared[] = prepareMessages(count)): Promise<number> => {
    const queue = await bench.broker.queue()
    await publishAll(bench.broker, queue, messages)
    await bench.database.settle()
    const before = bench.database.cpu.read()
    const rate = await consume(bench, queue, messages.length)
    const after = bench.database.cpu.read()
    await bench.broker.remove(queue)
    if (messages.length === count) {
      used.get(consume)?.push({ client: after.client - before.client, server: after.server - before.server })
    }
    return rate
  }
  const few = Math.ceil(count / 10)
  await run(baseline, prepareMessages(few))
  await run(candidate, prepareMessages(few))
  const own: number[] = []
  const base: number[] = []
  const control: number[] = []
  for (let pair = 0; pair < pairs; pair++) {
    const first = await run(baseline)
    own.push(await run(candidate))
    const second = await run(baseline)
    base.push((first + second) / 2)
    control.push(second / first)
    say(`  ${name}: ${Math.round(own.at(-1) ?? 0)}/s, baseline ${Math.round(first)}/s and ${Math.round(second)}/s`)
  }
  const ratios = own.map((rate, pair) => rate / (base[pair] ?? rate))
  const ratio = median(ratios)
  const cpu = (consume: Consume) => {
    const each = (side: keyof CpuUsed) => median((used.get(consume) ?? []).map((one) => one[side] / count)).toFixed(1)
    return `${each('client')} us here + ${each('server')} us PostgreSQL`
  }
  say(`  CPU a message, candidate ${cpu(candidate)}, baseline ${cpu(baseline)}`)
  return valueResult(
    {
      name,
      value: median(own),
      unit: 'messages/s',
      direction: 'higher',
      baseline: median(base),
      ratio,
      quartiles: quartiles(ratios),
      pairs,
      controlRatio: median(control),
      ...(limit === undefined ? {} : { limit, ok: ratio >= limit }),
    },
    say,
  )
}

const inBatches: Consume = (bench, queue, count) =>
  throughConsumer(bench, queue, count, { handleBatch: applyBatch, ...BATCH })

/** No more messages in hand than the baseline has. */
const inSmallBatches: Consume = (bench, queue, count) =>
  throughConsumer(bench, queue, count, { handleBatch: applyBatch, batchMax: 250, prefetch: PREFETCH })

const oneByOne: Consume = (bench, queue, count) =>
  throughConsumer(bench, queue, count, { handle: applyOne, concurrency: CONCURRENCY, prefetch: PREFETCH })

async function throughConsumer(
  { once, broker, pool }: Bench,
  queue: string,
  count: number,
  handling: Pick<ConsumerOptions<pg.PoolClient>, 'handle' | 'handleBatch' | 'batchMax' | 'concurrency' | 'prefetch'>,
): Promise<number> {
  const before = await projected(pool)
  let applied = 0
  let done: () => void = () => {}
  const all = new Promise<void>((resolve) => {
    done = resolve
  })
  const consumer = once.consumer({
    name: 'bench',
    source: brokers.rabbitmqQueue(() => amqp.connect(broker.url), queue, { deadLetters: 'configured' }),
    onEvent: (event: ConsumerEvent) => {
      if (event.kind === 'applied') applied += 1
      if (applied >= count) done()
    },
    ...handling,
  })
  const startedAt = performance.now()
  await consumer.start()
  await all
  const seconds = (performance.now() - startedAt) / 1_000
  await consumer.stop()
  const after = await projected(pool)
  if (after - before !== count) throw new Error(`${after - before} rows were projected for ${count} messages`)
  return count / seconds
}

async function projected(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query('select count(*)::int as n from projection')
  return rows[0].n
}

const acknowledgeAll: Consume = (bench, queue, count) => plainConsumer(bench, queue, count, undefined)

const bareTransactions: Consume = (bench, queue, count) =>
  plainConsumer(bench, queue, count, async (body) => {
    const client = await bench.pool.connect()
    await client.query('begin')
    await client.query(insertOne(JSON.parse(body.toString())))
    await client.query('commit')
    client.release()
  })

/** What a user without us writes: work, at most CONCURRENCY at once, then acknowledge. Without work: only acknowledge. */
async function plainConsumer(
  { broker }: Bench,
  queue: string,
  count: number,
  work: ((body: Buffer) => Promise<void>) | undefined,
): Promise<number> {
  const startedAt = performance.now()
  const connection = await amqp.connect(broker.url)
  const channel = await connection.createChannel()
  await channel.prefetch(PREFETCH)
  let left = count
  let running = 0
  const queued: amqp.ConsumeMessage[] = []
  await new Promise<void>((resolve, reject) => {
    const acknowledge = (message: amqp.ConsumeMessage) => {
      channel.ack(message)
      left -= 1
      if (left === 0) resolve()
    }
    const startNext = () => {
      while (running < CONCURRENCY) {
        const message = queued.shift()
        if (message === undefined || work === undefined) return
        running += 1
        work(message.content).then(() => {
          acknowledge(message)
          running -= 1
          startNext()
        }, reject)
      }
    }
    channel
      .consume(queue, (message) => {
        if (message === null) return
        if (work === undefined) {
          acknowledge(message)
          return
        }
        queued.push(message)
        startNext()
      })
      .catch(reject)
  })
  const seconds = (performance.now() - startedAt) / 1_000
  await channel.close()
  await connection.close()
  return count / seconds
}

async function memory(bench: Bench, { say, messages: count = 100_000 }: SuiteOptions): Promise<Result> {
  const queue = await bench.broker.queue()
  await publishAll(bench.broker, queue, prepareMessages(count))
  const before = await projected(bench.pool)
  const child = await startChild('consumer', bench.database.url, bench.broker.url, queue)
  try {
    while ((await projected(bench.pool)) - before < count) await new Promise((resolve) => setTimeout(resolve, 100))
    const peak = await child.stop()
    return valueResult(
      {
        name: 'inbox-rss',
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
