/**
 * `npm run drill:zoo`: drills every pair of examples/zoo. A mistake must be caught with its verdict in its window; its twin
 * must pass every window.
 *
 * `--only NAME,NAME` these pairs · `--third N` every third pair, N = 0, 1 or 2 (without a number: by the day of the year) ·
 * `--workers N` runs at once, default 2. The last line is `zoo: 24/24 caught, 24/24 twins clean, slowest 14 s`; it ends with
 * 1 when something was missed, a twin was complained about, or a pair or the whole took too long.
 */
import { parseArgs } from 'node:util'
import { type Pair, pairs } from '../examples/zoo/pairs.ts'
import { type DrillOptions, type DrillResult, drill } from '../src/drill/drill.ts'
import { steps } from '../src/drill/report/story.ts'
import type { WindowResult } from '../src/drill/run/campaign.ts'
import { startPostgres } from '../src/testing/services/postgres.ts'
import { startRabbit } from '../src/testing/services/rabbitmq.ts'

const PAIR_MS_MAX = 20_000
const ZOO_MS_MAX = 900_000
const WORKERS_MAX = 16
/** Most lines of a story. */
const LINES_MAX = 40
const DAY_MS = 86_400_000

const { values: asked } = parseArgs({
  args: process.argv.slice(2).flatMap((arg, index, all) => {
    const bare = arg === '--third' && !/^\d+$/.test(all[index + 1] ?? '')
    return bare ? ['--third', String(dayOfYear() % 3)] : [arg]
  }),
  options: { only: { type: 'string' }, third: { type: 'string' }, workers: { type: 'string', default: '2' } },
})
const workers = numberOf('--workers', asked.workers, 1, WORKERS_MAX)
const third = asked.third === undefined ? undefined : numberOf('--third', asked.third, 0, 2)
const only = asked.only?.split(',')
const chosen = pairs.filter(
  ({ name }, index) => (only === undefined || only.includes(name)) && (third === undefined || index % 3 === third),
)
const unknown = only?.filter((name) => !pairs.some((pair) => pair.name === name)) ?? []
if (chosen.length === 0 || unknown.length > 0)
  fail(`no such pair: ${unknown.join(', ')}; known: ${pairs.map(({ name }) => name).join(', ')}`)

interface Servers {
  readonly databaseUrl: string
  /** Two virtual hosts for each worker: runs that wait for a lease do not count. */
  readonly amqpUrl: readonly string[]
  stop(): Promise<unknown>
}

/** How one pair has ended. */
interface Judged {
  readonly name: string
  readonly caught: boolean
  readonly clean: boolean
  readonly tookMs: number
}

const began = performance.now()
const servers = await startServers()
const judged: Judged[] = []
try {
  for (const pair of chosen) judged.push(await judge(pair, servers))
} finally {
  await servers.stop()
}
const count = (good: (pair: Judged) => boolean): string => `${judged.filter(good).length}/${judged.length}`
const [slowest] = judged.toSorted((a, b) => b.tookMs - a.tookMs)
const slowestMs = slowest?.tookMs ?? 0
const tookMs = performance.now() - began
console.log(
  `slowest: ${slowest?.name} ${(slowestMs / 1_000).toFixed(1)} s (limit ${PAIR_MS_MAX / 1_000} s); ` +
    `all: ${(tookMs / 1_000).toFixed(0)} s (limit ${ZOO_MS_MAX / 1_000} s)`,
)
console.log(
  `zoo: ${count(({ caught }) => caught)} caught, ${count(({ clean }) => clean)} twins clean, ` +
    `slowest ${Math.ceil(slowestMs / 1_000)} s`,
)
const right = judged.every(({ caught, clean }) => caught && clean)
if (!right || slowestMs > PAIR_MS_MAX || tookMs > ZOO_MS_MAX) process.exitCode = 1

async function judge(pair: Pair, on: Servers): Promise<Judged> {
  const began = performance.now()
  const { caught, others } = await drillMistake(pair, on)
  const twin = await run(`${pair.name}.fixed`, on)
  const alarms = twin.windows.filter(({ passed }) => !passed)
  const tookMs = performance.now() - began
  const clean = alarms.length === 0
  const ok = caught !== undefined && clean
  console.log(
    `${ok ? 'ok  ' : 'FAIL'} ${pair.name.padEnd(28)} ${pair.verdict.padEnd(16)} ${pair.window.padEnd(48)} ` +
      `twin ${twin.windows.length - alarms.length}/${twin.windows.length}  ${(tookMs / 1_000).toFixed(1)} s`,
  )
  if (caught === undefined) {
    console.log(`     not caught; ${others.length === 0 ? 'all windows passed' : 'these were:'}`)
    for (const other of others) console.log(`       ${verdictText(other)}: ${other.name}`)
  }
  for (const alarm of alarms) {
    console.log(`     false alarm in the twin: ${verdictText(alarm)}: ${alarm.name}`)
    const told = alarm.run === undefined ? [] : steps(alarm.run)
    for (const line of told.slice(0, LINES_MAX)) console.log(`     ${line}`)
  }
  return { name: pair.name, caught: caught !== undefined, clean, tookMs }
}

/** Drills until the mistake has shown what it is expected to show. */
async function drillMistake(
  { name, verdict, window }: Pair,
  on: Servers,
): Promise<{ readonly caught: WindowResult | undefined; readonly others: readonly WindowResult[] }> {
  const isExpected = (one: WindowResult): boolean => one.name === window && one.verdict === verdict && one.reached
  const enough = new AbortController()
  const { windows } = await run(name, on, {
    signal: enough.signal,
    onProgress: ({ latest }) => {
      if (isExpected(latest)) enough.abort()
    },
  })
  return {
    caught: windows.find(isExpected),
    others: windows.filter(({ passed, verdict: told }) => !passed && told !== undefined),
  }
}

function run(name: string, { databaseUrl, amqpUrl }: Servers, more: DrillOptions = {}): Promise<DrillResult> {
  return drill(`examples/zoo/${name}.ts`, { databaseUrl, throwAway: 'postgres', amqpUrl, workers, ...more })
}

async function startServers(): Promise<Servers> {
  const [postgres, rabbit] = await Promise.all([startPostgres({ forgetful: true }), startRabbit()])
  const others = Array.from({ length: 2 * workers - 1 }, (_, index) => `zoo-${index + 2}`)
  for (const name of others) {
    await rabbit.ctl('add_vhost', name)
    await rabbit.ctl('set_permissions', '-p', name, 'guest', '.*', '.*', '.*')
  }
  return {
    databaseUrl: postgres.url,
    amqpUrl: [rabbit.url, ...others.map((name) => rabbit.urlOf(name))],
    stop: () => Promise.all([postgres.stop(), rabbit.stop()]),
  }
}

function verdictText({ verdict, reached }: WindowResult): string {
  return verdict === undefined ? 'NOT RUN' : reached ? verdict : 'NOT REACHED'
}

/** From 0. */
function dayOfYear(): number {
  const now = new Date()
  return Math.floor((now.getTime() - Date.UTC(now.getUTCFullYear(), 0, 1)) / DAY_MS)
}

function numberOf(name: string, text: string, min: number, max: number): number {
  const value = Number(text)
  if (!Number.isInteger(value) || value < min || value > max) fail(`${name} takes a whole number, ${min} to ${max}`)
  return value
}

function fail(message: string): never {
  console.error(message)
  process.exit(2)
}
