/**
 * A relay process dies in front of every statement and every publish that it sends: SIGKILL, on a real database and a
 * real broker. Another one takes over, and afterwards every message has arrived, in the order of its key, and what came
 * twice came with the same id and bytes.
 *
 * KILL_ONLY=<part of a boundary's name> runs the boundaries with that name only.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type amqp from 'amqplib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { rabbitmq } from '../../src/brokers/rabbitmq/index.ts'
import { type Bench, openBench, SCHEMA, until } from '../outbox/relay-bench.ts'
import { amqpUrl, connect, uniqueName } from '../rabbitmq.ts'
import type { StepName } from './steps.ts'

const ONLY = process.env['KILL_ONLY'] ?? ''
/** Deaths under way at the same time, each in a database of its own. */
const LINES = 3
/** Number in its key; one message has a topic that no queue takes. */
const SENT = [
  ['a', 1, 'order.a'],
  ['a', 2, 'order.a'],
  ['b', 1, 'order.b'],
  ['a', 3, 'order.a'],
  ['c', 1, 'nobody'],
] as const

let benches: Bench[]
let control: amqp.ChannelModel
let channel: amqp.Channel
const children = new Set<ChildProcess>()

beforeAll(async () => {
  if (amqpUrl === null) return
  benches = await Promise.all(Array.from({ length: LINES }, () => openBench()))
  control = await connect()
  channel = await control.createChannel()
})

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await control?.close()
  await Promise.all((benches ?? []).map((bench) => bench.close()))
})

interface World {
  readonly bench: Bench
  readonly exchange: string
  readonly queue: string
  readonly ids: readonly string[]
}

async function openWorld(bench: Bench): Promise<World> {
  await bench.reset()
  const [exchange, queue] = [uniqueName('exchange'), uniqueName('queue')]
  await channel.assertExchange(exchange, 'topic', { durable: true })
  await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  await channel.bindQueue(queue, exchange, 'order.#')
  const ids = await bench.commit(
    SENT.map(([key, n, topic]) => ({ topic, orderingKey: key, payload: { key, n }, headers: { trace: `${key}${n}` } })),
  )
  return { bench, exchange, queue, ids }
}

function start({ bench, exchange }: World, env: Readonly<Record<string, string>>): ChildProcess {
  const script = fileURLToPath(new URL('../processes/relay-rabbitmq.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', script], {
    env: {
      ...process.env,
      DATABASE_URL: bench.url,
      AMQP_URL: amqpUrl ?? '',
      EXCHANGE: exchange,
      PUBLISH: String(SENT.length - 1),
      ...env,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

/** Another relay, in this process, until nothing is pending; then everything is in the queue. */
async function takeOver(world: World): Promise<void> {
  const { bench, exchange, queue, ids } = world
  await channel.bindQueue(queue, exchange, 'nobody')
  // The key's pause ends now; how long it is belongs to other tests.
  await bench.pool.query(`update ${SCHEMA}.outbox_parked set next_at = clock_timestamp()`)
  const relay = await bench.relay({ broker: rabbitmq(connect, { exchange }), leaseMs: 1_500, publishTimeoutMs: 500 })
  await until('nothing is pending', async () => {
    await bench.pool.query(`update ${SCHEMA}.outbox_parked set next_at = clock_timestamp()`)
    return (
      (await bench.number(
        `select (select count(*) from ${SCHEMA}.outbox) + (select count(*) from ${SCHEMA}.outbox_parked)`,
      )) === 0
    )
  })
  await relay.stop()
  expect(await bench.number(`select count(*) from ${SCHEMA}.outbox_quarantine`)).toBe(0)

  const copies = new Map<string, Set<string>>()
  const order: Record<string, number[]> = { a: [], b: [], c: [] }
  for (;;) {
    const message = await channel.get(queue, { noAck: true })
    if (message === false) break
    const { properties, fields, content } = message
    const id = String(properties.messageId)
    const { key, n } = JSON.parse(content.toString()) as { key: string; n: number }
    if (!copies.has(id)) order[key]?.push(n)
    copies.set(
      id,
      (copies.get(id) ?? new Set()).add(JSON.stringify([properties, fields.routingKey, content.toString()])),
    )
  }
  expect([...copies.keys()].toSorted((a, b) => a.localeCompare(b))).toEqual(ids.toSorted((a, b) => a.localeCompare(b)))
  expect(order).toEqual({ a: [1, 2, 3], b: [1], c: [1] })
  expect([...copies.values()].map(({ size }) => size)).toEqual(ids.map(() => 1))
  await channel.deleteQueue(queue)
  await channel.deleteExchange(exchange)
}

async function trace(bench: Bench): Promise<StepName[]> {
  const world = await openWorld(bench)
  const child = start(world, { TRACE: '1' })
  const steps: StepName[] = []
  createInterface({ input: child.stdout ?? process.stdin }).on('line', (line) => {
    const step = line.slice('step '.length)
    steps.push({ step, nth: steps.filter((earlier) => earlier.step === step).length + 1 })
  })
  const [code] = (await once(child, 'close')) as [number | null]
  expect(code).toBe(0)
  await takeOver(world)
  return steps
}

/** Steps that must be among those traced. */
const NEEDED = [
  'outbox.lanes',
  'outbox.acquire',
  'outbox.read',
  'basic.publish',
  'outbox.park',
  'outbox.settle',
  'outbox.release',
]

async function dieAt(at: StepName, bench: Bench): Promise<void> {
  const world = await openWorld(bench)
  const child = start(world, { KILL_AT: JSON.stringify(at) })
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null]
  // How often it polls, whether it renews, and how many confirms are settled together, is a matter of time: a run may have
  // fewer, and is then one without a death.
  if ((at.nth === 1 && at.step !== 'outbox.renew') || code !== 0) {
    expect(signal, 'the process died in front of it').toBe('SIGKILL')
  }
  await takeOver(world)
}

describe.skipIf(amqpUrl === null)('relay to RabbitMQ', () => {
  test('I7, I8, SC34, R23, R48: dying in front of each statement and publish loses nothing, keeps order and repeats ids and bytes', {
    timeout: 300_000,
  }, async () => {
    const [first] = benches
    if (first === undefined) throw new Error('no database')
    const steps = await trace(first)
    const names = new Set(steps.map(({ step }) => step))
    for (const name of NEEDED) expect(names).toContain(name)
    const todo = steps.filter(({ step }) => step.includes(ONLY))
    const failed: unknown[] = []
    const line = async (bench: Bench): Promise<void> => {
      for (let at = todo.shift(); at !== undefined; at = todo.shift()) {
        try {
          await dieAt(at, bench)
        } catch (error) {
          failed.push({ at, error: String(error) })
        }
      }
    }
    await Promise.all(benches.map(line))
    expect(failed).toEqual([])
    console.log(`${steps.length} deaths: ${[...names].join(', ')}`)
  })
})
