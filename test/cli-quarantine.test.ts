/** Quarantined messages through the command, as processes of their own, on a database where real flows put them there. */
import { spawn } from 'node:child_process'
import { once as event } from 'node:events'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type MemoryBroker, memoryBroker } from '../src/brokers/memory/index.ts'
import { run } from '../src/cli/run.ts'
import { createOnce, type Once, unprocessable } from '../src/index.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { createDatabase } from './database.ts'
import { eventually } from './eventually.ts'

const main = resolve('src/cli/main.ts')
const tsx = pathToFileURL(resolve('node_modules/tsx/dist/esm/index.mjs')).href
/** Starting a process takes a second on a busy machine. */
const PROCESSES_MS = 120_000
const PERSON = ['--actor', 'ann', '--reason', 'ticket 4711']

let database: { readonly url: string; drop(): Promise<void> }
let pool: pg.Pool
let once: Once<pg.PoolClient>

beforeAll(async () => {
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, max: 5 })
  once = createOnce({ store: postgres(pool) })
  await once.migrate()
})
afterAll(async () => {
  await pool.end()
  await database.drop()
})

async function cli(...words: string[]) {
  const child = spawn(process.execPath, ['--import', tsx, main, ...words], {
    env: { ...process.env, DATABASE_URL: database.url },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let [out, err] = ['', '']
  child.stdout.on('data', (chunk: Buffer) => {
    out += chunk.toString()
  })
  child.stderr.on('data', (chunk: Buffer) => {
    err += chunk.toString()
  })
  const [code] = await event(child, 'close')
  return { code, out: out.trim(), err: err.trim() }
}

/** Commits messages and lets a relay try them; a payload over the broker's limit is quarantined. */
async function relayed(broker: MemoryBroker, payloads: readonly string[]): Promise<void> {
  await once.transaction({ scope: 'orders', key: payloads.join(), payload: null }, async ({ outbox }) => {
    for (const text of payloads) await outbox.add({ topic: 'order.created.v1', payload: { text } })
  })
  const relay = once.relay({ broker, pollMs: 20 })
  await relay.start()
  await relay.drain()
  await relay.stop()
}

const audit = async (act: string) =>
  (await pool.query('select actor, subject, reason from effectively_once.audit where act = $1 order by seq', [act]))
    .rows

test('R45, I16: a quarantined message of the outbox is listed, and sent back by a person under its own id', {
  timeout: PROCESSES_MS,
}, async () => {
  const narrow = memoryBroker({ messageBytesMax: 40 })
  narrow.queue('all', { topics: ['#'] })
  await relayed(narrow, ['small', 'x'.repeat(100)])
  const listed = await cli('list', '--only', 'outbox', '--json')
  expect(listed).toMatchObject({ code: 0, err: '' })
  const { operations, outbox, inbox } = JSON.parse(listed.out)
  expect({ operations, inbox }).toEqual({ operations: [], inbox: [] })
  expect(outbox).toMatchObject([{ topic: 'order.created.v1', reason: 'invalid' }])
  const { id } = outbox[0]
  expect((await cli('list')).out).toMatch(new RegExp(`^${id} {2}outbox {2}\\S+Z {2}order.created.v1 {2}invalid {2}`))
  expect(await cli('redrive', id, '--outbox')).toMatchObject({ code: 2, err: expect.stringContaining('--actor') })
  expect(await cli('redrive', id, ...PERSON)).toMatchObject({ code: 1, err: expect.stringContaining('--outbox') })
  expect(await audit('outbox.redrive')).toEqual([])
  expect(await cli('redrive', id, '--outbox', ...PERSON)).toEqual({ code: 0, out: `${id}  redriven`, err: '' })
  expect(await audit('outbox.redrive')).toEqual([{ actor: 'ann', subject: id, reason: 'ticket 4711' }])
  expect(await cli('redrive', id, '--outbox', ...PERSON, '--json')).toEqual({
    code: 1,
    out: JSON.stringify({ answers: [{ id, answer: 'notFound' }] }),
    err: '',
  })
  const broker = memoryBroker()
  broker.queue('all', { topics: ['#'] })
  const received: string[] = []
  const consumer = once.consumer({
    name: 'all',
    source: broker.source('all'),
    handle: ({ message }) => void received.push(message.id),
  })
  await consumer.start()
  await relayed(broker, ['another'])
  await eventually('the message that was sent back and another arrive', () => received.length === 2)
  await consumer.stop()
  expect(received).toContain(id)
  expect((await cli('list')).out).toBe('nothing waits')
})

test('R45, I16: a quarantined delivery is listed, and comes back to its consumer under its own id, once', {
  timeout: PROCESSES_MS,
}, async () => {
  const broker = memoryBroker()
  broker.queue('billing', { topics: ['#'] })
  await relayed(broker, ['one', 'two'])
  const applied: string[] = []
  let refuses = true
  const consumer = once.consumer({
    name: 'billing',
    source: broker.source('billing'),
    pollMs: 20,
    handle: ({ message }) => {
      if (refuses) throw unprocessable('no such\u001b[2J customer')
      applied.push(message.id)
    },
  })
  await consumer.start()
  const entries = () => once.quarantined({ of: 'inbox' }).then(({ inbox }) => inbox)
  await eventually('both are quarantined', async () => (await entries()).length === 2)
  const [first, second] = await entries()
  const ids = [first?.id ?? '', second?.id ?? '']
  const { out } = await cli('list')
  expect(out.split('\n')).toHaveLength(2)
  expect(out).toContain(`billing  order.created.v1  ${first?.messageId}  refused  `)
  expect(out).not.toContain('\u001b')
  const page = JSON.parse((await cli('list', '--only', 'inbox', '--after', ids[0] ?? '', '--json')).out)
  expect(page.inbox).toMatchObject([{ id: ids[1], messageId: second?.messageId }])
  refuses = false
  const sent = await cli('redrive', ...ids, '4711', '--inbox', ...PERSON)
  expect(sent).toMatchObject({ code: 1, out: `${ids[0]}  redriven\n${ids[1]}  redriven\n4711  notFound` })
  expect(sent.err).toContain('1 of 3')
  await eventually('both are applied', () => applied.length === 2)
  expect(new Set(applied)).toEqual(new Set([first?.messageId, second?.messageId]))
  expect(await audit('inbox.redrive')).toMatchObject([
    { actor: 'ann', subject: `billing/${first?.markId}`, reason: 'ticket 4711' },
    { actor: 'ann', subject: `billing/${second?.markId}`, reason: 'ticket 4711' },
  ])
  expect(await cli('redrive', ...ids, '--inbox', ...PERSON)).toMatchObject({ code: 1 })
  await consumer.stop()
  expect(applied).toHaveLength(2)
})

test('ids that are none and flags that do not fit are wrong use, and nothing is changed', async () => {
  const wrong = [
    ['list', '--only', 'nothing'],
    ['list', '--only', 'outbox', '--after', '1'],
    ['list', '--only', 'inbox', '--state', 'parked'],
    ['redrive', '1; drop table x', '--inbox', ...PERSON],
    ['redrive', '99999999999999999999', '--inbox', ...PERSON],
    ['redrive', '1', '--outbox', ...PERSON],
    ['redrive', '1', '--inbox', '--outbox', ...PERSON],
    ['redrive', '1', '--override', ...PERSON],
    ['redrive', '1', '2', ...PERSON],
    ['redrive', '1', '--inbox', '--actor', '', '--reason', 'x'],
    ['redrive', '1', '--inbox', '--actor', 'ann', '--reason', 'a\0b'],
    ['redrive', '1', '--inbox', '--actor', 'ann\ud800', '--reason', 'x'],
  ]
  const { signal } = new AbortController()
  const env = { DATABASE_URL: database.url }
  for (const words of wrong) {
    const code = await run(words, '0.0.0', { out: () => {}, err: () => {}, env, cwd: process.cwd(), signal })
    expect(code, words.join(' ')).toBe(2)
  }
})
