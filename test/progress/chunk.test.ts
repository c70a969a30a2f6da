import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce, type Once } from '../../src/index.ts'
import { engineOf } from '../../src/operation/engine.ts'
import { advance, progressOf } from '../../src/progress/progress.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

let database: { readonly url: string; drop(): Promise<void> }
const pools: pg.Pool[] = []

/** As another process would have it: a pool and a store of its own. */
function processor(): { readonly once: Once<pg.PoolClient>; readonly pool: pg.Pool } {
  const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 5 })
  pools.push(pool)
  return { once: createOnce({ store: postgres(pool) }), pool }
}

beforeAll(async () => {
  database = await createDatabase()
  const { once, pool } = processor()
  await once.migrate()
  await pool.query('create table loaded (stream text not null, n int not null)')
})
afterAll(async () => {
  await Promise.all(pools.map((pool) => pool.end()))
  await database.drop()
})

const load =
  (stream: string, size: number) =>
  async ({ tx, position = 0 }: { readonly tx: pg.PoolClient; readonly position: number | undefined }) => {
    if (position >= size) return undefined
    await tx.query('insert into loaded (stream, n) values ($1, $2)', [stream, position])
    return position + 1
  }
const loaded = async (stream: string): Promise<number[]> => {
  const { rows } = await (pools[0] as pg.Pool).query('select n from loaded where stream = $1 order by n', [stream])
  return rows.map(({ n }) => n as number)
}

test('R37: of four processors on one stream each chunk is worked on by one, from the position before it', async () => {
  const processors = Array.from({ length: 4 }, () => processor().once)
  const chunks = await Promise.all(
    processors.map(async (once) => {
      let mine = 0
      for (;;) {
        const chunk = await once.chunk<number>(
          { scope: ['acme', 'etl'], name: 'orders', whenInProgress: 'wait' },
          load('orders', 40),
        )
        if (!chunk.advanced) return mine
        mine += 1
      }
    }),
  )
  expect(chunks.reduce((a, b) => a + b)).toBe(40)
  expect(await loaded('orders')).toEqual(Array.from({ length: 40 }, (_, n) => n))
  expect(await processors[0]?.checkpoint({ scope: ['acme', 'etl'], name: 'orders' })).toMatchObject({
    number: 40,
    position: 40,
  })
})

test('R37: a processor that dies in a chunk leaves neither its writes nor its position', async () => {
  const script = fileURLToPath(new URL('../processes/chunk.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', script], {
    env: { ...process.env, DATABASE_URL: database.url },
    stdio: 'inherit',
  })
  const signal = await new Promise((resolve) => child.once('exit', (_code, by) => resolve(by)))
  expect(signal).toBe('SIGKILL')
  const { once } = processor()
  const options = { scope: 'etl', name: 'killed', whenInProgress: 'wait' } as const
  expect(await once.chunk<number>(options, load('killed', 9))).toEqual({ advanced: true, number: 1, position: 1 })
  expect(await loaded('killed')).toEqual([0])
})

test('R37: a second processor is told that the stream is worked on, and goes on behind it', async () => {
  const stream = { scope: 'etl', name: 'busy' }
  const [first, second] = [processor().once, processor().once]
  let inside = () => {}
  const working = new Promise<void>((resolve) => {
    inside = resolve
  })
  let finish = () => {}
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  const chunk = first.chunk<number>(stream, async (context) => {
    const next = await load('busy', 9)(context)
    inside()
    await finished
    return next
  })
  await working
  await expect(second.chunk<number>(stream, load('busy', 9))).rejects.toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
  finish()
  expect(await chunk).toEqual({ advanced: true, number: 1, position: 1 })
  expect(await second.chunk<number>(stream, load('busy', 9))).toEqual({ advanced: true, number: 2, position: 2 })
  expect(await loaded('busy')).toEqual([0, 1])
})

test('R37: who goes on from an old position, when nothing tells any more that its chunk was done, is rolled back', async () => {
  const stream = { scope: 'etl', name: 'slow' }
  const { once, pool } = processor()
  await once.chunk<number>(stream, load('slow', 9))
  await once.chunk<number>(stream, load('slow', 9))
  await pool.query('delete from effectively_once.operation')
  // What it had read before it was stopped for so long.
  const old = { number: 0 }
  const again = advance<pg.PoolClient>(
    engineOf('test', once),
    progressOf('chunk', 'etl', 'slow'),
    old,
    async (context) => {
      await load('slow', 9)({ tx: context.tx, position: 0 })
      return { position: '1' }
    },
  )
  expect(await again).toBe('overtaken')
  expect(await loaded('slow')).toEqual([0, 1])
  expect(await once.checkpoint(stream)).toMatchObject({ number: 2, position: 2 })
})

test('R37: an error and "nothing to do" roll back; the position stays', async () => {
  const once = createOnce({ store: memory() })
  const stream = { scope: 'etl', name: 'm' }
  const write = (value: unknown, then: () => { at: string } | undefined) =>
    once.chunk<{ at: string }>(stream, ({ tx }) => {
      tx.put('row', value)
      return then()
    })
  expect(await write(1, () => ({ at: 'a' }))).toEqual({ advanced: true, number: 1, position: { at: 'a' } })
  await expect(
    write(2, () => {
      throw new Error('bad row')
    }),
  ).rejects.toThrow('bad row')
  expect(await write(3, () => undefined)).toEqual({ advanced: false, number: 1, position: { at: 'a' } })
  expect(await once.checkpoint(stream)).toMatchObject({ number: 1, position: { at: 'a' } })
  const value = await once.transaction({ scope: 's', key: 'k', payload: null }, ({ tx }) => tx.get('row'))
  expect(value.value).toBe(1)
})
