/** Drivers whose `query` was wrapped by a tool, and statements that the driver itself refuses. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type Guard, openGuard, POOLS } from './guard.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

const scope = ['acme', 'orders.create']
const INSERT = 'insert into orders (ref) values ($1) returning ref'

/** As tracing tools do that write a comment into the text: a statement without a name is copied. */
class Copying extends pg.Client {
  constructor(config?: pg.ClientConfig) {
    super(config)
    const query: unknown = Reflect.get(this, 'query')
    const copied = (...args: unknown[]): unknown => {
      const [first] = args
      if (typeof first === 'object' && first !== null && 'text' in first && typeof first.text === 'string') {
        if (!('name' in first) || first.name === undefined) args[0] = { ...first, text: `${first.text} /* traced */` }
      }
      return Reflect.apply(query as (...all: unknown[]) => unknown, this, args)
    }
    Reflect.set(this, 'query', copied)
  }
}

describe.each(POOLS)('%s pool', (name, config) => {
  const key = (text: string): string => `${name}-${text}`

  test('I1, I4: a tool that hands copies of queries to the driver does not get the work around the gate', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 2, ...config, Client: Copying })
    const once = createOnce({ store: postgres(pool) })
    const ref = key('copied')
    const run = (payload: number) =>
      once.transaction({ scope, key: ref, payload }, async ({ tx }) => (await tx.query(INSERT, [ref])).rows[0].ref)
    expect(await run(1)).toEqual({ state: 'succeeded', value: ref, replayed: false })
    expect(await run(1)).toEqual({ state: 'succeeded', value: ref, replayed: true })
    await expect(run(2)).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
    expect(await guard.count(ref)).toBe(1)
    await pool.end()
  })

  test('I1: the same with a callback, and with further statements beside the first one', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 2, ...config, Client: Copying })
    const once = createOnce({ store: postgres(pool) })
    const ref = key('copied-callback')
    const run = () =>
      once.transaction({ scope, key: ref, payload: null }, async ({ tx }) => {
        const first = new Promise<number>((resolve, reject) => {
          tx.query(INSERT, [ref], (error, result) => (error ? reject(error) : resolve(result.rowCount ?? 0)))
        })
        const [one, two] = await Promise.all([first, tx.query(INSERT, [ref])])
        return one + (two.rowCount ?? 0)
      })
    expect(await run()).toMatchObject({ value: 2, replayed: false })
    expect(await run()).toMatchObject({ value: 2, replayed: true })
    expect(await guard.count(ref)).toBe(2)
    await pool.end()
  })

  test('a first statement that the driver refuses is told as the driver tells it, and the work may go on', async () => {
    const once = guard.once(config)
    const ref = key('refused')
    const refused: readonly [unknown, unknown?][] = [
      ['insert into orders (ref) values ($1)', 'no list'],
      [{ text: 'select $1::int', values: [1], callback: 'no function' }],
    ]
    for (const [index, args] of refused.entries()) {
      const outcome = await once.transaction({ scope, key: `${ref}-${index}`, payload: null }, async ({ tx }) => {
        const send = async (): Promise<unknown> =>
          await (tx as unknown as { query(...all: unknown[]): unknown }).query(...args)
        const error = await send().catch((thrown: unknown) => String(thrown))
        await tx.query(INSERT, [`${ref}-${index}`])
        return typeof error === 'string' ? error : 'not refused'
      })
      expect(outcome.value).toMatch(/must be an array|not a function/)
      expect(await guard.count(`${ref}-${index}`)).toBe(1)
    }
  })

  test('a name that could not be parsed is no trap for the next work on the connection', async () => {
    const once = guard.once({ ...config, max: 1 })
    const statement = { name: 'later', text: `select ref from ${name}_later where ref = $1`, values: ['x'] }
    const run = (n: number) =>
      once.transaction({ scope, key: key(`later-${n}`), payload: null }, async ({ tx }) => {
        return (await tx.query(statement)).rowCount
      })
    await expect(run(1)).rejects.toMatchObject({ code: '42P01' })
    await guard.admin.query(`create table ${name}_later (ref text)`)
    expect(await run(1)).toMatchObject({ value: 0, replayed: false })
  })

  test("the work's first statement is answered as the driver alone would have it answered, whatever its values are", async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 1, ...config })
    const once = createOnce({ store: postgres(pool) })
    const text = (type: string) => `select $1::${type} as v, pg_typeof($1::${type})::text as t`
    const bytes = new Uint8Array([0, 92, 255])
    const cases: readonly (readonly [string, unknown])[] = [
      ['text', null],
      ['text', undefined],
      ['text', ''],
      ['text', 'ä \ud800 "\\ 日本'],
      ['text', 'x'.repeat(100_000)],
      ['int8', 9_007_199_254_740_993n],
      ['float8', -0.5e-7],
      ['float8', Number.NaN],
      ['bool', false],
      ['bytea', bytes],
      ['bytea', Buffer.from(bytes)],
      ['bytea', new Uint16Array([1, 2])],
      ['timestamptz', new Date(0)],
      ['json', { a: [1, null] }],
      ['int4[]', [1, 2]],
    ]
    const statements = cases.flatMap(([type, value], index): pg.QueryConfig[] => [
      { text: text(type), values: [value] },
      { name: `v${index}`, text: text(type), values: [value] },
      { name: `v${index}`, text: text(type), values: [value] },
      { text: text(type), values: [value], types: { getTypeParser: () => (raw: unknown) => `own ${String(raw)}` } },
      { text: text(type), values: [value], rowMode: 'array' } as pg.QueryArrayConfig,
    ])
    for (const [index, statement] of statements.entries()) {
      const alone = await pool.query(statement)
      const led: pg.QueryResult[] = []
      await once.transaction({ scope, key: key(`values-${index}`), payload: null }, async ({ tx }) => {
        led.push(await tx.query(statement))
      })
      expect(led[0]?.rows).toEqual(alone.rows)
      expect(led[0]?.fields).toEqual(alone.fields)
    }
    await pool.end()
  })

  test('I3: parsers that the application has given to its pool change nothing of what the guard reads', async () => {
    const types = { getTypeParser: () => (text: string) => text } as unknown as pg.CustomTypesConfig
    for (const options of ['-c bytea_output=hex', '-c bytea_output=escape']) {
      const once = guard.once({ ...config, types, options })
      await once.migrate()
      await once.check()
      const ref = key(`types ${options}`)
      const run = (payload: number) =>
        once.transaction({ scope, key: ref, payload }, async (work) => {
          await work.tx.query(INSERT, [ref])
          return (await work.now()).getTime() > 0
        })
      expect(await run(1)).toEqual({ state: 'succeeded', value: true, replayed: false })
      expect(await run(1)).toEqual({ state: 'succeeded', value: true, replayed: true })
      await expect(run(2)).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
      expect(await guard.count(ref)).toBe(1)
    }
  })
})

test('a pool that asks for binary answers is refused', () => {
  const pool = new pg.Pool({ connectionString: guard.url, binary: true } as pg.PoolConfig)
  expect(() => postgres(pool)).toThrow(/binary/)
})
