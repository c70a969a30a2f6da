import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce, type Once, rejected } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

let database: Awaited<ReturnType<typeof createDatabase>>
let pool: pg.Pool
let once: Once<pg.PoolClient>

beforeAll(async () => {
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 10 })
  once = createOnce({ store: postgres(pool) })
  await once.migrate()
  await pool.query('create table orders (id int generated always as identity primary key, ref text unique, amount int)')
})

afterAll(async () => {
  await pool.end()
  await database.drop()
})

const scope = ['acme', 'orders.create']
const insert = (tx: pg.PoolClient, ref: string, amount = 1) =>
  tx.query('insert into orders (ref, amount) values ($1, $2) returning id', [ref, amount])
const count = async (ref: string): Promise<number> =>
  (await pool.query('select count(*)::int as n from orders where ref like $1', [`${ref}%`])).rows[0].n

describe('once.transaction', () => {
  test('R09, I1: the first call runs the work, every later call replays its outcome', async () => {
    const run = () =>
      once.transaction({ scope, key: 'k1', payload: { a: 1 } }, async ({ tx }) => {
        const { rows } = await insert(tx, 'k1')
        return { id: rows[0].id as number }
      })
    const first = await run()
    expect(first).toMatchObject({ state: 'succeeded', replayed: false })
    const second = await run()
    expect(second).toEqual({ ...first, replayed: true })
    expect(await count('k1')).toBe(1)
  })

  test('R03, I4: the same key with another payload is refused and runs nothing', async () => {
    const run = (amount: number) =>
      once.transaction({ scope, key: 'k2', payload: { amount } }, ({ tx }) => insert(tx, `k2-${amount}`).then(() => 1))
    await run(1)
    await expect(run(2)).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED', status: 422, retryable: false })
    expect(await count('k2')).toBe(1)
  })

  test('R13: a rejection is stored, replayed, and its writes and messages are gone', async () => {
    const run = () =>
      once.transaction({ scope, key: 'k3', payload: null }, async ({ tx, outbox }) => {
        await insert(tx, 'k3')
        await outbox.add({ topic: 'x', payload: {} })
        return rejected({ code: 'CREDIT_LIMIT', limit: 10 })
      })
    const first = await run()
    expect(first).toEqual({ state: 'rejected', rejection: { code: 'CREDIT_LIMIT', limit: 10 }, replayed: false })
    expect(await run()).toEqual({ ...first, replayed: true })
    expect(await count('k3')).toBe(0)
  })

  test('R13: an error of the work rolls back, is thrown as it is, and leaves the key usable', async () => {
    const boom = new Error('boom')
    const operation = { scope, key: 'k4', payload: null }
    await expect(
      once.transaction(operation, async ({ tx }) => {
        await insert(tx, 'k4')
        throw boom
      }),
    ).rejects.toBe(boom)
    expect(await count('k4')).toBe(0)
    expect((await once.transaction(operation, ({ tx }) => insert(tx, 'k4').then(() => 'ok'))).value).toBe('ok')
  })

  test('SC1: 32 callers with one key run the work once; the others replay or are told that it is in progress', async () => {
    const settled = await Promise.allSettled(
      Array.from({ length: 32 }, () =>
        once.transaction({ scope, key: 'k5', payload: 5 }, ({ tx }) => insert(tx, 'k5').then(({ rows }) => rows[0].id)),
      ),
    )
    expect(await count('k5')).toBe(1)
    for (const one of settled) {
      if (one.status === 'rejected') expect(one.reason).toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
    }
    expect(settled.filter((one) => one.status === 'fulfilled' && !one.value.replayed)).toHaveLength(1)
  })

  test('SC1: callers that wait all get the one outcome', async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 32 }, () =>
        once.transaction(
          { scope, key: 'k6', payload: 5 },
          ({ tx }) => insert(tx, 'k6').then(({ rows }) => rows[0].id as number),
          {
            whenInProgress: 'wait',
          },
        ),
      ),
    )
    expect(new Set(outcomes.map((one) => one.value)).size).toBe(1)
    expect(outcomes.filter((one) => !one.replayed)).toHaveLength(1)
    expect(await count('k6')).toBe(1)
  })

  test('B110: a work that swallows a failed statement is not recorded, and nothing of it commits', async () => {
    await expect(
      once.transaction({ scope, key: 'k7', payload: null }, async ({ tx }) => {
        await insert(tx, 'k7')
        await tx.query('select 1 / 0').catch(() => {})
        // What comes later must not commit by itself either.
        await insert(tx, 'k7').catch(() => {})
        return 'done'
      }),
    ).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
    expect(await count('k7')).toBe(0)
  })

  test.each(['commit', 'rollback', 'commit; begin'])('a work that runs %s itself is not recorded', async (sql) => {
    const key = `k8-${sql}`
    await expect(
      once.transaction({ scope, key, payload: null }, async ({ tx, outbox }) => {
        await outbox.add({ topic: 'x', payload: 1 })
        await insert(tx, key)
        await tx.query(sql)
      }),
    ).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
    const again = await once.transaction({ scope, key, payload: null }, () => 'fresh')
    expect(again.replayed).toBe(false)
  })

  test('B107: an operation inside the work of another one is refused', async () => {
    await expect(
      once.transaction({ scope, key: 'k9', payload: null }, () =>
        once.transaction({ scope, key: 'k9-inner', payload: null }, () => 1).then((inner) => inner.value),
      ),
    ).rejects.toMatchObject({ code: 'NESTED_OPERATION' })
  })

  test('once.statement runs the statement once and replays its rows', async () => {
    const run = () =>
      once.statement<{ id: number }>(
        { scope, key: 's1', payload: 1 },
        { text: 'insert into orders (ref, amount) values ($1, $2) returning id', values: ['s1', 3] },
      )
    const first = await run()
    expect(first.value).toEqual([{ id: expect.any(Number) }])
    expect(await run()).toEqual({ ...first, replayed: true })
    expect(await count('s1')).toBe(1)
  })
})
