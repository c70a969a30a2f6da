/**
 * Torture of the relay: real processes that are killed and stopped, writers that overlap in every way, and an oracle
 * that two wrong ways of reading must not pass.
 *
 * TORTURE_MS sets how long is written (default 20_000), TORTURE_SEED repeats a run.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'
import { judge } from './oracle.ts'
import { type Arrival, type Recorder, startRecorder } from './recorder.ts'
import { COUNTERS, seededRandom, type Writing, write } from './writers.ts'

const WRITE_MS = Number(process.env['TORTURE_MS'] ?? 20_000)
const SEED = Number(process.env['TORTURE_SEED'] ?? Math.floor(Math.random() * 1_000_000))
const LEASE_MS = 1_500
/** A disturbance can show itself for a lease of the silent owner, a takeover and what was still on its way. */
const NEAR_MS = 8_000
const KEYS = 400
const SCHEMA = 'effectively_once'

let database: Awaited<ReturnType<typeof createDatabase>>
let pool: pg.Pool
const children = new Set<ChildProcess>()

beforeEach(async () => {
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, max: 5 })
  await createOnce({ store: postgres(pool) }).migrate()
  await pool.query(COUNTERS)
})

afterEach(async () => {
  for (const child of children) child.kill('SIGKILL')
  await pool.end()
  await database.drop()
})

function run(file: string, env: Record<string, string>): ChildProcess {
  const path = fileURLToPath(new URL(`../processes/${file}.ts`, import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', path], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

const makeKeys = (keys: number) =>
  pool.query(`insert into counter select 'k' || g, 0 from generate_series(0, $1::int - 1) g`, [keys])

async function lastNumbers(): Promise<Map<string, number>> {
  const { rows } = await pool.query('select key, n from counter')
  return new Map(rows.map((row) => [String(row.key), Number(row.n)]))
}

async function drained(boundMs: number): Promise<void> {
  const end = performance.now() + boundMs
  for (;;) {
    const { rows } = await pool.query(`select count(*)::int as n from ${SCHEMA}.outbox`)
    if (rows[0].n === 0) return
    if (performance.now() > end) throw new Error(`${rows[0].n} rows are still pending after ${boundMs} ms`)
    await pause(50)
  }
}

/** One relay process that is killed, or stopped beyond its lease, again and again. */
async function disturbed(recorder: Recorder, random: () => number, signal: AbortSignal, at: number[]): Promise<void> {
  const env = { DATABASE_URL: database.url, RECORDER_PORT: String(recorder.port), LEASE_MS: String(LEASE_MS) }
  while (!signal.aborted) {
    const child = run('outbox-relay', env)
    await once(child.stdout ?? child, 'data')
    await pause(1_000 + random() * 3_000)
    if (signal.aborted) return
    at.push(performance.now())
    if (random() < 0.5) {
      child.kill('SIGSTOP')
      await pause(LEASE_MS * 1.7)
      child.kill('SIGCONT')
      at.push(performance.now())
      await pause(500 + random() * 1_500)
      at.push(performance.now())
    }
    if (signal.aborted) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
}

/** A transaction that inserts first and commits 10 s and more after. */
async function early(recorder: Recorder): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const outbox = createOnce({ store: postgres(pool) }).in(client).outbox
    await client.query(`insert into counter values ('early', 1)`)
    await outbox.add({ topic: 'torture.v1', orderingKey: 'early', payload: { key: 'early', n: 1 } })
    await pause(Math.max(10_500, WRITE_MS * 0.6))
    expect(recorder.arrivals.some((arrival) => arrival.key === 'early')).toBe(false)
    await client.query('commit')
  } finally {
    client.release()
  }
}

test('I7, I8, I15, R25, R29, SC7, SC26, SC30, SC34: under kills, stops, rollbacks and late commits nothing is skipped or out of order', {
  timeout: WRITE_MS + 120_000,
}, async () => {
  console.log(`torture seed ${SEED}; TORTURE_SEED=${SEED} repeats it`)
  const recorder = await startRecorder()
  try {
    await makeKeys(KEYS)
    const random = seededRandom(SEED)
    const writing: Writing = { url: database.url, seed: SEED, writers: 8, keys: KEYS, forMs: WRITE_MS }
    const over = new AbortController()
    const at: number[] = []
    const relays = [0, 1].map((index) => disturbed(recorder, seededRandom(SEED + index), over.signal, at))
    const late = early(recorder)
    const writers = [0, 1].map((index) =>
      run('outbox-writers', { WRITING: JSON.stringify({ ...writing, seed: SEED + 10 + index }) }),
    )
    const codes = await Promise.all(writers.map(async (child) => (await once(child, 'exit'))[0] as unknown))
    expect(codes).toEqual([0, 0])
    await late
    over.abort()
    // Whoever is alive now goes on undisturbed; a stopped one is woken so that its late batch can do its worst.
    for (const child of children) child.kill('SIGCONT')
    await Promise.all(relays)
    if (random() < 0.5) at.push(performance.now())
    run('outbox-relay', {
      DATABASE_URL: database.url,
      RECORDER_PORT: String(recorder.port),
      LEASE_MS: String(LEASE_MS),
    })
    await drained(90_000)
    const last = await lastNumbers()
    const verdict = judge(recorder.arrivals, last, at, NEAR_MS)
    const committed = [...last.values()].reduce((sum, n) => sum + n, 0)
    console.log(
      `torture: ${committed} messages, ${at.length} disturbances, ${verdict.duplicates} duplicates, seed ${SEED}`,
    )
    expect(committed).toBeGreaterThan(500)
    expect({ ...verdict, duplicates: 0 }, `TORTURE_SEED=${SEED}`).toEqual({
      skipped: [],
      invented: [],
      outOfOrder: [],
      duplicates: 0,
      unexplained: [],
    })
  } finally {
    recorder.close()
  }
})

/** Publishes what `read` finds, in that order, and deletes it, until the writers have ended and nothing is found. */
async function wrongRelay(read: (last: string) => string, writing: Writing): Promise<ReturnType<typeof judge>> {
  await makeKeys(writing.keys)
  const arrivals: Arrival[] = []
  let last = '0'
  let isWriting = true
  const written = write(writing).finally(() => {
    isWriting = false
  })
  for (;;) {
    const isLast = !isWriting
    const { rows } = await pool.query(read(last))
    for (const row of rows) arrivals.push({ ...JSON.parse(row.payload), atMs: performance.now() })
    last = String(rows.reduce((highest, row) => (BigInt(row.seq) > highest ? BigInt(row.seq) : highest), BigInt(last)))
    await pool.query(`delete from ${SCHEMA}.outbox where seq = any($1::bigint[])`, [rows.map((row) => row.seq)])
    if (isLast && rows.length === 0) break
    await pause(60)
  }
  await written
  return judge(arrivals, await lastNumbers(), [], 0)
}

const CONTROL = { writers: 12, keys: 25, forMs: 4_000 }

test('control: the same oracle catches a relay that reads on from the last seq', { timeout: 60_000 }, async () => {
  const verdict = await wrongRelay(
    (last) => `select seq, payload from ${SCHEMA}.outbox where seq > ${last} order by seq limit 1000`,
    { ...CONTROL, url: database.url, seed: SEED },
  )
  expect(verdict.skipped.length + verdict.outOfOrder.length).toBeGreaterThan(0)
})

test('control: the same oracle catches a relay that orders by transaction id', { timeout: 60_000 }, async () => {
  // The id of a subtransaction would do as well: it too is taken before the turn at the key.
  const verdict = await wrongRelay(
    () => `select seq, payload from ${SCHEMA}.outbox order by xmin::text::bigint, seq limit 1000`,
    { ...CONTROL, url: database.url, seed: SEED },
  )
  expect(verdict.outOfOrder.length).toBeGreaterThan(0)
})

test('control: the oracle has nothing against the same loop when it reads the lowest seq first', {
  timeout: 60_000,
}, async () => {
  const verdict = await wrongRelay(() => `select seq, payload from ${SCHEMA}.outbox order by seq limit 1000`, {
    ...CONTROL,
    url: database.url,
    seed: SEED,
  })
  expect({ ...verdict, duplicates: 0 }).toEqual({
    skipped: [],
    invented: [],
    outOfOrder: [],
    duplicates: 0,
    unexplained: [],
  })
})
