/**
 * A consumer process dies in front of every statement and every acknowledgement that it sends: SIGKILL, on a real
 * database and a real broker. Another one takes over, and afterwards every message has been applied once.
 *
 * KILL_ONLY=<part of a boundary's name> runs the boundaries with that name only.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type amqp from 'amqplib'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ORDERING_KEY_HEADER, rabbitmqQueue } from '../../src/brokers/rabbitmq/index.ts'
import { createOnce } from '../../src/index.ts'
import { bounded } from '../../src/shared/waiting.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'
import { amqpUrl, connect, eventually, uniqueName } from '../rabbitmq.ts'
import { PROJECTION, projector, SENT, SETTLED, type Shape, WANTED } from './projector.ts'
import type { StepName } from './steps.ts'

const ONLY = process.env['KILL_ONLY'] ?? ''
const SCHEMA = 'effectively_once'
/** Deaths under way at the same time. */
const LINES = 5
/** A process that has not ended by then hangs. */
const END_WITHIN_MS = 60_000

let database: Awaited<ReturnType<typeof createDatabase>>
let pool: pg.Pool
let control: amqp.ChannelModel
let channel: amqp.ConfirmChannel
const children = new Set<ChildProcess>()

beforeAll(async () => {
  if (amqpUrl === null) return
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, max: 10 })
  await createOnce({ store: postgres(pool) }).migrate()
  await pool.query(PROJECTION)
  control = await connect()
  channel = await control.createConfirmChannel()
})

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await control?.close()
  await pool?.end()
  await database?.drop()
})

interface Case {
  readonly shape: Shape
  readonly pipeline: string
  /** The messages have been delivered before, to somebody who vanished. */
  readonly redelivered: boolean
}

/** A queue of its own with all messages in it; also the consumer's name. */
async function filledQueue(redelivered: boolean): Promise<string> {
  const queue = uniqueName('kill')
  await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  for (const { id, key, payload } of SENT) {
    channel.sendToQueue(queue, Buffer.from(payload), {
      messageId: id,
      contentType: 'application/json',
      persistent: true,
      headers: { [ORDERING_KEY_HEADER]: key },
    })
  }
  await channel.waitForConfirms()
  if (redelivered) {
    const vanishing = await control.createChannel()
    let taken = 0
    while (taken < SENT.length) if ((await vanishing.get(queue, { noAck: false })) !== false) taken += 1
    await vanishing.close()
  }
  return queue
}

function start(queue: string, one: Case, env: Readonly<Record<string, string>>): ChildProcess {
  const script = fileURLToPath(new URL('../processes/inbox-consumer.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', script], {
    env: {
      ...process.env,
      DATABASE_URL: database.url,
      AMQP_URL: amqpUrl ?? '',
      QUEUE: queue,
      CONSUMER: queue,
      SHAPE: one.shape,
      PIPELINE: one.pipeline,
      SETTLE: String(SETTLED),
      ...env,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

/** Every step of an undisturbed run, in order. */
async function trace(one: Case): Promise<StepName[]> {
  const queue = await filledQueue(one.redelivered)
  const child = start(queue, one, { TRACE: '1' })
  const { code, lines } = await ended(child, queue)
  expect(code).toBe(0)
  await expectAppliedOnce(queue, one)
  const steps: StepName[] = []
  for (const line of lines) {
    if (!line.startsWith('step ')) continue
    const step = line.slice('step '.length)
    steps.push({ step, nth: steps.filter((earlier) => earlier.step === step).length + 1 })
  }
  return steps
}

interface End {
  readonly code: number | null
  readonly signal: string | null
  /** What it has told. */
  readonly lines: readonly string[]
}

/** Waits for the end of a process. One that does not end is told with all that is known of it. */
async function ended(child: ChildProcess, queue: string): Promise<End> {
  const lines: string[] = []
  createInterface({ input: child.stdout ?? process.stdin }).on('line', (line) => lines.push(line))
  const closed = once(child, 'close') as Promise<[number | null, string | null]>
  const end = await bounded(closed, END_WITHIN_MS)
  if (end.kind === 'done') return { code: end.value[0], signal: end.value[1], lines }
  const waiting = await rowsOf(`select * from ${SCHEMA}.inbox_waiting where consumer = $1`, [queue])
  const sessions = await rowsOf(
    'select state, wait_event, now() - state_change as since, query from pg_stat_activity where application_name = $1',
    [`inbox-${child.pid}`],
  )
  const broker = await channel.checkQueue(queue)
  child.kill('SIGKILL')
  throw new Error(
    `the process did not end within ${END_WITHIN_MS} ms: ${JSON.stringify({ lines, waiting, sessions, broker })}`,
  )
}

const rowsOf = async (sql: string, values: unknown[]): Promise<pg.QueryResultRow[]> =>
  (await pool.query(sql, values)).rows

/** Nothing is lost, nothing is there twice, order per key is kept, and each output was written once. */
async function expectAppliedOnce(queue: string, { shape }: Case): Promise<void> {
  const projected = await rowsOf('select id, key, n from projection where consumer = $1 order by seq', [queue])
  const numbers = (key: string): number[] => projected.filter((row) => row['key'] === key).map((row) => row['n'])
  const ordered = (list: number[]): number[] => (shape.includes('ordered') ? list : list.toSorted((a, b) => a - b))
  const got = Object.fromEntries(Object.keys(WANTED).map((key) => [key, ordered(numbers(key))]))
  const outputs = await rowsOf(`select payload from ${SCHEMA}.outbox where topic = $1 order by payload`, [queue])
  const marks = await rowsOf(`select message_id from ${SCHEMA}.inbox where consumer = $1 order by message_id`, [queue])
  const waiting = await rowsOf(`select message_id, reason from ${SCHEMA}.inbox_waiting where consumer = $1`, [queue])
  const quarantined = await rowsOf(`select message_id, reason from ${SCHEMA}.inbox_quarantine where consumer = $1`, [
    queue,
  ])
  const ids = Object.entries(WANTED).flatMap(([key, list]) => list.map((n) => `${key}${n}`))
  expect({ got, rows: projected.length }).toEqual({ got: WANTED, rows: ids.length })
  expect(outputs.map((row) => JSON.parse(row['payload']))).toEqual(ids)
  expect(marks.map((row) => row['message_id'])).toEqual(ids)
  expect(waiting).toEqual([])
  expect(quarantined).toEqual([{ message_id: 'broken', reason: 'undecodable' }])
  expect(await channel.checkQueue(queue)).toMatchObject({ messageCount: 0 })
  await channel.deleteQueue(queue)
}

/** Another consumer, in this process, until nothing is left. */
async function takeOver(queue: string, { shape }: Case): Promise<void> {
  const users = new pg.Pool({ connectionString: database.url, pipeline: true, max: 4 })
  const consumer = projector(createOnce({ store: postgres(users, { acquireTimeoutMs: 30_000 }) }), shape, {
    name: queue,
    source: rabbitmqQueue(connect, queue),
  })
  await consumer.start()
  const left = async (): Promise<number> => {
    const [row] = await rowsOf(
      `select (select count(*) from ${SCHEMA}.inbox_waiting where consumer = $1)::int as waiting,
        (select count(*) from ${SCHEMA}.inbox where consumer = $1)::int as marks,
        (select count(*) from ${SCHEMA}.inbox_quarantine where consumer = $1)::int as refused`,
      [queue],
    )
    return row?.['waiting'] + (SETTLED - 1 - row?.['marks'] - row?.['refused'])
  }
  try {
    await eventually('every message has its mark', async () => (await left()) === 0)
    await consumer.drain()
  } finally {
    await consumer.stop()
    await users.end()
  }
}

/** Steps that a run takes or not, as its answers come in. */
const TIMED = ['inbox.seal', 'inbox.seal_claim', 'inbox.renew']

async function dieAt(at: StepName, one: Case): Promise<void> {
  const queue = await filledQueue(one.redelivered)
  const { code, signal } = await ended(start(queue, one, { KILL_AT: JSON.stringify(at) }), queue)
  // How often it polls, what a batch holds and how many acknowledgements leave together, is a matter of time: a run may
  // have fewer, and is then one without a death.
  if (code === 0 && (at.nth > 1 || TIMED.includes(at.step))) return await expectAppliedOnce(queue, one)
  expect(signal, 'the process died in front of it').toBe('SIGKILL')
  await eventually('the broker has seen it', async () => (await channel.checkQueue(queue)).consumerCount === 0)
  await takeOver(queue, one)
  await expectAppliedOnce(queue, one)
}

const CASES: readonly (readonly [shape: Shape, pool: string, deliveries: string, one: Case])[] = [
  ['each', 'pipelined', 'first', { shape: 'each', pipeline: '1', redelivered: false }],
  ['batch', 'pipelined', 'first', { shape: 'batch', pipeline: '1', redelivered: false }],
  ['ordered', 'stock', 'first', { shape: 'ordered', pipeline: '0', redelivered: false }],
  ['ordered batch', 'stock', 'first', { shape: 'ordered batch', pipeline: '0', redelivered: false }],
  ['ordered', 'pipelined', 'repeated', { shape: 'ordered', pipeline: '1', redelivered: true }],
]

describe.skipIf(amqpUrl === null).each(CASES)('%s, %s pool, %s deliveries', (_shape, _pool, _deliveries, one) => {
  test('I8, I9, SC43, SC44, R48: dying in front of each statement and acknowledgement loses and repeats nothing', {
    timeout: 300_000,
  }, async () => {
    const steps = await trace(one)
    const names = new Set(steps.map(({ step }) => step))
    for (const name of ['commit', 'basic.ack', 'insert into projection']) expect(names).toContain(name)
    const todo = steps.filter(({ step }) => step.includes(ONLY))
    const failed: unknown[] = []
    const line = async (): Promise<void> => {
      for (let at = todo.shift(); at !== undefined; at = todo.shift()) {
        try {
          await dieAt(at, one)
        } catch (error) {
          failed.push({ at, error: String(error) })
        }
      }
    }
    await Promise.all(Array.from({ length: LINES }, line))
    expect(failed).toEqual([])
    console.log(`${steps.length} deaths: ${one.shape}, ${[...names].join(', ')}`)
  })
})
