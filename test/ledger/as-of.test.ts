import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createLedger } from '../../src/ledger/index.ts'
import { pause } from '../../src/shared/waiting.ts'
import { migrate } from '../../src/stores/postgres/migrate.ts'
import { startPostgres } from '../../src/testing/services/postgres.ts'
import { startStandby } from '../services/standby.ts'
import { type Books, charge, openBooks } from './books.ts'

let books: Books
let customer: string

beforeAll(async () => {
  books = await openBooks()
})
afterAll(() => books.close())
beforeEach(() => {
  customer = `customer:${randomUUID()}`
})

const charged = (name: string, amount: bigint) => charge(`${customer}/${name}`, amount, customer, 'revenue')

/** The database's clock, as an instant that has passed. */
async function clock(): Promise<string> {
  const { rows } = await books.pool.query(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  )
  return (rows[0] as { at: string }).at
}

const believed = (asOf: string) => books.ledger.balance(customer, 'EUR', { asOf })

describe('as of an instant', () => {
  test('R20: what was believed at 14:02 is answered from what was recorded by then', async () => {
    const before = await clock()
    const { recordedAt: first } = await books.ledger.post(charged('a', 700n))
    const between = await clock()
    await books.ledger.reverse(`${customer}/a`, { id: `${customer}/undo` })
    const after = await clock()
    expect(await Promise.all([before, first, between, after].map(believed))).toEqual([0n, -700n, -700n, 0n])
    expect(await books.ledger.balances(customer, { asOf: before })).toEqual(new Map())
    expect(await books.ledger.balances(customer, { asOf: between })).toEqual(new Map([['EUR', -700n]]))
    expect(await books.ledger.balance(customer, 'EUR', { asOf: new Date(0) })).toBe(0n)
  })

  test('an entry that commits late is waited for, so it cannot change an answer that was given', async () => {
    const tx = await books.begin()
    const { recordedAt } = await books.ledger.in(tx).post(charged('a', 700n))
    const asked = await clock()
    const impatient = createLedger(books.pool, { settleMs: 0 })
    await expect(impatient.balance(customer, 'EUR', { asOf: asked })).rejects.toMatchObject({ code: 'TOO_BUSY' })
    const answer = believed(asked)
    // Another ledger of the same database does not wait.
    expect(await books.ledger.balance(customer, 'EUR', { asOf: new Date(Date.parse(recordedAt) - 60_000) })).toBe(0n)
    await tx.query('commit')
    expect(await answer).toBe(-700n)
    expect(await believed(asked)).toBe(-700n)
  })

  test('an entry that is rolled back is waited for and not counted', async () => {
    const tx = await books.begin()
    await books.ledger.in(tx).post(charged('a', 700n))
    const answer = believed(await clock())
    await tx.query('rollback')
    expect(await answer).toBe(0n)
  })

  test('a connection that is killed while it posts holds no answer back', async () => {
    const tx = await books.begin()
    await books.ledger.in(tx).post(charged('a', 700n))
    const asked = await clock()
    const { rows } = await tx.query('select pg_backend_pid() as pid')
    await books.pool.query('select pg_terminate_backend($1)', [(rows[0] as { pid: number }).pid])
    expect(await believed(asked)).toBe(0n)
  })

  test('a wait ends with its signal', async () => {
    const tx = await books.begin()
    await books.ledger.in(tx).post(charged('a', 700n))
    const asked = await clock()
    const signal = AbortSignal.abort(new Error('enough'))
    await expect(books.ledger.balance(customer, 'EUR', { asOf: asked, signal })).rejects.toThrow('enough')
    await tx.query('rollback')
  })

  test('answers that were given while others post never change', async () => {
    let asking = true
    let posted = 0
    const writer = async (lane: number) => {
      for (let turn = 0; asking; turn += 1) {
        const tx = await books.pool.connect()
        try {
          await tx.query('begin')
          await books.ledger.in(tx).post(charged(`${lane}-${turn}`, 1n))
          // Commits come in another order than recordings.
          await pause((turn * 7 + lane * 13) % 40)
          await tx.query(turn % 5 === 0 ? 'rollback' : 'commit')
          if (turn % 5 !== 0) posted += 1
        } finally {
          tx.release()
        }
      }
    }
    const answers: { at: string; amount: bigint }[] = []
    const asker = async () => {
      for (let turn = 0; turn < 4; turn += 1) {
        const at = await clock()
        answers.push({ at, amount: await believed(at) })
      }
    }
    const writers = Array.from({ length: 8 }, (_, lane) => writer(lane))
    await Promise.all([asker(), asker(), asker()]).finally(() => {
      asking = false
    })
    await Promise.all(writers)
    expect(new Set(answers.map(({ amount }) => amount)).size).toBeGreaterThan(3)
    expect(await books.ledger.balance(customer, 'EUR')).toBe(-BigInt(posted))
    for (const { at, amount } of answers) expect({ at, amount: await believed(at) }).toEqual({ at, amount })
  }, 60_000)

  test('a clock that was set back brings no entry between older ones', async () => {
    const own = await openBooks()
    try {
      await own.ledger.post(charge('a', 1n))
      // What a clock an hour ahead would have written.
      await own.pool.query('alter table effectively_once.ledger_entry disable trigger ledger_entry_record')
      const { rows } = await own.pool.query(
        `with e as (
           insert into effectively_once.ledger_entry (id, fingerprint, lines, recorded_at)
             values ('ahead', 'x', 2, clock_timestamp() + interval '1 hour') returning seq, recorded_at
         ), m as (
           insert into effectively_once.ledger_movement (entry, line, account, currency, amount, recorded_at)
             select e.seq, l.line, l.account, 'EUR', l.amount, e.recorded_at
               from e, (values (1, 'customer:7', -1), (2, 'revenue', 1)) as l (line, account, amount)
         )
         select effectively_once.ledger_instant(recorded_at) as at from e`,
      )
      await own.pool.query('alter table effectively_once.ledger_entry enable trigger ledger_entry_record')
      const { at } = rows[0] as { at: string }
      const { recordedAt } = await own.ledger.post(charge('b', 1n))
      expect(recordedAt >= at).toBe(true)
      await expect(own.ledger.balance('customer:7', 'EUR', { asOf: at })).rejects.toThrow(RangeError)
    } finally {
      await own.close()
    }
  })

  test('a standby, which does not see who posts, refuses to tell the past', { timeout: 120_000 }, async () => {
    const primary = await startPostgres()
    try {
      const pool = new pg.Pool({ connectionString: primary.url })
      await migrate(pool)
      await createLedger(pool).post(charge('a', 1n))
      const asOf = await clock()
      const standby = await startStandby(primary)
      const onStandby = new pg.Pool({ connectionString: standby.urlOf('postgres') })
      try {
        const ledger = createLedger(onStandby)
        expect(await ledger.balance('revenue', 'EUR')).toBe(1n)
        await expect(ledger.balance('revenue', 'EUR', { asOf })).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
        await expect(ledger.post(charge('b', 1n))).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
      } finally {
        await onStandby.end()
        await standby.stop()
        await pool.end()
      }
    } finally {
      await primary.stop()
    }
  })

  test('neither time zone nor date style of the session, nor parsers of the pool, change what is answered', async () => {
    const posted = await books.ledger.post(charged('a', 700n))
    const pool = new pg.Pool({
      connectionString: books.url,
      options: '-c timezone=Asia/Kathmandu -c datestyle=SQL,DMY',
      types: { getTypeParser: () => () => 'parsed by the application' } as unknown as pg.CustomTypesConfig,
    })
    try {
      const ledger = createLedger(pool)
      expect(await ledger.post(charged('a', 700n))).toEqual({ ...posted, kind: 'existing' })
      expect(await ledger.entry(`${customer}/a`)).toEqual(await books.ledger.entry(`${customer}/a`))
      for (const asOf of [posted.recordedAt, posted.recordedAt.replace('Z', '+00:00')]) {
        expect(await ledger.balance(customer, 'EUR', { asOf })).toBe(-700n)
      }
    } finally {
      await pool.end()
    }
  })

  test.each(['2026-01-01', '2026-01-01T00:00:00', '2026-01-01T00:00:00.1234567Z', 'now', '2026-13-01T00:00Z', '', 7])(
    'asOf takes no %j',
    async (asOf) => {
      await expect(books.ledger.balance(customer, 'EUR', { asOf: asOf as string })).rejects.toThrow(TypeError)
    },
  )

  test('the future cannot be asked for', async () => {
    const asOf = new Date(Date.now() + 600_000)
    await expect(books.ledger.balance(customer, 'EUR', { asOf })).rejects.toThrow(RangeError)
    await expect(books.ledger.balances(customer, { asOf })).rejects.toThrow('in the past of the database clock')
  })
})
