/** What a drill refuses, what it does not believe, and where its patience ends. */
import { randomBytes } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, inject, test } from 'vitest'
import { drill, drillToken, replayDrill } from '../../src/drill/drill.ts'
import { DrillRefused, MARKER_TABLE, refuseDatabase, refuseLiveKeys } from '../../src/drill/place/refuse.ts'
import { type PostgresService, startPostgres } from '../../src/testing/services/postgres.ts'
import { DRILL_MS, drillHandler as drillAlone, failed, ofFault } from './verdicts.ts'

let server: PostgresService

beforeAll(async () => {
  server = await startPostgres({ forgetful: true })
})

afterAll(() => server.stop())

const drillHandler: typeof drillAlone = (name, options) =>
  drillAlone(name, { databaseUrl: server.url, throwAway: 'postgres', ...options })

test(
  'R48: a handler that hangs is STUCK, within the bound',
  async () => {
    const result = await drillHandler('hangs')
    expect(failed(result)).toEqual(['no fault: STUCK'])
  },
  DRILL_MS,
)

test(
  'R48: a window that was traced and is never reached again does not pass, whatever was counted',
  async () => {
    const marker = join(tmpdir(), `effectively-once-drill-${randomBytes(6).toString('hex')}`)
    try {
      const result = await drillHandler('only-once', { env: { ...process.env, ONLY_ONCE: marker } })
      expect(ofFault(result, 'kill')).toEqual([
        'kill before sql:1:insert into runs: not reached',
        'kill after sql:1:insert into runs: not reached',
      ])
      expect(failed(result)).toContain('kill before sql:1:insert into runs: not reached')
      expect(result.passed).toBe(false)
    } finally {
      await rm(marker, { force: true })
    }
  },
  DRILL_MS,
)

test(
  'R48: a claim that nobody takes over is STUCK behind its death, and a token reproduces exactly that',
  async () => {
    const result = await drillHandler('claim-without-lease')
    const name = 'kill after sql:1:insert into claims'
    expect(failed(result)).toContain(`${name}: STUCK`)
    expect(ofFault(result, 'at-once')).toEqual(['delivered three times at once: one effect'])
    const window = result.windows.find((one) => one.name === name)
    if (window === undefined) throw new Error('it was found above')
    const again = await replayDrill(drillToken(result, window, process.cwd()), process.cwd(), {
      databaseUrl: server.url,
      throwAway: 'postgres',
    })
    expect(failed(again)).toEqual([`${name}: STUCK`])
    expect(again.windows).toHaveLength(1)
    await expect(replayDrill('d1.no', process.cwd())).rejects.toThrow('this is no token of a drill')
  },
  DRILL_MS,
)

test('R48: with the budget used up no window is begun, and what was not run does not pass', async () => {
  const result = await drillHandler('check-then-insert', { budgetMs: 1 })
  expect(result.run).toBe(1)
  expect(result.passed).toBe(false)
  expect(result.windows.slice(1).every(({ verdict, passed }) => verdict === undefined && !passed)).toBe(true)
})

test('T15: a database that nothing marks as throw-away is refused; name, marker table or flag make it one', async () => {
  const file = 'test/drill/handlers/check-then-insert.ts'
  await expect(drill(file, { databaseUrl: inject('postgresUrl') })).rejects.toThrow(DrillRefused)
  const url = (name: string) => `postgres://u@127.0.0.1/${name}`
  const refuse = (name: string, throwAway: string | undefined, marked: boolean) =>
    refuseDatabase(url(name), { allowHosts: [], throwAway }, async () => marked)
  for (const name of ['shop', 'contest', 'latest_orders', 'production']) {
    await expect(refuse(name, undefined, false), name).rejects.toThrow(`database ${name} is not marked`)
  }
  await expect(refuse('shop', 'other', false)).rejects.toThrow(MARKER_TABLE)
  for (const name of ['shop_test', 'test', 'drill_1', 'tmp-shop', 'shop-ci', 'test2'])
    await refuse(name, undefined, false)
  await refuse('shop', 'shop', false)
  await refuse('shop', undefined, true)
})

test('T15: a server outside of this machine is refused unless its host is allowed by name', async () => {
  const refuse = (...allowHosts: string[]) =>
    refuseDatabase('postgres://u@db.example.com/shop_test', { allowHosts, throwAway: undefined }, async () => true)
  await expect(refuse()).rejects.toThrow('--allow-host db.example.com')
  await expect(refuse('example.com')).rejects.toThrow(DrillRefused)
  await refuse('db.example.com')
})

test('T15: live keys of providers are refused in the environment and in the file, and no value is told', () => {
  const key = ['sk', 'live', '4eC39HqLyjWDarjtT1zdp7dc'].join('_')
  const refused = () => refuseLiveKeys({ STRIPE_KEY: key, PATH: '/bin' }, '')
  expect(refused).toThrow('STRIPE_KEY holds a live key')
  expect(refused).not.toThrow(key)
  expect(() => refuseLiveKeys({}, `const key = '${key}'`)).toThrow(DrillRefused)
  refuseLiveKeys({ STRIPE_KEY: 'sk_test_4eC39HqLyjWDarjtT1zdp7dc', MODE: 'live_reload' }, 'is_live = true')
})

test(
  'T15: a handler that is about to send a live key ends the drill, and one that leaves the machine gets nowhere',
  async () => {
    await expect(drillHandler('live-key')).rejects.toThrow('about to send a live key')
    const result = await drillHandler('leaves-the-machine')
    expect(failed(result)).toEqual(['no fault: STUCK'])
    expect(result.windows[0]?.run?.ended[0]?.reason).toContain('the drill refuses a connection to 203.0.113.1')
  },
  DRILL_MS,
)
