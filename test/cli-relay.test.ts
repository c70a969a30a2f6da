import { spawn } from 'node:child_process'
import { once as event } from 'node:events'
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type amqp from 'amqplib'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createOnce, type Once } from '../src/once.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { createDatabase } from './database.ts'
import { amqpUrl, connect, uniqueName } from './rabbitmq.ts'

const main = resolve('src/cli/main.ts')
const tsx = pathToFileURL(resolve('node_modules/tsx/dist/esm/index.mjs')).href
const source = (path: string): string => JSON.stringify(pathToFileURL(resolve('src', path)).href)

interface Variation {
  readonly schema?: string
  readonly amqp?: string
  readonly relayName?: string
}

const configText = (exchange: string, { schema, amqp, relayName = 'relay' }: Variation = {}): string => `
import amqp from 'amqplib'
import pg from 'pg'
import { rabbitmq } from ${source('brokers/rabbitmq/index.ts')}
import { createOnce } from ${source('once.ts')}
import { postgres } from ${source('stores/postgres/index.ts')}
const pool = new pg.Pool({ connectionString: process.env.TEST_URL })
const connect = () => amqp.connect(${amqp === undefined ? 'process.env.TEST_AMQP' : JSON.stringify(amqp)})
export const once = createOnce({ store: postgres(pool, { schema: ${JSON.stringify(schema)} }) })
export const ${relayName} = { broker: rabbitmq(connect, { exchange: '${exchange}' }), pollMs: 100 }
`

interface Running {
  readonly out: () => string
  readonly err: () => string
  readonly kill: (signal: NodeJS.Signals) => void
  /** Exit code. */
  readonly ended: Promise<number | null>
}

describe.skipIf(amqpUrl === null)('effectively-once relay', async () => {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url })
  pool.on('error', () => {})
  const once: Once<pg.PoolClient> = createOnce({ store: postgres(pool) })
  const exchange = uniqueName('cli')
  let folder: string
  let broker: amqp.ChannelModel
  let channel: amqp.Channel
  let queue: string
  const running: Running[] = []

  beforeAll(async () => {
    await once.migrate()
    broker = await connect()
    channel = await broker.createChannel()
    await channel.assertExchange(exchange, 'topic', { durable: true })
    queue = (await channel.assertQueue('', { exclusive: true })).queue
    await channel.bindQueue(queue, exchange, '#')
    folder = await mkdtemp(join(tmpdir(), 'effectively-once-cli-relay-'))
    await symlink(resolve('node_modules'), join(folder, 'node_modules'))
  })
  const configure = (variation?: Variation): Promise<void> =>
    writeFile(join(folder, 'effectively-once.config.mjs'), configText(exchange, variation))
  beforeEach(() => configure())
  afterEach(async () => {
    for (const each of running.splice(0)) {
      each.kill('SIGKILL')
      await each.ended
    }
  })
  afterAll(async () => {
    await channel.deleteExchange(exchange)
    await broker.close()
    await pool.end()
    await rm(folder, { recursive: true, force: true })
    await database.drop()
  })

  function start(...words: string[]): Running {
    const child = spawn(process.execPath, ['--import', tsx, main, 'relay', ...words], {
      cwd: folder,
      env: { ...process.env, TEST_URL: database.url, TEST_AMQP: amqpUrl ?? '' },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let out = ''
    let err = ''
    child.stdout.on('data', (chunk: Buffer) => {
      out += chunk.toString()
    })
    child.stderr.on('data', (chunk: Buffer) => {
      err += chunk.toString()
    })
    const made = {
      out: () => out,
      err: () => err,
      kill: (signal: NodeJS.Signals) => void child.kill(signal),
      ended: event(child, 'close').then(([code]) => code as number | null),
    }
    running.push(made)
    return made
  }

  async function place(key: string): Promise<void> {
    await once.transaction({ scope: 'orders', key, payload: null }, async ({ outbox }) => {
      await outbox.add({ topic: 'order.created.v1', orderingKey: key, payload: { key } })
    })
  }

  async function received(count: number): Promise<readonly unknown[]> {
    const until = performance.now() + 25_000
    const bodies: unknown[] = []
    while (bodies.length < count) {
      const message = await channel.get(queue, { noAck: true })
      if (message !== false) bodies.push(JSON.parse(message.content.toString()))
      if (performance.now() > until) throw new Error(`${bodies.length} of ${count} messages came`)
    }
    return bodies
  }

  test('publishes until SIGTERM, sends what is committed by then, hands its lanes back and ends with 0', async () => {
    const relay = start()
    await place('a')
    expect(await received(1)).toEqual([{ key: 'a' }])
    await place('b')
    relay.kill('SIGTERM')
    expect({ code: await relay.ended, err: relay.err() }).toMatchObject({
      code: 0,
      err: expect.not.stringContaining('not everything'),
    })
    expect(relay.out()).toBe('published 2 messages\n')
    expect(await received(1)).toEqual([{ key: 'b' }])
    const { rows } = await pool.query('select from effectively_once.outbox_lane where lease_until > clock_timestamp()')
    expect(rows).toEqual([])
  })

  test('--until-drained ends by itself, and --json prints one event a line', async () => {
    await Promise.all(['c', 'd', 'e'].map(place))
    const relay = start('--until-drained', '--json')
    expect(await relay.ended).toBe(0)
    const events = relay
      .out()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { kind: string; count?: number })
    const published = events.filter(({ kind }) => kind === 'published').reduce((sum, { count = 0 }) => sum + count, 0)
    expect(published).toBe(3)
    expect(events.map(({ kind }) => kind)).toContain('laneReleased')
    expect(await received(3)).toHaveLength(3)
  })

  test('with the broker away it stops in time, says that the rest stays, and the rest does', async () => {
    await place('f')
    await configure({ amqp: 'amqp://127.0.0.1:1' })
    const relay = start('--drain-ms', '300')
    const until = performance.now() + 25_000
    while (!relay.err().includes('the broker is away') && !relay.err().includes('lane 0 is ours')) {
      await new Promise((tick) => setImmediate(tick))
      if (performance.now() > until) throw new Error(`the relay did not start: ${relay.err()}`)
    }
    relay.kill('SIGINT')
    expect(await relay.ended).toBe(0)
    expect(relay.err()).toContain('not everything was sent; the rest stays in the outbox')
    expect(relay.out()).toBe('published 0 messages\n')
    const { rows } = await pool.query('select topic from effectively_once.outbox')
    expect(rows).toEqual([{ topic: 'order.created.v1' }])
  })

  test('a configuration without relay, and a database without our tables, are each one clear error', async () => {
    await configure({ relayName: 'other' })
    const without = start()
    expect(await without.ended).toBe(2)
    expect(without.err()).toContain('must export `relay`')
    await configure({ schema: 'nowhere' })
    const missing = start()
    expect(await missing.ended).toBe(1)
    expect(missing.err()).toContain('[SCHEMA_MISSING]')
    expect(await start('--drain-ms', 'soon').ended).toBe(2)
  })
})
