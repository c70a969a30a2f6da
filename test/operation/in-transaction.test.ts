/** `once.in(tx)`, stores that must be refused, secrets and clocks. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce, type Once } from '../../src/index.ts'
import type { Claim } from '../../src/operation/inner.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { startPostgres } from '../../src/testing/services/postgres.ts'
import { createDatabase } from '../database.ts'
import { startStandby } from '../services/standby.ts'
import { startGuardChild } from '../torture/guard-child.ts'
import { type Guard, insertOrder, openGuard } from './guard.ts'

let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})

afterAll(() => guard.close())

const scope = ['acme', 'in']
const operation = (key: string, payload: unknown = null) => ({ scope, key, payload })

async function withClient<T>(use: (client: pg.PoolClient) => Promise<T>, config: pg.PoolConfig = {}): Promise<T> {
  const pool = new pg.Pool({ connectionString: guard.url, max: 1, ...config })
  pool.on('error', () => {})
  const client = await pool.connect()
  client.on('error', () => {})
  try {
    return await use(client)
  } finally {
    client.release(true)
    await pool.end()
  }
}

async function claimed(client: pg.PoolClient, key: string): Promise<Claim> {
  const answer = await once.in(client).claim(operation(key))
  if (answer.kind !== 'claimed') throw new Error(answer.kind)
  return answer.claim
}

const messages = async (topic: string): Promise<number> =>
  (await guard.admin.query('select count(*)::int as n from effectively_once.outbox where topic = $1', [topic])).rows[0]
    .n

describe('once.in(tx)', () => {
  test.each(['read committed', 'repeatable read', 'serializable'])(
    'I1, I6, R08, B83: at %s a second claim is busy, then gets the outcome or a clean retry, never nothing',
    (isolation) =>
      withClient((first) =>
        withClient(async (second) => {
          const key = `two ${isolation}`
          await first.query(`begin isolation level ${isolation}`)
          const claim = await claimed(first, key)
          await insertOrder(first, key)
          await once.in(first).outbox.add({ topic: key, payload: 1 })
          await second.query(`begin isolation level ${isolation}`)
          expect((await once.in(second).claim(operation(key))).kind).toBe('busy')
          await once.in(first).succeed(claim, 'first')
          await first.query('commit')
          expect(await once.in(first).verifyCommit(claim)).toBe('committed')

          // The snapshot of the second is older than the commit above READ COMMITTED.
          const answer = await once.in(second).claim(operation(key))
          if (answer.kind === 'claimed') {
            await expect(once.in(second).succeed(answer.claim, 'second')).rejects.toMatchObject({
              code: expect.stringMatching(/^(OPERATION_IN_PROGRESS|40001)$/),
            })
          } else {
            expect(answer).toMatchObject({ kind: 'replay', outcome: { value: 'first', replayed: true } })
          }
          await second.query('rollback')
          await second.query('begin')
          expect(await once.in(second).claim(operation(key))).toMatchObject({
            kind: 'replay',
            outcome: { value: 'first' },
          })
          expect((await once.in(second).claim(operation(key, 'other'))).kind).toBe('mismatch')
          await second.query('rollback')
          expect(await guard.count(key)).toBe(1)
          expect(await messages(key)).toBe(1)
        }),
      ),
  )

  test('I6: a rollback leaves neither record nor message, and the key is free', () =>
    withClient(async (client) => {
      await client.query('begin')
      const claim = await claimed(client, 'rollback')
      await once.in(client).outbox.add({ topic: 'rollback', payload: 1 })
      await once.in(client).succeed(claim, 1)
      await client.query('rollback')
      expect(await once.in(client).verifyCommit(claim)).toBe('notCommitted')
      expect(await messages('rollback')).toBe(0)
      expect((await once.transaction(operation('rollback'), () => 2)).replayed).toBe(false)
    }))

  test('I1: verifyCommit stays unresolved while the transaction lives, and tells a session that died in COMMIT', () =>
    withClient(async (client) => {
      await client.query('begin')
      const claim = await claimed(client, 'dies')
      await once.in(client).succeed(claim, 1)
      expect(await once.in(client).verifyCommit(claim, { boundMs: 200 })).toBe('unresolved')
      const { rows } = await client.query('select pg_backend_pid() as pid')
      await guard.admin.query('select pg_terminate_backend($1)', [rows[0].pid])
      expect(await once.in(client).verifyCommit(claim)).toBe('notCommitted')
    }))

  test.each([
    ['pipelined', true],
    ['stock', false],
  ])(
    'B43: a message that reaches a %s connection behind a ROLLBACK is refused, not committed alone',
    (name, pipeline) =>
      withClient(
        async (client) => {
          const topic = `behind ${name}`
          await client.query('begin')
          const claim = await claimed(client, topic)
          const rolledBack = client.query('rollback')
          const late = once.in(client).outbox.add({ topic, payload: 1 })
          const recorded = once.in(client).succeed(claim, 1)
          for (const settled of await Promise.allSettled([late, recorded])) {
            expect(settled).toMatchObject({ status: 'rejected', reason: { code: 'NOT_A_TRANSACTION' } })
          }
          await rolledBack
          expect(await messages(topic)).toBe(0)
          expect((await once.transaction(operation(topic), () => 1)).replayed).toBe(false)
        },
        { pipeline },
      ),
  )

  test('SC25: pools, idle clients and failed transactions are NOT_A_TRANSACTION', () =>
    withClient(async (client) => {
      const refused = { code: 'NOT_A_TRANSACTION' }
      await expect(once.in(guard.admin as never).claim(operation('h'))).rejects.toMatchObject(refused)
      await expect(once.in(undefined as never).claim(operation('h'))).rejects.toMatchObject(refused)
      await expect(once.in(client).claim(operation('h'))).rejects.toMatchObject(refused)
      await expect(once.in(client).outbox.add({ topic: 'h', payload: 1 })).rejects.toMatchObject(refused)
      await client.query('begin')
      await client.query('select 1 / 0').catch(() => {})
      await expect(once.in(client).claim(operation('h'))).rejects.toMatchObject(refused)
    }))

  test('an answer given where its claim is wanted, and an unknown option, are TypeErrors that name what is wanted', () =>
    withClient(async (client) => {
      await client.query('begin')
      const inside = once.in(client)
      const answer = await inside.claim(operation('whole answer'))
      for (const given of [answer, {}, null, undefined]) {
        const wanted = expect.objectContaining({
          name: 'TypeError',
          message: expect.stringContaining('takes the claim'),
        })
        await expect(inside.succeed(given as never, 1)).rejects.toThrow(wanted)
        await expect(inside.verifyCommit(given as never)).rejects.toThrow(wanted)
      }
      if (answer.kind !== 'claimed') throw new Error(answer.kind)
      await expect(inside.verifyCommit(answer.claim, { bound: 5 } as never)).rejects.toThrow('unknown option "bound"')
      await expect(inside.succeed(answer.claim, 1)).resolves.toMatchObject({ value: 1 })
    }))
})

describe('what the work may not do', () => {
  test('B110: now() of a work that has ended asks nothing on a connection that is no longer its own', async () => {
    let late: (() => Promise<Date>) | undefined
    await once.transaction(operation('late now'), async (context) => {
      late = () => context.now()
      await insertOrder(context.tx, 'late now')
      await expect(context.now()).resolves.toBeInstanceOf(Date)
    })
    await expect(late?.()).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
  })

  test.each(['commit', 'commit; begin'])(
    'R13: a work that runs %s and then rejects is not recorded as a rejection',
    async (sql) => {
      const { rejected } = await import('../../src/index.ts')
      const key = `reject after ${sql}`
      await expect(
        once.transaction(operation(key), async ({ tx }) => {
          await insertOrder(tx, key)
          await tx.query(sql)
          return rejected('no')
        }),
      ).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
    },
  )

  test.each([false, true])(
    'B107: the work that claims its own operation is refused at once and runs once (optimistic: %s)',
    async (optimistic) => {
      const key = `own claim ${optimistic}`
      let runs = 0
      const refused = once.transaction(
        operation(key),
        async ({ tx }) => {
          runs += 1
          await insertOrder(tx, key)
          const answer = await once.in(tx).claim(operation(key))
          if (answer.kind === 'claimed') await once.in(tx).succeed(answer.claim, 1)
        },
        { optimistic },
      )
      await expect(refused).rejects.toMatchObject({ code: 'NESTED_OPERATION' })
      expect([runs, await guard.count(key)]).toEqual([1, 0])
      expect((await once.transaction(operation(key), () => 1)).replayed).toBe(false)
    },
  )

  test('I1: a work may claim another operation in its own transaction, and both outcomes commit together', async () => {
    const outer = await once.transaction(operation('outer claim'), async ({ tx }) => {
      const answer = await once.in(tx).claim(operation('inner claim'))
      if (answer.kind !== 'claimed') throw new Error(answer.kind)
      return (await once.in(tx).succeed(answer.claim, 'inner')).state
    })
    expect(outer).toMatchObject({ value: 'succeeded', replayed: false })
    const inner = await once.transaction(operation('inner claim'), () => 'not run')
    expect(inner).toMatchObject({ value: 'inner', replayed: true })
  })

  test('a step that claims its own leased operation is refused', async () => {
    await expect(
      once.run(operation('leased own claim'), (op) =>
        op.transaction('step', ({ tx }) =>
          once
            .in(tx)
            .claim(operation('leased own claim'))
            .then(() => null),
        ),
      ),
    ).rejects.toMatchObject({ code: 'NESTED_OPERATION' })
  })

  test('a role without rights on our schema is SCHEMA_MISSING by name of 42501, one without rights on a table of the application is its own error', async () => {
    const role = `eo_stranger_${process.pid}`
    await guard.admin.query(`create role ${role} login password 'x'`)
    try {
      await guard.admin.query('create table forbidden (id int)')
      const url = new URL(guard.url)
      url.username = role
      url.password = 'x'
      const stranger = guard.once({ connectionString: url.href })
      const refused = { code: 'SCHEMA_MISSING', message: expect.stringContaining('42501'), retryable: false }
      for (const optimistic of [false, true]) {
        const run = stranger.transaction(operation('stranger'), ({ tx }) => tx.query('select 1').then(() => 1), {
          optimistic,
        })
        await expect(run).rejects.toMatchObject(refused)
      }
      await expect(stranger.statement(operation('stranger'), { text: 'select 1 as n' })).rejects.toMatchObject(refused)
      await expect(stranger.run(operation('stranger'), () => 1)).rejects.toMatchObject(refused)
      await expect(stranger.checkpoint({ scope: 'x', name: 'stranger' })).rejects.toMatchObject(refused)
      await expect(stranger.purge()).rejects.toMatchObject(refused)
      await expect(stranger.check()).rejects.toMatchObject(refused)
      const client = new pg.Client({ connectionString: url.href })
      await client.connect()
      await client.query('begin')
      await expect(stranger.in(client as never).claim(operation('stranger'))).rejects.toMatchObject(refused)
      await client.end()

      await guard.admin.query(`grant usage on schema effectively_once to ${role};
        grant select, insert, update, delete on all tables in schema effectively_once to ${role};
        grant usage on all sequences in schema effectively_once to ${role};
        grant execute on all functions in schema effectively_once to ${role}`)
      const own = { code: '42501', message: expect.stringContaining('forbidden') }
      await expect(
        stranger.transaction(operation('own 42501'), ({ tx }) => tx.query('select * from forbidden')),
      ).rejects.toMatchObject(own)
      await expect(
        stranger.statement(operation('own 42501'), { text: 'select * from forbidden' }),
      ).rejects.toMatchObject(own)
      expect((await stranger.transaction(operation('granted'), () => 1)).replayed).toBe(false)
    } finally {
      await guard.admin.query(`drop owned by ${role} cascade; drop role ${role}`)
    }
  })

  test("R06: a violation of the application's own constraint named like ours is the application's error", async () => {
    await guard.admin.query('create table operation (id int primary key)')
    const run = (key: string) =>
      once.statement(operation(key), { text: 'insert into operation values (1) returning id' })
    await run('own constraint 1')
    await expect(run('own constraint 2')).rejects.toMatchObject({ code: '23505', table: 'operation' })
  })

  test("a missing table of the application is the application's error, ours is SCHEMA_MISSING", async () => {
    await expect(once.statement(operation('own'), { text: 'select * from missing' })).rejects.toMatchObject({
      code: '42P01',
    })
    const database = await createDatabase()
    const pool = new pg.Pool({ connectionString: database.url, pipeline: true })
    const bare = createOnce({ store: postgres(pool) })
    const missing = { code: 'SCHEMA_MISSING' }
    for (const optimistic of [false, true]) {
      let ran = false
      await expect(
        bare.transaction(operation('bare'), ({ tx }) => tx.query('select 1').then(() => (ran = true)), { optimistic }),
      ).rejects.toMatchObject(missing)
      expect(ran).toBe(false)
    }
    await expect(bare.statement(operation('bare'), { text: 'select 1 as n' })).rejects.toMatchObject(missing)
    await expect(bare.check()).rejects.toMatchObject(missing)
    await pool.end()
    await database.drop()
  })

  test('roles: read-only is REPLICA_REFUSED before the work runs, serializable by default works', async () => {
    const url = new URL(guard.url)
    url.searchParams.set('options', '-c default_transaction_read_only=on')
    const readOnly = guard.once({ connectionString: url.href })
    await expect(
      readOnly.transaction(operation('ro'), ({ tx }) => tx.query('select 1').then(() => 1)),
    ).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
    url.searchParams.set('options', '-c default_transaction_isolation=serializable')
    const run = () =>
      guard
        .once({ connectionString: url.href })
        .transaction(operation('ser'), ({ tx }) => insertOrder(tx, 'ser').then(() => 1))
    expect((await run()).replayed).toBe(false)
    expect((await run()).replayed).toBe(true)
  })
})

test('secrets: records made with an old key are replayed, with a removed key they fail closed', async () => {
  const key = (byte: number): Uint8Array => new Uint8Array(32).fill(byte)
  const withSecrets = (current: string, keys: Record<string, Uint8Array>) =>
    guard.once({}, {}, { secrets: { current, keys } })
  const run = (from: Once<pg.PoolClient>, payload: unknown = { card: 1 }) =>
    from.transaction(operation('secret', payload), ({ tx }) => insertOrder(tx, 'secret').then(() => 'paid'))
  expect((await run(withSecrets('a', { a: key(1) }))).replayed).toBe(false)
  const rotated = withSecrets('b', { a: key(1), b: key(2) })
  expect(await run(rotated)).toMatchObject({ value: 'paid', replayed: true })
  await expect(run(rotated, { card: 2 })).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
  for (const removed of [withSecrets('b', { b: key(2) }), once]) {
    await expect(run(removed)).rejects.toMatchObject({ code: 'RESULT_UNAVAILABLE' })
  }
  expect(await guard.count('secret')).toBe(1)
})

test('SC57, R14, B113: clocks ten minutes apart and odd time zones give the same outcomes', async () => {
  const url = new URL(guard.url)
  const name = url.pathname.slice(1)
  await guard.admin.query(`alter database ${name} set timezone = 'America/New_York'`)
  const children = await Promise.all([
    startGuardChild(guard.url, { SHIFT_MS: '-300000', TZ: 'Asia/Kolkata' }),
    startGuardChild(guard.url, { SHIFT_MS: '300000', TZ: 'Pacific/Chatham' }),
  ])
  const keys = Array.from({ length: 20 }, (_, n) => `clock ${n}`)
  const answers = (
    await Promise.all(children.map((child) => child.ask({ mode: 'gated', keys, wait: true, persistent: true })))
  ).flat()
  for (const key of keys) {
    const own = answers.filter((answer) => answer.key === key)
    expect(new Set(own.map((answer) => answer.value)).size).toBe(1)
    expect(own.filter((answer) => answer.replayed === false)).toHaveLength(1)
    expect(await guard.count(key)).toBe(1)
  }
  const { rows } = await guard.admin.query(
    `select max(abs(extract(epoch from expires_at - clock_timestamp()) - 30 * 86400))::float8 as off
     from effectively_once.operation where scope like '["torture"%'`,
  )
  expect(rows[0].off).toBeLessThan(240)
  for (const child of children) await child.stop()
})

test('B116, I14: a standby is refused by the gate, the look-up and the statement', async () => {
  const primary = await startPostgres({ settings: { wal_level: 'replica', max_wal_senders: '4' } })
  const writer = new pg.Pool({ connectionString: primary.url })
  await createOnce({ store: postgres(writer) }).migrate()
  const standby = await startStandby(primary)
  try {
    await standby.caughtUp()
    const pool = new pg.Pool({ connectionString: standby.urlOf('postgres'), pipeline: true })
    pool.on('error', () => {})
    const store = postgres(pool)
    const reader = createOnce({ store })
    const refused = { code: 'REPLICA_REFUSED' }
    for (const optimistic of [false, true]) {
      await expect(
        reader.transaction(operation('standby'), ({ tx }) => tx.query('select 1').then(() => 1), { optimistic }),
      ).rejects.toMatchObject(refused)
    }
    await expect(reader.statement(operation('standby'), { text: 'select 1 as n' })).rejects.toMatchObject(refused)
    await expect(store.operations.lookup('00000000-0000-4000-8000-000000000000')).rejects.toMatchObject(refused)
    await expect(reader.check()).rejects.toMatchObject(refused)
    await pool.end()
  } finally {
    await standby.stop()
    await writer.end()
    await primary.stop()
  }
}, 90_000)
