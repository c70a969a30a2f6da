import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce, type Scheduler, type SchedulerEvent, type Tick } from '../../src/index.ts'
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
function node(name: string, options: { catchUp?: 'all' | 'last' | 'none'; everyMs?: number } = {}) {
  const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 5 })
  ending.push(() => pool.end())
  const once = createOnce({ store: postgres(pool) })
  const kind = once.define(`${name}.run`, { handler: (_op, payload: { at: string }) => payload.at })
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

test('wrong options are told at once', () => {
  const { once, kind } = node('options')
  const make = (options: object) => () => once.schedule('x', { kind, payload: null, ...options })
  expect(make({})).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ cron: '* * * * *', everyMs: 60_000 })).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ everyMs: 60_000, timeZone: 'UTC' })).toThrow(/cron \(with timeZone\) or everyMs/)
  expect(make({ cron: '61 * * * *' })).toThrow(/minute/)
  expect(make({ everyMs: 60_000, kind: {} })).toThrow(/needs kind/)
  expect(make({ everyMs: 60_000, payload: undefined })).toThrow(/needs payload/)
})
