/**
 * Http: guarded routes against the same handlers in a bare transaction, replays against a prepared select, a thousand
 * callers on one key, and memory under answers near the limit. Client and servers are processes of their own.
 *
 * @module
 */

import { type ChildProcess, fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once as event } from 'node:events'
import http from 'node:http'
import { fileURLToPath } from 'node:url'
import { startDatabase } from './database.ts'
import { aboutDatabase } from './guard.ts'
import { fuzzGrowth } from './http-fuzz.ts'
import { mismatchTiming } from './http-timing.ts'
import { median, paired, quartiles } from './paired.ts'
import { type Result, ratioResult, valueResult } from './report.ts'
import { core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

const CALLERS = 64
const SLICE_MS = 500
const WARM_UP = 3_000
const WAITERS = 1_000
const HOT_WARM_UP = 5
const HOT_ROUNDS = 5
const HOT_LIMIT_MS = 50
const HOT_ACROSS_LIMIT_MS = 600
const LARGE_REQUESTS = 2_000
/** Largest answer that is kept (the default of responseBytesMax), bytes. */
const CAPTURE_BYTES = 262_144
/** Each answer is held as chunks, as a whole, and in what the driver sends. */
const COPIES = 6
const BODY = JSON.stringify({ customer: 'c-7', amountCents: 4_200 })

interface Ports {
  readonly hono: number
  readonly fastify: number
}

interface Server extends Ports {
  readonly child: ChildProcess
  rss(): Promise<number>
}

export async function httpSuite({ say, pairs = 9, only }: SuiteOptions): Promise<SuiteResult> {
  const database = await startDatabase()
  const servers: Server[] = []
  const agent = new http.Agent({ keepAlive: true, maxSockets: CALLERS })
  // Connections that are not kept are opened anew, and a server's backlog takes half of a thousand: the others try again
  // after a second.
  const crowd = new http.Agent({ keepAlive: true, maxSockets: WAITERS, maxFreeSockets: WAITERS })
  const wanted = (name: string) => only === undefined || only === name
  try {
    const admin = database.pool({ max: 1 })
    await core.createOnce({ store: stores.postgres(admin) }).migrate()
    await admin.query('create table prepared (id int primary key, body text not null)')
    await admin.query(`insert into prepared values (1, '{"orderId":"1"}')`)
    const one = await startServer(database.url)
    servers.push(one)
    const results: Result[] = []
    const compare = async (name: string, candidate: Run, baseline: Run, limit: number) => {
      if (!wanted(name)) return
      await database.settle()
      const { cpu } = database
      const options = { candidate, baseline, callers: CALLERS, pairs, sliceMs: SLICE_MS, warmUp: WARM_UP, cpu }
      results.push(ratioResult(name, await paired(options), { limit }, say))
    }
    for (const framework of ['hono', 'fastify'] as const) {
      const port = one[framework]
      const bare = () => post(agent, port, '/bare', undefined)
      await compare(`http-${framework}`, () => post(agent, port, '/guarded', randomUUID()), bare, 0.75)
      await compare(`http-${framework}-first`, () => post(agent, port, '/first', randomUUID()), bare, 0.75)
    }
    const key = randomUUID()
    await post(agent, one.hono, '/guarded', key)
    await compare(
      'http-replay',
      () => post(agent, one.hono, '/guarded', key),
      () => post(agent, one.hono, '/select', undefined),
      0.85,
    )
    if (wanted('http-hot-key')) {
      const two = await startServer(database.url)
      servers.push(two)
      for (const [name, ports, limit] of [
        ['http-hot-key', [one.hono], HOT_LIMIT_MS],
        ['http-hot-key-across', [one.hono, two.hono], HOT_ACROSS_LIMIT_MS],
      ] as const) {
        const late = await hotKeys(crowd, ports)
        const spread = { value: median(late), quartiles: quartiles(late), pairs: late.length }
        results.push(valueResult({ name, unit: 'ms', direction: 'lower', limit, ...spread }, say))
      }
    }
    if (wanted('http-rss')) results.push(await memory(agent, one, say))
    if (wanted('http-mismatch-timing')) results.push(await mismatchTiming(say))
    if (wanted('http-fuzz-growth')) results.push(await fuzzGrowth(say))
    return { ...aboutDatabase(database), results }
  } finally {
    agent.destroy()
    crowd.destroy()
    for (const { child } of servers) child.kill('SIGKILL')
    await database.stop()
  }
}

type Run = () => Promise<unknown>

/** Several executions, each with a key of its own; those of the warm-up open the connections and compile the code. */
async function hotKeys(agent: http.Agent, ports: readonly number[]): Promise<number[]> {
  const late: number[] = []
  for (let round = 0; round < HOT_WARM_UP + HOT_ROUNDS; round++) late.push(await hotKey(agent, ports))
  return late.slice(HOT_WARM_UP)
}

/** How much later than the execution's end the last of a thousand callers on one key has its answer, milliseconds. */
async function hotKey(agent: http.Agent, ports: readonly number[]): Promise<number> {
  const key = randomUUID()
  const answers = await Promise.all(
    Array.from({ length: WAITERS }, (_, at) => post(agent, ports[at % ports.length] ?? 0, '/hot', key)),
  )
  const fresh = answers.filter(({ replayed }) => !replayed)
  if (fresh.length !== 1) throw new Error(`${fresh.length} executions of one key`)
  const { at } = JSON.parse(answers[0]?.text ?? '{}') as { at: number }
  return Math.max(...answers.map((answer) => answer.receivedAt)) - at
}

/** Memory that answers near the limit take above the bare process, MiB. */
async function memory(agent: http.Agent, server: Server, say: (line: string) => void): Promise<Result> {
  const before = await server.rss()
  let peak = before
  let left = LARGE_REQUESTS
  const watch = setInterval(() => {
    server.rss().then(
      (rss) => {
        peak = Math.max(peak, rss)
      },
      () => {},
    )
  }, 50)
  const caller = async () => {
    for (; left > 0; ) {
      left -= 1
      await post(agent, server.hono, '/large', randomUUID())
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, caller))
  clearInterval(watch)
  const value = (peak - before) / 2 ** 20
  const limit = Math.round((CAPTURE_BYTES * CALLERS * COPIES) / 2 ** 20)
  return valueResult(
    { name: 'http-rss', value, unit: 'MiB', direction: 'lower', quartiles: [value, value], pairs: 1, limit },
    say,
  )
}

interface Got {
  readonly text: string
  readonly replayed: boolean
  readonly receivedAt: number
}

function post(agent: http.Agent, port: number, path: string, key: string | undefined): Promise<Got> {
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/json',
      'content-length': BODY.length,
      ...(key === undefined ? {} : { 'idempotency-key': key }),
    }
    const request = http.request({ agent, host: '127.0.0.1', port, path, method: 'POST', headers }, (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk: string) => {
        text += chunk
      })
      response.on('error', reject)
      response.on('end', () => {
        if (response.statusCode !== 201) reject(new Error(`${path}: ${response.statusCode} ${text.slice(0, 200)}`))
        resolve({ text, replayed: response.headers['idempotent-replayed'] === 'true', receivedAt: Date.now() })
      })
    })
    request.on('error', reject)
    request.end(BODY)
  })
}

async function startServer(url: string): Promise<Server> {
  const child = fork(fileURLToPath(new URL('http-child.ts', import.meta.url)), [], {
    execArgv: ['--import', 'tsx'],
    env: { ...process.env, DATABASE_URL: url },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  const signal = AbortSignal.timeout(60_000)
  const exited = event(child, 'exit', { signal }).then(() => {
    throw new Error('the server ended before it was ready')
  })
  exited.catch(() => {})
  const [ports] = (await Promise.race([event(child, 'message', { signal }), exited])) as [Ports]
  return {
    ...ports,
    child,
    async rss() {
      child.send('memory')
      const [said] = (await event(child, 'message')) as [{ readonly rss: number }]
      return said.rss
    },
  }
}
