/**
 * Run: what a leased operation costs, alone and beside peers; how soon a dead owner is replaced; what open leases cost.
 *
 * @module
 */

import { type ChildProcess, fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once as event } from 'node:events'
import { fileURLToPath } from 'node:url'
import type pg from 'pg'
import type { Once } from '../src/once.ts'
import { type BenchDatabase, bareTransaction, startDatabase } from './database.ts'
import { aboutDatabase } from './guard.ts'
import { median, paired, quartiles } from './paired.ts'
import { dbosPeer, type Peer, redisGuardPeer } from './peers.ts'
import { type RatioGoal, type Result, ratioResult, type Say, valueResult } from './report.ts'

import { core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

const SCOPE = ['acme', 'invoice.create']
const SLICE_MS = 320
const WARM_UP = 8_000
const LEASES = 10_000
/** How long open leases are watched, milliseconds: one whole round of renewals at the default lease. */
const WATCH_MS = 30_000
const TAKEOVER_LEASE_MS = 1_000

const operation = () => ({ scope: SCOPE, key: randomUUID(), payload: { amountCents: 4_200 } })
const nothing = (): null => null

export async function runSuite({ say, pairs = 15, only }: SuiteOptions): Promise<SuiteResult> {
  const database = await startDatabase()
  const versions: Record<string, string> = {}
  try {
    const pool = database.pool({ pipeline: true })
    const once = core.createOnce({ store: stores.postgres(pool) })
    await once.migrate()
    const results: Result[] = []
    const wanted = (name: string) => only === undefined || only === name
    const measure = async (
      name: string,
      candidate: () => Promise<unknown>,
      baseline: () => Promise<unknown>,
      callers: number,
      goal: RatioGoal,
    ) => {
      await database.settle()
      const { cpu } = database
      const figures = await paired({ candidate, baseline, callers, pairs, sliceMs: SLICE_MS, warmUp: WARM_UP / 4, cpu })
      results.push(ratioResult(name, figures, goal, say))
    }
    const against = async (
      name: string,
      candidate: () => Promise<unknown>,
      make: () => Promise<Peer>,
      goal: RatioGoal,
    ) => {
      const peer = await make()
      versions[name] = peer.version
      try {
        await measure(name, candidate, peer.run, 64, goal)
      } finally {
        await peer.stop()
      }
    }
    const empty = () => once.run(operation(), nothing)
    const oneStep = () => once.run(operation(), (op) => op.memo('step', () => 1))
    if (wanted('run-coalesced')) {
      await measure('run-coalesced', empty, () => bareTransaction(pool), 64, { limit: 2.5 })
    }
    if (wanted('run-single')) await measure('run-single', empty, () => twoStatements(pool), 1, { limit: 0.9 })
    if (wanted('run-step')) {
      const step = () => once.run(operation(), (op) => op.transaction('step', ({ tx }) => insert(tx)))
      await measure('run-step', step, () => bareTransaction(pool), 64, {})
    }
    if (wanted('run-vs-dbos')) await against('run-vs-dbos', oneStep, () => dbosPeer(database.url), { limit: 20 })
    if (wanted('run-vs-redis-guard')) await against('run-vs-redis-guard', empty, redisGuardPeer, { limit: 0.8 })
    if (wanted('run-takeover')) results.push(await takeover(database, once, Math.min(pairs, 7), say))
    if (wanted('run-renewals')) results.push(await renewals(database, once, say))
    return { ...aboutDatabase(database), versions: { ...aboutDatabase(database).versions, ...versions }, results }
  } finally {
    await database.stop()
  }
}

async function insert(tx: pg.PoolClient): Promise<null> {
  await tx.query('insert into orders (customer, amount_cents) values ($1, $2)', ['c-7', 4_200])
  return null
}

/** The form that is not grouped: a statement that claims and one that completes, each prepared. */
async function twoStatements(pool: pg.Pool): Promise<void> {
  const values = [randomUUID(), randomUUID(), Buffer.alloc(32), JSON.stringify(SCOPE)]
  await pool.query({
    name: 'claim',
    text:
      'insert into effectively_once.operation (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, ' +
      "expires_at, fence, lease_until, claims, failures, kind_version) values ($1, $2, 'processing', 'canonical', $3, $4, 1, " +
      "'infinity', 1, clock_timestamp() + interval '30 seconds', 1, 0, 1) on conflict do nothing returning id",
    values,
  })
  await pool.query({
    name: 'complete',
    text:
      "update effectively_once.operation set state = 'succeeded', outcome = $3, lease_until = null, " +
      "expires_at = clock_timestamp() + interval '30 days' where id = $1 and token = $2 and fence = 1 " +
      "and state = 'processing' and lease_until > clock_timestamp() returning id",
    values: [values[0], values[1], 'null'],
  })
}

interface Told {
  readonly kind: string
  readonly atMs: number
}

/** From the end of a killed owner's lease to the start of its work in another process. */
async function takeover(database: BenchDatabase, once: Once<pg.PoolClient>, rounds: number, say: Say): Promise<Result> {
  const kind = once.define('bench.takeover', { version: 1, leaseMs: TAKEOVER_LEASE_MS, handler: nothing })
  const probe = database.pool({ max: 1 })
  const waits: number[] = []
  for (let round = 0; round < rounds; round++) {
    // What the round before has left would be taken over as well.
    await probe.query("delete from effectively_once.operation where kind = 'bench.takeover'")
    const holder = child('hold', database.url)
    await told(holder, 'ready')
    const key = randomUUID()
    const started = told(holder, 'started')
    await kind.start({ scope: SCOPE, key, payload: null })
    await started
    // It polls while the owner lives, and has nothing to do.
    const taker = child('take', database.url)
    await told(taker, 'ready')
    const took = told(taker, 'started')
    holder.kill('SIGKILL')
    const { rows } = await probe.query(
      "select extract(epoch from max(lease_until)) * 1000 as ms from effectively_once.operation where kind = 'bench.takeover' and state = 'processing'",
    )
    waits.push((await took).atMs - Number(rows[0].ms))
    taker.kill('SIGKILL')
  }
  return valueResult(
    {
      name: 'run-takeover',
      value: Math.max(...waits),
      unit: 'ms',
      direction: 'lower',
      quartiles: quartiles(waits),
      pairs: rounds,
      limit: 1_000,
    },
    say,
  )
}

function child(role: string, url: string): ChildProcess {
  return fork(fileURLToPath(new URL('run-child.ts', import.meta.url)), [role, url, String(TAKEOVER_LEASE_MS)], {
    execArgv: ['--import', 'tsx'],
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
}

async function told(from: ChildProcess, kind: string): Promise<Told> {
  const signal = AbortSignal.timeout(60_000)
  for (;;) {
    const [message] = (await event(from, 'message', { signal })) as [Told]
    if (message.kind === kind) return message
  }
}

/** CPU of this process and of the server while leases are held and nothing else happens, as a share of one core. */
async function renewals(database: BenchDatabase, once: Once<pg.PoolClient>, say: Say): Promise<Result> {
  let end: (value: null) => void = () => {}
  const held = new Promise<null>((resolve) => {
    end = resolve
  })
  let started = 0
  const running = Array.from({ length: LEASES }, () =>
    once.run(operation(), async () => {
      started += 1
      return await held
    }),
  )
  while (started < LEASES) await new Promise((resolve) => setTimeout(resolve, 20))
  await database.settle()
  const shares: number[] = []
  const before = database.cpu.read()
  let last = before
  for (let part = 0; part < 3; part++) {
    await new Promise((resolve) => setTimeout(resolve, WATCH_MS / 3))
    const now = database.cpu.read()
    shares.push(((now.client - last.client) / (WATCH_MS / 3) / 1_000) * 100)
    last = now
  }
  const server = ((last.server - before.server) / WATCH_MS / 1_000) * 100
  end(null)
  await Promise.all(running)
  say(`  renewals: ${median(shares).toFixed(1)} % of a core here, ${server.toFixed(1)} % in the server`)
  return valueResult(
    {
      name: 'run-renewals',
      value: ((last.client - before.client) / WATCH_MS / 1_000) * 100,
      unit: '% of a core',
      direction: 'lower',
      quartiles: quartiles(shares),
      pairs: shares.length,
      limit: 5,
    },
    say,
  )
}
