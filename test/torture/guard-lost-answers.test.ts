/**
 * Answers that get lost, through a TCP proxy that fails at a chosen byte, and sessions that are ended or cancelled
 * around COMMIT. Whatever the caller is told must be true, and one retry must leave exactly one effect.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { fingerprint } from '../../src/fingerprint/fingerprint.ts'
import { createOnce, isOnceError, type Once } from '../../src/index.ts'
import type { Attempt, NewRecord } from '../../src/store/operation.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type TcpProxy, tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { type Guard, insertOrder, openGuard, POOLS, until } from '../operation/guard.ts'

let guard: Guard
/** Without any fault, for retries and for looking. */
let sound: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  sound = guard.once()
  // COMMIT of these takes its time, so that what is aimed at it meets it.
  await guard.admin.query(`
    create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.01); return null; end $$;
    create constraint trigger slow after insert on orders deferrable initially deferred for each row
      when (new.ref like '%_backend %') execute function slow()`)
})

afterAll(() => guard.close())

const scope = ['acme', 'lost answers']
const MODES = ['gated', 'optimistic', 'statement'] as const
type Mode = (typeof MODES)[number]
const ANSWER_MS = 1_500

/** One call on a pool of its own, led through the proxy. */
interface Faulty {
  readonly proxy: TcpProxy
  run(): Promise<{ value: unknown; replayed: boolean }>
  close(): Promise<void>
}

async function through(config: pg.PoolConfig, mode: Mode, ref: string): Promise<Faulty> {
  const proxy = await tcpProxy({ target: { port: Number(new URL(guard.url).port) } })
  const pool = new pg.Pool({ connectionString: proxy.through(guard.url), max: 4, ...config })
  const once = createOnce({ store: postgres(pool, { answerTimeoutMs: ANSWER_MS, acquireTimeoutMs: 2_000 }) })
  return {
    proxy,
    run: () => runOn(once, mode, ref),
    async close() {
      await proxy.pass()
      await pool.end()
      await proxy.close()
    },
  }
}

async function runOn(
  once: Once<pg.PoolClient>,
  mode: Mode,
  ref: string,
): Promise<{ value: unknown; replayed: boolean }> {
  const operation = { scope, key: ref, payload: { ref } }
  if (mode === 'statement') {
    const text = 'insert into orders (ref) values ($1) returning id'
    const { value, replayed } = await once.statement<{ id: number }>(operation, { text, values: [ref] })
    return { value: value[0]?.id, replayed }
  }
  const { value, replayed } = await once.transaction(
    operation,
    async ({ tx }) => {
      const { rows } = await insertOrder(tx, ref)
      await tx.query('select 1')
      return rows[0]?.id
    },
    { optimistic: mode === 'optimistic' },
  )
  return { value, replayed }
}

type Told = { readonly value: unknown } | { readonly code: string | undefined; readonly error: unknown }

const told = (call: Promise<{ value: unknown }>): Promise<Told> =>
  call.then(
    ({ value }) => ({ value }),
    (error: unknown) => ({ code: isOnceError(error) ? error.code : undefined, error }),
  )

/** What was told is true, and after one retry there is exactly one order and everybody agrees on it. */
async function settled(ref: string, mode: Mode, first: Told): Promise<void> {
  const orders = async (): Promise<number[]> => {
    const { rows } = await guard.admin.query('select id from orders where ref = $1', [ref])
    return rows.map((row) => row.id)
  }
  if ('value' in first) expect(await orders()).toEqual([first.value])
  else expect(first.error).toMatchObject({ retryable: true })
  let again = await told(runOn(sound, mode, ref))
  // A session that nobody has ended yet may still hold the key.
  await until(async () => {
    if ('value' in again || again.code !== 'OPERATION_IN_PROGRESS') return true
    again = await told(runOn(sound, mode, ref))
    return false
  })
  expect(again).toEqual({ value: expect.any(Number) })
  expect(await orders()).toEqual('value' in again ? [again.value] : [])
  if ('value' in first) expect(again).toEqual(first)
}

/** Bytes that only the last trip has. */
const lastTrip = (mode: Mode): string => (mode === 'statement' ? 'operation.single' : 'operation.record')
const firstTrip = (mode: Mode): string => (mode === 'statement' ? 'operation.single' : 'begin deferrable')

describe.concurrent.each(POOLS)('%s pool', (name, config) => {
  describe.each(MODES)('%s', (mode) => {
    const refOf = (what: string): string => `${name} ${mode} ${what}`

    test('B47: the connection is cut before the first trip arrives', async () => {
      const ref = refOf('before begin')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.cutAt(firstTrip(mode))
      void fault.met.then(() => faulty.proxy.pass())
      await settled(ref, mode, await told(faulty.run()))
      expect(fault.count).toBe(1)
      await faulty.close()
    })

    test('B47: the connection is cut after the first trip has arrived', async () => {
      const ref = refOf('after trip 1')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.cutAt(firstTrip(mode), { deliver: true })
      void fault.met.then(() => faulty.proxy.pass())
      await settled(ref, mode, await told(faulty.run()))
      expect(fault.count).toBe(1)
      await faulty.close()
    })

    test('B47: the connection is cut before the last trip arrives', async () => {
      const ref = refOf('before the last trip')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.cutAt(lastTrip(mode))
      void fault.met.then(() => faulty.proxy.pass())
      await settled(ref, mode, await told(faulty.run()))
      expect(fault.count).toBe(1)
      await faulty.close()
    })

    test('B47, I1: the answer to COMMIT is dropped and the connection reset: the caller gets the outcome', async () => {
      const ref = refOf('answer dropped')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.swallow(lastTrip(mode))
      void fault.met.then(() => faulty.proxy.pass())
      const first = await told(faulty.run())
      expect(first).toEqual({ value: expect.any(Number) })
      await settled(ref, mode, first)
      await faulty.close()
    })

    test('B47, I12: the answer to COMMIT never comes: the caller gets the outcome after answerTimeoutMs', async () => {
      const ref = refOf('answer never')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.swallow(lastTrip(mode), { cut: false })
      void fault.met.then(() => faulty.proxy.pass())
      const first = await told(faulty.run())
      expect(first).toEqual({ value: expect.any(Number) })
      await settled(ref, mode, first)
      await faulty.close()
    })

    test('B47, I1: COMMIT arrives 200 ms after the client has given up: the verdict is still right', async () => {
      const ref = refOf('late commit')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.hold(lastTrip(mode))
      void fault.met.then(() => {
        fault.disarm()
        setTimeout(() => fault.release(), ANSWER_MS + 200)
      })
      const first = await told(faulty.run())
      expect(first).toEqual({ value: expect.any(Number) })
      await settled(ref, mode, first)
      await faulty.close()
    })

    test('I12: a connection that falls silent in the middle is given up within the bounds, and so is a look-up', async () => {
      const ref = refOf('silence')
      const faulty = await through(config, mode, ref)
      const fault = faulty.proxy.hold(lastTrip(mode))
      void fault.met.then(() => {
        faulty.proxy.silence()
        faulty.proxy.refuse()
      })
      const first = await told(faulty.run())
      expect(first).toMatchObject({ code: expect.stringMatching(/^(COMMIT_UNRESOLVED|STORE_UNAVAILABLE)$/) })
      // What lies in the proxy is never delivered; the session ends with it.
      await faulty.close()
      await settled(ref, mode, first)
    })
  })

  test.each(['pg_terminate_backend', 'pg_cancel_backend'])(
    'B47, I1: %s around COMMIT: never a wrong verdict, one order after one retry',
    async (end) => {
      const pool = new pg.Pool({ connectionString: guard.url, max: 6, ...config })
      const once = createOnce({ store: postgres(pool) })
      const refs = Array.from({ length: 20 }, (_, n) => `${name} ${end} ${n}`)
      let met = 0
      await Promise.all(
        [0, 1, 2, 3].map(async (lane) => {
          for (const ref of refs.filter((_, n) => n % 4 === lane)) {
            const mode = Number(ref.split(' ').at(-1)) % 3 === 0 ? 'optimistic' : 'gated'
            let runs = 0
            const first = await told(
              once.transaction(
                { scope, key: ref, payload: { ref } },
                async ({ tx }) => {
                  runs += 1
                  const { rows } = await insertOrder(tx, ref)
                  const { rows: own } = await tx.query('select pg_backend_pid() as pid')
                  await tx.query('select 1')
                  // Sent now, it arrives somewhere between here and the end of COMMIT.
                  void guard.admin.query(`select ${end}($1)`, [own[0].pid]).catch(() => {})
                  if (Number(ref.split(' ').at(-1)) % 2 === 0) await new Promise((resolve) => setImmediate(resolve))
                  return rows[0]?.id
                },
                { optimistic: mode === 'optimistic' },
              ),
            )
            if ('error' in first || runs > 1) met += 1
            if ('error' in first) {
              const { rows } = await guard.admin.query('select id from orders where ref = $1', [ref])
              // An error without a code of ours says: rolled back for certain.
              if (first.code === undefined) expect(rows).toEqual([])
            }
            const again = await told(runOn(sound, mode, ref))
            expect(again).toEqual({ value: expect.any(Number) })
            if ('value' in first) expect(again).toEqual({ value: first.value })
            expect(await guard.count(ref)).toBe(1)
          }
        }),
      )
      expect(met).toBeGreaterThan(0)
      await pool.end()
    },
    60_000,
  )
})

test('control: re-reading without the lock is wrong each time when COMMIT is late; behind the lock it is right', async () => {
  const repeats = 30
  const proxy = await tcpProxy({ target: { port: Number(new URL(guard.url).port) } })
  const pool = new pg.Pool({ connectionString: proxy.through(guard.url), max: repeats, pipeline: true })
  const { operations } = postgres(pool, { answerTimeoutMs: 2_000, transactionsMax: repeats })
  const { operations: direct } = postgres(guard.admin, { transactionsMax: repeats, acquireTimeoutMs: 20_000 })
  guard.admin.setMaxListeners(0)
  const hold = proxy.hold('operation.record')
  const attempts = await Promise.all(
    Array.from({ length: repeats }, async (_, n) => {
      const attempt: Attempt = {
        id: randomUUID(),
        scope: '["control"]',
        token: randomUUID(),
        fingerprint: fingerprint(n),
      }
      const stored = { value: attempt.fingerprint.value, mode: attempt.fingerprint.mode, keyId: null }
      const record: NewRecord = {
        ...attempt,
        fingerprint: stored,
        state: 'succeeded',
        outcomeVersion: 1,
        outcome: '1',
        retentionMs: 60_000,
      }
      const opened = await operations.open(attempt, { gated: true, idleTimeoutMs: 30_000 })
      await insertOrder(opened.tx, `control ${n}`)
      expect(await opened.finish(record, [])).toBe('unresolved')
      return attempt
    }),
  )
  // What a re-read without the lock concludes now.
  const naive = await Promise.all(attempts.map((attempt) => direct.lookup(attempt.id)))
  const wrong = naive.filter((record) => record === undefined).length
  setTimeout(() => hold.release(), 200)
  const behind = await Promise.all(attempts.map((attempt) => direct.verifyCommit(attempt, 15_000)))
  expect(behind.filter((verdict) => verdict === 'committed')).toHaveLength(repeats)
  expect(wrong).toBe(repeats)
  const { rows } = await guard.admin.query(`select count(*)::int as n from orders where ref like 'control %'`)
  expect(rows[0].n).toBe(repeats)
  await pool.end()
  await proxy.close()
}, 60_000)

test('COMMIT_UNRESOLVED: told when COMMIT stays under way longer than the bound, and the same key is safe', async () => {
  const ref = 'unresolved'
  const faulty = await through({ pipeline: true }, 'gated', ref)
  const hold = faulty.proxy.hold('operation.record')
  void hold.met.then(() => hold.disarm())
  const first = await told(faulty.run())
  expect(first).toMatchObject({ code: 'COMMIT_UNRESOLVED', error: { status: 503, retryable: true, safeNewKey: false } })
  expect(await guard.count(ref)).toBe(0)
  hold.release()
  await until(async () => (await guard.count(ref)) === 1)
  expect(await runOn(sound, 'gated', ref)).toMatchObject({ replayed: true })
  expect(await guard.count(ref)).toBe(1)
  await faulty.close()
}, 40_000)
