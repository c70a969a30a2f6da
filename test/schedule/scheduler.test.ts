import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import {
  createOnce,
  type Op,
  type Scheduler,
  type SchedulerEvent,
  type SchedulerOptions,
  type Tick,
} from '../../src/index.ts'
import { identify } from '../../src/operation/identity.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'
import { eventually } from '../eventually.ts'

let database: { readonly url: string; drop(): Promise<void> }
let admin: pg.Pool
const ending: (() => Promise<unknown>)[] = []

beforeAll(async () => {
  database = await createDatabase()
  admin = new pg.Pool({ connectionString: database.url, max: 3 })
  await createOnce({ store: postgres(admin) }).migrate()
})
afterAll(async () => {
  for (const end of ending.reverse()) await end()
  await admin.end()
  await database.drop()
})

const HOUR = 3_600_000

/** As a process would have it: a pool, a kind and a schedule of its own. */
type At = { readonly at: string }
type Handler = (op: Op<pg.PoolClient>, payload: At) => unknown

function node(
  name: string,
  options: Partial<Pick<SchedulerOptions<pg.PoolClient, At>, 'catchUp' | 'everyMs' | 'overlap'>> = {},
  handler: Handler = (_op, payload) => payload.at,
) {
  const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 5 })
  ending.push(() => pool.end())
  const once = createOnce({ store: postgres(pool) })
  const kind = once.define(`${name}.run`, { leaseMs: 1_000, handler })
  const events: SchedulerEvent[] = []
  const schedule = once.schedule(name, {
    everyMs: HOUR,
    kind,
    payload: (tick: Tick) => ({ at: tick.at.toISOString() }),
    onEvent: (event) => events.push(event),
    pollMs: 100,
    ...options,
  })
  const start = async () => {
    await schedule.start()
    ending.push(() => schedule.stop())
  }
  return { once, kind, schedule, events, start }
}
const jobs = async (name: string): Promise<string[]> => {
  const { rows } = await admin.query(
    `select payload::json -> 'payload' ->> 'at' as at from effectively_once.operation where kind = $1 order by 1`,
    [`${name}.run`],
  )
  return rows.map(({ at }) => at as string)
}
const position = async (name: string): Promise<string | undefined> => {
  const { rows } = await admin.query(
    `select position::json ->> 'at' as at from effectively_once.progress where name = $1`,
    [name],
  )
  return rows[0]?.at
}
/** As if nothing had run for so long. */
const setBack = (name: string, ms: number) =>
  admin.query(
    `update effectively_once.progress set position = json_build_object('at',
       to_char((position::json ->> 'at')::timestamptz at time zone 'utc' - $2::bigint * interval '1 millisecond',
         'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))::text where name = $1`,
    [name, ms],
  )
const begun = async (name: string, schedule: Scheduler) => {
  await schedule.start()
  await eventually('it has begun', async () => (await position(name)) !== undefined)
  await schedule.stop()
}

test('R37: eight schedulers that overlap start each missed tick once', async () => {
  await begun('overlap', node('overlap').schedule)
  expect(await jobs('overlap')).toEqual([])
  await setBack('overlap', 250 * 60_000)
  const nodes = Array.from({ length: 8 }, () => node('overlap', { catchUp: 'all', everyMs: 60_000 }))
  await Promise.all(nodes.map(({ start }) => start()))
  await eventually('all are there', async () => (await jobs('overlap')).length >= 250)
  await Promise.all(nodes.map(({ schedule }) => schedule.stop()))
  const started = await jobs('overlap')
  expect(new Set(started).size).toBe(started.length)
  const told = nodes.flatMap(({ events }) => events.flatMap((event) => (event.type === 'ticked' ? event.ticks : [])))
  expect(told.map(({ at }) => at.toISOString()).toSorted()).toEqual(started)
  const minutes = started.map((at) => Date.parse(at) / 60_000)
  expect(minutes).toEqual(Array.from({ length: minutes.length }, (_, n) => (minutes[0] ?? 0) + n))
})

test('R37: a restart repeats nothing, also when the jobs of the ticks are long forgotten', async () => {
  const first = node('restart')
  await begun('restart', first.schedule)
  await setBack('restart', 3 * HOUR)
  const second = node('restart')
  await second.start()
  await eventually('the last one is there', async () => (await jobs('restart')).length === 1)
  await second.schedule.stop()
  await admin.query("delete from effectively_once.operation where kind = 'restart.run' or scope like '%progress%'")
  const third = node('restart')
  const before = await position('restart')
  await third.start()
  const worker = third.once.worker({ kinds: [third.kind], pollMs: 20 })
  await worker.start()
  await worker.drain()
  await worker.stop()
  await third.schedule.stop()
  expect(await jobs('restart')).toEqual([])
  expect(await position('restart')).toBe(before)
})

test('R37: only what is hardly late is started with catchUp none, and nothing after a clock was set back', async () => {
  await begun('none', node('none').schedule)
  await setBack('none', 5 * 24 * HOUR)
  const late = node('none', { catchUp: 'none', everyMs: 24 * HOUR })
  await late.start()
  await late.schedule.stop()
  // At most the tick of this very minute.
  expect((await jobs('none')).length).toBeLessThanOrEqual(1)
  await begun('future', node('future').schedule)
  await setBack('future', -5 * 24 * HOUR)
  const future = node('future', { catchUp: 'all' })
  await future.start()
  await future.schedule.stop()
  expect(await jobs('future')).toEqual([])
})

test('R37: a worker does what was due, and a tick that somebody has started by hand with other content holds up nothing', async () => {
  const n = node('work', { catchUp: 'all' })
  await begun('work', node('work').schedule)
  await setBack('work', 2 * HOUR)
  const { rows } = await admin.query(`select (floor(extract(epoch from now()) / 3600) * 3600000)::float8 as ms`)
  const key = `work@${new Date(rows[0].ms).toISOString()}`
  await n.kind.start({ scope: 'schedule', key, payload: { at: 'by hand' } })
  await n.start()
  await eventually('the mismatch was told', () => n.events.some(({ type }) => type === 'mismatch'))
  const worker = n.once.worker({ kinds: [n.kind], pollMs: 20 })
  await worker.start()
  await eventually('ticked', () => n.events.some(({ type }) => type === 'ticked'))
  await worker.drain()
  await worker.stop()
  const done = await admin.query(
    `select outcome::json #>> '{}' as at from effectively_once.operation where kind = 'work.run' and state = 'succeeded'`,
  )
  expect(done.rows.map(({ at }) => at as string)).toContain('by hand')
  expect(done.rows.length).toBeGreaterThanOrEqual(2)
})

/** Ticks each second, and a worker; the first tick's handler is `first`, which the test lets go on. */
async function overlapping(name: string, overlap: 'skip' | 'replace', first: (op: Op<pg.PoolClient>) => unknown) {
  let starts = 0
  const ran: string[] = []
  const n = node(name, { overlap, everyMs: 1_000 }, async (op, { at }) => {
    ran.push(at)
    starts += 1
    return starts === 1 ? await first(op) : at
  })
  await n.start()
  const worker = n.once.worker({ kinds: [n.kind], pollMs: 20 })
  await worker.start()
  ending.push(() => worker.stop())
  const outcome = async (at: string) => {
    const { rows } = await admin.query(
      `select state::text, outcome::json as outcome from effectively_once.operation where kind = $1 and id = $2`,
      [`${name}.run`, identify('schedule', `${name}@${at}`).id],
    )
    return rows[0]
  }
  const told = <T extends SchedulerEvent['type']>(type: T) =>
    n.events.filter((event): event is Extract<SchedulerEvent, { type: T }> => event.type === type)
  const end = async () => {
    await n.schedule.stop()
    await worker.drain()
  }
  return { ran, outcome, told, end }
}

function latch(): { readonly opened: Promise<void>; open(): void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}

test('SC52: with overlap skip no tick is started while the one before is at work, and ticks go on afterwards', async () => {
  const go = latch()
  const n = await overlapping('skip', 'skip', () => go.opened)
  await eventually('two ticks were left out', () => n.told('skipped').length >= 2)
  expect(n.ran).toHaveLength(1)
  expect(await jobs('skip')).toHaveLength(1)
  go.open()
  await eventually('the next has run', () => n.ran.length >= 2)
  await n.end()
  for (const { tick } of n.told('skipped')) expect(n.ran).not.toContain(tick.at.toISOString())
})

test('SC52, SC47, I5: with overlap replace the older run is ended: it is told, and nothing that it does later is stored', async () => {
  const go = latch()
  const done = latch()
  let late: unknown
  let wasAborted = false
  await admin.query('create table written (what text)')
  const n = await overlapping('replace', 'replace', async (op) => {
    await op.transaction('first', ({ tx }) => tx.query("insert into written values ('first')").then(() => 1))
    await new Promise<void>((resolve) => op.signal.addEventListener('abort', () => resolve(), { once: true }))
    wasAborted = (op.signal.reason as { readonly code?: string }).code === 'LEASE_LOST'
    await go.opened
    late = await op
      .transaction('late', ({ tx }) => tx.query("insert into written values ('late')").then(() => 1))
      .catch((error: { readonly code: string }) => error.code)
    done.open()
    return 'late'
  })
  await eventually('it was replaced', () => n.told('replaced').length === 1)
  const [first, second] = [n.ran[0] as string, n.told('replaced')[0]?.tick.at.toISOString()]
  expect(n.told('replaced')[0]?.earlier).toBe('ended')
  await eventually('the next has run', () => n.ran.length >= 2)
  go.open()
  await done.opened
  await n.end()
  expect([wasAborted, late]).toEqual([true, 'LEASE_LOST'])
  const replaced = { code: 'REPLACED', by: `replace@${second}` }
  expect(await n.outcome(first)).toEqual({ state: 'rejected', outcome: replaced })
  expect(await n.outcome(second as string)).toEqual({ state: 'succeeded', outcome: second })
  expect((await admin.query('select what from written')).rows).toEqual([{ what: 'first' }])
})

test('SC52, I11: with overlap replace a run whose call may have got through goes on beside the next one', async () => {
  const go = latch()
  const n = await overlapping('kept', 'replace', (op) =>
    op.effect('call', { request: null, call: () => go.opened.then(() => 'done'), delivery: 'at-most-once' }),
  )
  await eventually('the next was due', () => n.told('replaced').length === 1)
  expect(n.told('replaced')[0]?.earlier).toBe('kept')
  await eventually('the next has run', () => n.ran.length >= 2)
  go.open()
  const first = n.ran[0] as string
  await eventually('it is done', async () => (await n.outcome(first))?.state === 'succeeded')
  await n.end()
  expect(await n.outcome(first)).toEqual({ state: 'succeeded', outcome: 'done' })
})

test('wrong options are told at once', () => {
  const { once, kind } = node('options')
  const make = (options: object) => () => once.schedule('x', { kind, payload: null, ...options })
  expect(make({})).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ cron: '* * * * *', everyMs: 60_000 })).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ everyMs: 60_000, timeZone: 'UTC' })).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ cron: '61 * * * *' })).toThrow(/minute/)
  expect(make({ everyMs: 60_000, kind: {} })).toThrow(/needs kind/)
  expect(make({ everyMs: 60_000, payload: undefined })).toThrow(/needs payload/)
  expect(make({ everyMs: 60_000, overlap: 'replace', catchUp: 'all' })).toThrow(
    /overlap replace goes with catchUp last/,
  )
  expect(make({ everyMs: 60_000, overlap: 'queue' })).toThrow(/overlap takes beside/)
})
