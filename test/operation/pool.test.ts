/** What the guard does to the pool it was given, and what it does when the pool or a connection fails. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type Guard, insertOrder, openGuard, POOLS, spoil, until } from './guard.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

const scope = ['acme', 'orders.create']

describe.each(POOLS)('%s pool', (name, config) => {
  const key = (text: string): string => `${name}-${text}`

  test('B105, I1: a BEGIN that fails lets nothing of the work commit by itself, and the pool stays usable', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 2, ...config })
    const begins = spoil(pool, 'begin deferrable', 10)
    const once = createOnce({ store: postgres(pool) })
    const ref = key('begin')
    const run = () =>
      once.transaction({ scope, key: ref, payload: null }, ({ tx }) => insertOrder(tx, ref).then(() => 1))
    for (let n = 0; n < 10; n++) {
      const error: unknown = await run().then(
        () => undefined,
        (thrown: unknown) => thrown,
      )
      expect(error).toMatchObject({ code: expect.stringMatching(/^(42601|STORE_UNAVAILABLE)$/) })
      if (begins.left === 0) break
    }
    begins.left = 0
    expect(await guard.count(ref)).toBe(0)
    expect((await run()).replayed).toBe(false)
    expect(await guard.count(ref)).toBe(1)
    expect(pool.totalCount).toBeLessThanOrEqual(2)
    await pool.end()
  })

  test('B105: a failing ROLLBACK destroys its client, the first error surfaces, nobody inherits a transaction', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 2, ...config })
    const rollbacks = spoil(pool, 'rollback', 10)
    const once = createOnce({ store: postgres(pool) })
    for (let n = 0; n < 10; n++) {
      const boom = new Error(`boom ${n}`)
      const run = once.transaction({ scope, key: key(`rb-${n}`), payload: null }, async ({ tx }) => {
        await insertOrder(tx, key('rollback'))
        throw boom
      })
      await expect(run).rejects.toBe(boom)
    }
    expect(rollbacks.left).toBe(0)
    expect(await guard.count(key('rollback'))).toBe(0)
    const clients = await Promise.all([pool.connect(), pool.connect()])
    for (const client of clients) {
      const { rows } = await client.query('select pg_current_xact_id_if_assigned() as xid')
      expect(rows[0].xid).toBeNull()
      client.release()
    }
    await pool.end()
  })

  test('B105, I1: statements sent beside the first one commit nothing by themselves when BEGIN fails', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 1, ...config })
    pool.on('error', () => {})
    const begins = spoil(pool, 'begin deferrable', 1)
    const once = createOnce({ store: postgres(pool) })
    const ref = key('beside')
    const run = once.transaction({ scope, key: ref, payload: null }, async ({ tx }) => {
      await Promise.allSettled([
        insertOrder(tx, ref),
        insertOrder(tx, ref),
        tx.query(`insert into orders (ref) values ('${ref}')`),
      ])
      await insertOrder(tx, ref)
    })
    await expect(run).rejects.toThrow()
    expect(begins.left).toBe(0)
    expect(await guard.count(ref)).toBe(0)
    await pool.end()
  })

  test('a first statement may take longer than our own answers may, and so may what is sent beside it', async () => {
    const once = guard.once({ max: 1, ...config }, { answerTimeoutMs: 100 })
    const outcome = await once.transaction({ scope, key: key('slow'), payload: null }, async (work) => {
      const { tx } = work
      const slow = tx.query('select pg_sleep($1)::text as slept', [0.4])
      const beside = tx.query('select $1::int as n', [2])
      const time = work.now()
      return [(await slow).rows.length, (await beside).rows[0].n, (await time) instanceof Date]
    })
    expect(outcome.value).toEqual([1, 2, true])
  })

  test('B107: with a pool of one, ten operations at once all finish', async () => {
    const once = guard.once({ max: 1, ...config })
    const refs = Array.from({ length: 10 }, (_, n) => key(`one-${n}`))
    const outcomes = await Promise.all(
      refs.map((ref) =>
        once.transaction({ scope, key: ref, payload: null }, ({ tx }) => insertOrder(tx, ref).then(() => ref)),
      ),
    )
    expect(outcomes.map((outcome) => outcome.value)).toEqual(refs)
    for (const ref of refs) expect(await guard.count(ref)).toBe(1)
  })

  test('B107: a work that asks its pool of one for a second connection ends within timeoutMs and says so', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 1, ...config })
    const once = createOnce({ store: postgres(pool, { acquireTimeoutMs: 300 }) })
    const second = { error: undefined as unknown }
    await expect(
      once.transaction(
        { scope, key: key('second'), payload: null },
        async ({ tx }) => {
          await insertOrder(tx, key('second'))
          await pool.query('select 1').catch((error: unknown) => {
            second.error = error
          })
          return 1
        },
        { timeoutMs: 400 },
      ),
    ).rejects.toMatchObject({ code: 'TOO_BUSY', retryable: true })
    expect(await guard.count(key('second'))).toBe(0)
    // Meanwhile others are told within acquireTimeoutMs that the pool is taken.
    const holding = once.transaction({ scope, key: key('holding'), payload: null }, async ({ tx }) => {
      await insertOrder(tx, key('holding'))
      await expect(queued).rejects.toMatchObject({ code: 'TOO_BUSY' })
      return 1
    })
    const queued = once.transaction({ scope, key: key('queued'), payload: null }, () => 1)
    await holding
    expect((await once.transaction({ scope, key: key('queued'), payload: null }, () => 1)).replayed).toBe(false)
    await pool.end()
  })

  test('timeoutMs: a work that never ends is rolled back, its connection is cut and its key is free', async () => {
    const once = guard.once(config)
    const ref = key('never')
    const aborted: unknown[] = []
    await expect(
      once.transaction(
        { scope, key: ref, payload: null },
        async ({ tx, signal }) => {
          signal.addEventListener('abort', () => aborted.push(signal.reason))
          await insertOrder(tx, ref)
          return await new Promise<number>(() => {})
        },
        { timeoutMs: 300 },
      ),
    ).rejects.toMatchObject({ code: 'TOO_BUSY' })
    expect(aborted).toHaveLength(1)
    const again = await once.transaction({ scope, key: ref, payload: null }, () => 'free', { whenInProgress: 'wait' })
    expect(again).toMatchObject({ value: 'free', replayed: false })
    expect(await guard.count(ref)).toBe(0)
  })

  test('timeoutMs: a statement that never ends is ended by the server too, so that it cannot hold the key', async () => {
    const once = guard.once(config)
    const ref = key('sleep')
    await expect(
      once.transaction({ scope, key: ref, payload: null }, ({ tx }) => tx.query('select pg_sleep(600)').then(() => 1), {
        timeoutMs: 500,
      }),
    ).rejects.toMatchObject({ code: expect.stringMatching(/^(TOO_BUSY|57014)$/) })
    const again = await once.transaction({ scope, key: ref, payload: null }, () => 'free', {
      whenInProgress: 'wait',
      waitMs: 20_000,
    })
    expect(again.value).toBe('free')
    const { rows } = await guard.admin.query(
      `select count(*)::int as n from pg_stat_activity where query like '%pg_sleep(600)%' and pid <> pg_backend_pid()`,
    )
    expect(rows[0].n).toBe(0)
  })

  test('a shorter statement_timeout of the application stays', async () => {
    const once = guard.once({ ...config, statement_timeout: 7_000 })
    const outcome = await once.transaction({ scope, key: key('shorter'), payload: null }, ({ tx }) =>
      tx.query('show statement_timeout').then(({ rows }) => rows[0].statement_timeout as string),
    )
    expect(outcome.value).toBe('7s')
    const { rows } = await guard.admin.query('show statement_timeout')
    expect(rows[0].statement_timeout).toBe('0')
  })

  test('R13: a lost connection of something else is an error of the work, told once and as it is', async () => {
    const once = guard.once(config)
    let runs = 0
    const refused = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:6379'), { code: 'ECONNREFUSED' })
    await expect(
      once.transaction({ scope, key: key('redis'), payload: null }, async ({ tx }) => {
        runs += 1
        await insertOrder(tx, key('redis'))
        throw refused
      }),
    ).rejects.toBe(refused)
    expect(runs).toBe(1)
    expect(await guard.count(key('redis'))).toBe(0)
  })

  test('SC1: a hot key with 1,000 waiters runs once, and waiters hold no connection', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 3, ...config })
    const once = createOnce({ store: postgres(pool) })
    const ref = key('hot')
    let runs = 0
    let mostHeld = 0
    const outcomes = await Promise.all(
      Array.from({ length: 1_000 }, () =>
        once.transaction(
          { scope, key: ref, payload: 1 },
          async ({ tx }) => {
            runs += 1
            await insertOrder(tx, ref)
            mostHeld = Math.max(mostHeld, pool.totalCount - pool.idleCount + pool.waitingCount)
            return runs
          },
          { whenInProgress: 'wait' },
        ),
      ),
    )
    expect(runs).toBe(1)
    expect(mostHeld).toBe(1)
    expect(outcomes.filter((outcome) => !outcome.replayed)).toHaveLength(1)
    expect(await guard.count(ref)).toBe(1)
    await pool.end()
  })

  test('a pool that hands out a client inside a forgotten transaction does not get our work mixed into it', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, max: 1, ...config })
    const leaked = await pool.connect()
    await leaked.query('begin')
    await insertOrder(leaked, key('leaked'))
    leaked.release()
    const once = createOnce({ store: postgres(pool) })
    const run = () =>
      once.transaction({ scope, key: key('after-leak'), payload: null }, ({ tx }) =>
        insertOrder(tx, key('after-leak')).then(() => 1),
      )
    await expect(run()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect((await run()).replayed).toBe(false)
    expect(await guard.count(key('leaked'))).toBe(0)
    expect(await guard.count(key('after-leak'))).toBe(1)
    await pool.end()
  })
})

test('TOO_BUSY: callers above transactionsMax wait in order and are told after acquireTimeoutMs', async () => {
  const once = guard.once({ max: 5 }, { transactionsMax: 1, acquireTimeoutMs: 200 })
  let free: () => void = () => {}
  const held = new Promise<void>((resolve) => {
    free = resolve
  })
  const first = once.transaction({ scope, key: 'limit-1', payload: null }, async ({ tx }) => {
    await insertOrder(tx, 'limit')
    await held
    return 1
  })
  await expect(once.transaction({ scope, key: 'limit-2', payload: null }, () => 1)).rejects.toMatchObject({
    code: 'TOO_BUSY',
    status: 503,
    retryAfterMs: 1_000,
  })
  free()
  expect((await first).value).toBe(1)
  expect((await once.transaction({ scope, key: 'limit-2', payload: null }, () => 1)).replayed).toBe(false)
})

test('TOO_BUSY: a pool that gives up earlier than we do bounds the wait in front of it too', async () => {
  const pool = new pg.Pool({ connectionString: guard.url, max: 2, connectionTimeoutMillis: 300 })
  const once = createOnce({ store: postgres(pool) })
  const holding = once.transaction({ scope, key: 'patience-1', payload: null }, async () => {
    await expect(queued).rejects.toThrow('all 1 transactions (transactionsMax) were busy for 300 ms (acquireTimeoutMs)')
    return 1
  })
  const queued = once.transaction({ scope, key: 'patience-2', payload: null }, () => 1)
  expect((await holding).value).toBe(1)
  await pool.end()
})

test('signal: aborting ends the waiting of a loser and never the work of the owner', async () => {
  const once = guard.once()
  const controller = new AbortController()
  let free: () => void = () => {}
  const held = new Promise<void>((resolve) => {
    free = resolve
  })
  const run = (signal?: AbortSignal) =>
    once.transaction(
      { scope, key: 'signal', payload: null },
      async ({ tx }) => {
        await insertOrder(tx, 'signal')
        await held
        return 'done'
      },
      { whenInProgress: 'wait', signal },
    )
  const owner = run(controller.signal)
  const loser = run(controller.signal)
  await until(async () => {
    const { rows } = await guard.admin.query(
      `select count(*)::int as n from pg_locks where locktype = 'advisory' and granted`,
    )
    return rows[0].n >= 2
  })
  const elsewhere = guard.once().transaction({ scope, key: 'signal', payload: null }, () => 'never', {
    whenInProgress: 'wait',
    waitMs: 60_000,
    signal: controller.signal,
  })
  controller.abort()
  await expect(loser).rejects.toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
  await expect(elsewhere).rejects.toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
  free()
  expect((await owner).value).toBe('done')
  expect(await guard.count('signal')).toBe(1)
})

test('SC10: a waiting caller with another payload is told of the mismatch while the first still runs', async () => {
  const once = guard.once()
  let free: () => void = () => {}
  const held = new Promise<void>((resolve) => {
    free = resolve
  })
  let started: () => void = () => {}
  const running = new Promise<void>((resolve) => {
    started = resolve
  })
  const owner = once.transaction({ scope, key: 'mismatch', payload: 1 }, async ({ tx }) => {
    await insertOrder(tx, 'mismatch')
    started()
    await held
    return 1
  })
  await running
  await expect(
    once.transaction({ scope, key: 'mismatch', payload: 2 }, ({ tx }) => insertOrder(tx, 'mismatch').then(() => 2), {
      whenInProgress: 'wait',
    }),
  ).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
  free()
  await owner
  expect(await guard.count('mismatch')).toBe(1)
})

test('a pool that was ended is told as STORE_UNAVAILABLE', async () => {
  const pool = new pg.Pool({ connectionString: guard.url })
  const once = createOnce({ store: postgres(pool) })
  await pool.end()
  await expect(once.transaction({ scope, key: 'ended', payload: null }, () => 1)).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
  })
  await expect(
    once.statement(
      { scope, key: 'ended', payload: null },
      { text: `insert into orders (ref) values ('x') returning 1` },
    ),
  ).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
})
