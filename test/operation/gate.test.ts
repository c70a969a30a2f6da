/** The gate's own statements, and what an attempt makes of a transaction that was rolled back without an error. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce, type Once, rejected } from '../../src/index.ts'
import { newAttempt } from '../../src/operation/operation.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type Guard, insertOrder, openGuard, POOLS, spoil, until } from './guard.ts'

let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})

afterAll(() => guard.close())

/** Any lock of ours that keeps a statement waiting. */
const LOCK = 4711

/**
 * A statement that waits first and asks then. Its snapshot is from before the wait; meanwhile the operation is recorded.
 */
async function askedAcrossACommit(call: string, key: string): Promise<unknown> {
  const operation = { scope: 'gate', key, payload: 1 }
  const { id } = newAttempt(operation)
  const [holder, asker] = [await guard.admin.connect(), await guard.admin.connect()]
  try {
    await holder.query('select pg_advisory_lock($1)', [LOCK])
    await asker.query('begin isolation level read committed, deferrable')
    const asked = asker.query(`select pg_advisory_xact_lock(${LOCK}), effectively_once.${call} as answer`, [id]).then(
      ({ rows }) => rows[0].answer,
      (error: { code?: string }) => error.code,
    )
    await until(async () => {
      const { rows } = await holder.query(`select from pg_locks where locktype = 'advisory' and not granted`)
      return rows.length === 1
    })
    await once.transaction(operation, ({ tx }) => insertOrder(tx, key).then(() => 'done'))
    await holder.query('select pg_advisory_unlock($1)', [LOCK])
    return await asked
  } finally {
    await asker.query('rollback')
    holder.release()
    asker.release()
  }
}

test('I4: the gate sees what was committed after the statement that asks it began', async () => {
  expect(await askedAcrossACommit(`gate($1::uuid, 1, 2, '30000')`, 'gate')).toBe('EO002')
})

test('I4: the claim sees what was committed after the statement that asks it began', async () => {
  expect(await askedAcrossACommit('claim($1::uuid, 1, 2)', 'claim')).toBe('recorded')
})

test('B105, I1: the gate ends the session when BEGIN failed in front of a statement that is on its way alone', async () => {
  const pool = new pg.Pool({ connectionString: guard.url, pipeline: true, max: 1 })
  pool.on('error', () => {})
  const begins = spoil(pool, 'begin deferrable', 1)
  const ref = 'alone behind begin'
  // Without values it cannot share the packet of BEGIN and the gate.
  const work = createOnce({ store: postgres(pool) }).transaction({ scope: 'gate', key: ref, payload: 1 }, ({ tx }) =>
    tx.query(`insert into orders (ref) values ('${ref}')`).then(() => 'done'),
  )
  const told = await work.then(
    () => 1,
    () => 0,
  )
  expect(begins.left).toBe(0)
  expect(await guard.count(ref)).toBe(told)
  await pool.end()
})

test('I12: a verdict that nobody waits for ends no process', async () => {
  const pool = new pg.Pool({ connectionString: guard.url, pipeline: true, max: 1 })
  spoil(pool, 'begin deferrable', 1)
  let unhandled = 0
  const count = () => {
    unhandled += 1
  }
  process.on('unhandledRejection', count)
  try {
    const attempt = newAttempt({ scope: 'gate', key: 'dropped verdict', payload: 1 })
    const options = { gated: true, isolation: undefined, idleTimeoutMs: 30_000 }
    const opened = await postgres(pool).operations.open(attempt, options)
    await expect(insertOrder(opened.tx, 'dropped verdict')).rejects.toThrow()
    expect(opened.verdict()).toBeInstanceOf(Promise)
    await opened.rollback()
    await new Promise((resolve) => setImmediate(resolve))
    expect(unhandled).toBe(0)
  } finally {
    process.off('unhandledRejection', count)
    await pool.end()
  }
})

describe.each(POOLS)('%s pool', (name, config) => {
  test('I1: a COMMIT that is answered with ROLLBACK is no commit', async () => {
    const pool = new pg.Pool({ connectionString: guard.url, ...config })
    try {
      const { operations } = postgres(pool)
      const opened = await operations.open(newAttempt({ scope: 'gate', key: `tag ${name}`, payload: 1 }), {
        gated: true,
        isolation: undefined,
        idleTimeoutMs: 30_000,
      })
      await insertOrder(opened.tx, `tag ${name}`)
      await opened.tx.query('select 1 / 0').catch(() => {})
      await expect(opened.finish(undefined, [])).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
      expect(await guard.count(`tag ${name}`)).toBe(0)
    } finally {
      await pool.end()
    }
  })

  test('R13: a refusal by a work that swallowed a serialization failure is not final', async () => {
    const ref = `swallowed ${name}`
    await insertOrder(guard.admin as unknown as pg.PoolClient, `row of ${ref}`)
    let tries = 0
    const outcome = await guard.once(config).transaction(
      { scope: 'gate', key: ref, payload: 1 },
      async ({ tx }) => {
        tries += 1
        await tx.query('select from orders where ref = $1', [`row of ${ref}`])
        if (tries === 1) await guard.admin.query('update orders set ref = ref where ref = $1', [`row of ${ref}`])
        await tx.query('update orders set ref = ref where ref = $1', [`row of ${ref}`]).catch(() => {})
        return tries === 1 ? rejected({ code: 'SOLD_OUT' }) : tries
      },
      { isolation: 'repeatable read' },
    )
    expect(outcome).toMatchObject({ state: 'succeeded', value: 2, replayed: false })
  })
})
