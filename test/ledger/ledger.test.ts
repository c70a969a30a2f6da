import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createLedger, type NewEntry, transfer } from '../../src/ledger/index.ts'
import { isOnceError } from '../../src/shared/errors.ts'
import { type Books, charge, openBooks } from './books.ts'

let books: Books
/** Accounts of one test. */
let customer: string
let revenue: string

beforeAll(async () => {
  books = await openBooks()
})
afterAll(() => books.close())
beforeEach(() => {
  customer = `customer:${randomUUID()}`
  revenue = `revenue:${randomUUID()}`
})

const id = (name: string) => `${customer}/${name}`
const charged = (name: string, amount: bigint | string) => charge(id(name), amount, customer, revenue)
const balances = async () => [await books.ledger.balance(customer, 'EUR'), await books.ledger.balance(revenue, 'EUR')]
const codeOf = (promise: Promise<unknown>) =>
  promise.then(
    () => 'done',
    (error: unknown) => (isOnceError(error) ? error.code : (error as { code?: string }).code),
  )

describe('posting', () => {
  test('R21: a balance is the sum of movements, exact beyond what numbers hold', async () => {
    await books.ledger.post(charged('a', 9_007_199_254_740_993n))
    await books.ledger.post(charged('b', '9223372036854775807'))
    expect(await balances()).toEqual([-9_232_379_236_109_516_800n, 9_232_379_236_109_516_800n])
    expect(await books.ledger.balance('nobody', 'EUR')).toBe(0n)
    expect(await books.ledger.balance(customer, 'USD')).toBe(0n)
  })

  test('an entry may have many lines and currencies, and is read as it was posted', async () => {
    const entry: NewEntry = {
      id: id('mixed'),
      note: 'Wechselgeld ß 🙂',
      movements: [
        { account: customer, amount: -1_000n, currency: 'EUR' },
        { account: revenue, amount: 900n, currency: 'EUR' },
        { account: 'tax', amount: '100', currency: 'EUR' },
        ...transfer(revenue, customer, 7n, 'points'),
      ],
    }
    const posted = await books.ledger.post(entry)
    expect(posted).toMatchObject({ kind: 'posted', id: entry.id })
    expect(await books.ledger.balances(customer)).toEqual(
      new Map([
        ['EUR', -1_000n],
        ['points', 7n],
      ]),
    )
    expect(await books.ledger.entry(entry.id)).toEqual({
      id: entry.id,
      recordedAt: posted.recordedAt,
      note: 'Wechselgeld ß 🙂',
      reverses: undefined,
      reversedBy: undefined,
      movements: entry.movements.map((movement) => ({ ...movement, amount: BigInt(movement.amount) })),
    })
    expect(await books.ledger.entry('none')).toBeUndefined()
  })

  test('the same id with the same content adds nothing, whatever the order of its lines', async () => {
    const entry = charged('a', 700n)
    const first = await books.ledger.post(entry)
    expect(await books.ledger.post(entry)).toEqual({ ...first, kind: 'existing' })
    expect(await books.ledger.post({ ...entry, movements: entry.movements.toReversed() })).toEqual({
      ...first,
      kind: 'existing',
    })
    expect(await balances()).toEqual([-700n, 700n])
  })

  test.each<[string, (entry: NewEntry) => NewEntry]>([
    ['another amount', () => charged('a', 701n)],
    ['another account', () => charge(id('a'), 700n, customer, 'elsewhere')],
    ['another currency', (entry) => ({ ...entry, movements: transfer(customer, revenue, 700n, 'USD') })],
    ['another note', (entry) => ({ ...entry, note: '' })],
  ])('R33: the same id with %s is a mismatch and changes nothing', async (_what, change) => {
    const entry = charged('a', 700n)
    await books.ledger.post(entry)
    expect(await codeOf(books.ledger.post(change(entry)))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(await balances()).toEqual([-700n, 700n])
  })

  test('thirty-two callers at once post one entry', async () => {
    const results = await Promise.all(Array.from({ length: 32 }, () => books.ledger.post(charged('a', 700n))))
    expect(results.filter(({ kind }) => kind === 'posted')).toHaveLength(1)
    expect(new Set(results.map(({ recordedAt }) => recordedAt)).size).toBe(1)
    expect(await balances()).toEqual([-700n, 700n])
  })

  test.each<[string, Partial<NewEntry>]>([
    [
      'movements[0].amount',
      {
        movements: [
          { account: 'a', amount: 1 as unknown as bigint, currency: 'EUR' },
          ...transfer('b', 'c', 1n, 'EUR'),
        ],
      },
    ],
    [
      'movements[0].amount',
      { movements: [{ account: 'a', amount: '1.5', currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].amount',
      { movements: [{ account: 'a', amount: '1e3', currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].amount',
      { movements: [{ account: 'a', amount: 0n, currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].amount',
      { movements: [{ account: 'a', amount: -(2n ** 63n), currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].account',
      { movements: [{ account: '', amount: 1n, currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].account',
      { movements: [{ account: 'ß'.repeat(128), amount: 1n, currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].account',
      { movements: [{ account: 'a\0', amount: 1n, currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    [
      'movements[0].currency',
      { movements: [{ account: 'a', amount: 1n, currency: 'E U' }, ...transfer('b', 'c', 1n, 'EUR')] },
    ],
    ['sum up to 1', { movements: [{ account: 'a', amount: 1n, currency: 'EUR' }, ...transfer('b', 'c', 1n, 'EUR')] }],
    [
      'in USD',
      {
        movements: [
          { account: 'b', amount: -1n, currency: 'USD' },
          { account: 'a', amount: 1n, currency: 'EUR' },
        ],
      },
    ],
    ['2 to 1000', { movements: [] }],
    ['id takes', { id: '' }],
    ['note takes', { note: 'x'.repeat(2_001) }],
    ['unknown option', { memo: 'x' } as Partial<NewEntry>],
  ])('%s is told before anything is sent', async (message, change) => {
    const failed = books.ledger.post({ ...charged('a', 700n), ...change })
    await expect(failed).rejects.toThrow(TypeError)
    await expect(failed).rejects.toThrow(message)
  })

  test.each([1.5, 700, -5n, 0n, '-5', '0'])('transfer refuses %s', (amount) => {
    expect(() => transfer('a', 'b', amount as bigint, 'EUR')).toThrow(TypeError)
  })
})

describe('inside a transaction', () => {
  test('a post commits or vanishes with the transaction it is in', async () => {
    const tx = await books.begin()
    const inside = books.ledger.in(tx)
    expect((await inside.post(charged('a', 700n))).kind).toBe('posted')
    expect(await inside.balance(customer, 'EUR')).toBe(-700n)
    expect(await inside.balances(revenue)).toEqual(new Map([['EUR', 700n]]))
    expect((await inside.entry(id('a')))?.id).toBe(id('a'))
    expect(await balances()).toEqual([0n, 0n])
    await tx.query('rollback')
    expect((await books.ledger.post(charged('a', 700n))).kind).toBe('posted')
    const again = await books.begin()
    expect((await books.ledger.in(again).post(charged('a', 700n))).kind).toBe('existing')
    expect((await books.ledger.in(again).post(charged('b', 1n))).kind).toBe('posted')
    await again.query('commit')
    expect(await balances()).toEqual([-701n, 701n])
  })

  test('expected races leave the transaction usable; the lock time-out of the session comes back', async () => {
    await books.ledger.post(charged('a', 700n))
    await books.ledger.reverse(id('a'), { id: id('undo') })
    const tx = await books.begin()
    const inside = books.ledger.in(tx)
    expect((await inside.post(charged('a', 700n))).kind).toBe('existing')
    expect(await codeOf(inside.post(charged('a', 1n)))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect((await inside.reverse(id('a'), { id: id('other') })).kind).toBe('reversed')
    expect((await inside.reverse(id('none'), { id: id('other') })).kind).toBe('missing')
    const { rows } = await tx.query("select current_setting('lock_timeout') as value")
    expect(rows).toEqual([{ value: '0' }])
    expect((await inside.post(charged('b', 1n))).kind).toBe('posted')
    await tx.query('commit')
    expect(await balances()).toEqual([-1n, 1n])
  })

  test('a post waits for another that is open under its id, and takes its place when that is rolled back', async () => {
    const tx = await books.begin()
    await books.ledger.in(tx).post(charged('a', 700n))
    const waiting = books.ledger.post(charged('a', 1n))
    await waitsForLock()
    await tx.query('rollback')
    expect((await waiting).kind).toBe('posted')
    expect(await balances()).toEqual([-1n, 1n])
  })

  test('the wait ends with the lock time-out and says so', async () => {
    const tx = await books.begin()
    await books.ledger.in(tx).post(charged('a', 700n))
    const other = await books.begin()
    await other.query("set local lock_timeout = '50ms'")
    expect(await codeOf(books.ledger.in(other).post(charged('a', 700n)))).toBe('TOO_BUSY')
    await tx.query('rollback')
    await other.query('rollback')
  })

  test('held accounts let one check and post at a time, so none is overdrawn', async () => {
    await books.ledger.post(charge(id('fund'), 1_000n, revenue, customer))
    const spend = async (index: number) => {
      const tx = await books.pool.connect()
      try {
        await tx.query('begin')
        const inside = books.ledger.in(tx)
        await inside.hold(revenue, customer)
        const enough = (await inside.balance(customer, 'EUR')) >= 300n
        if (enough) await inside.post(charged(`spend-${index}`, 300n))
        await tx.query('commit')
        return enough
      } finally {
        tx.release()
      }
    }
    const spent = await Promise.all(Array.from({ length: 12 }, (_, index) => spend(index)))
    expect(spent.filter(Boolean)).toHaveLength(3)
    expect(await books.ledger.balance(customer, 'EUR')).toBe(100n)
  })

  test('without an open transaction nothing is posted', async () => {
    expect(await codeOf(books.ledger.in(books.pool).post(charged('a', 700n)))).toBe('NOT_A_TRANSACTION')
    const client = await books.begin()
    await client.query('rollback')
    for (const inside of [
      books.ledger.in(client),
      books.ledger.in({ query: (statement) => client.query(statement) }),
    ]) {
      expect(await codeOf(inside.post(charged('a', 700n)))).toBe('NOT_A_TRANSACTION')
      expect(await codeOf(inside.reverse(id('a'), { id: id('undo') }))).toBe('NOT_A_TRANSACTION')
      expect(await codeOf(inside.hold(customer))).toBe('NOT_A_TRANSACTION')
    }
    const failed = await books.begin()
    await failed.query('select 1 / 0').catch(() => {})
    expect(await codeOf(books.ledger.in(failed).post(charged('a', 700n)))).toBe('NOT_A_TRANSACTION')
    expect(await codeOf(books.ledger.in(failed).balance(customer, 'EUR'))).toBe('NOT_A_TRANSACTION')
    expect(await balances()).toEqual([0n, 0n])
  })

  test('a database without our tables, and something that is no connection, are told', async () => {
    const other = createLedger(books.pool, { schema: 'elsewhere' })
    expect(await codeOf(other.post(charged('a', 1n)))).toBe('SCHEMA_MISSING')
    expect(() => createLedger(books.pool, { schema: 'a b' })).toThrow(TypeError)
    expect(() => createLedger({} as pg.Pool)).toThrow('takes a pool')
    expect(() => books.ledger.in(undefined as unknown as pg.PoolClient)).toThrow('takes the client')
    const gone = new pg.Pool({ connectionString: 'postgres://nobody@127.0.0.1:1/none' })
    expect(await codeOf(createLedger(gone).post(charged('a', 1n)))).toBe('STORE_UNAVAILABLE')
    await gone.end()
  })
})

/** Until one of our posts waits for another transaction. */
async function waitsForLock(): Promise<void> {
  const deadline = performance.now() + 10_000
  for (;;) {
    const { rows } = await books.pool.query(
      "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%ledger.%' and datname = current_database()",
    )
    if (rows.length > 0) return
    if (performance.now() > deadline) throw new Error('nothing waits for a lock')
  }
}

describe('undoing', () => {
  test('R20: a reversal is a new entry that names the first, which stays as it was', async () => {
    const first = await books.ledger.post(charged('a', 700n))
    const undone = await books.ledger.reverse(id('a'), { id: id('undo'), note: 'customer asked' })
    expect(undone).toMatchObject({ kind: 'posted', id: id('undo') })
    expect(await balances()).toEqual([0n, 0n])
    expect(await books.ledger.entry(id('a'))).toMatchObject({
      recordedAt: first.recordedAt,
      reversedBy: id('undo'),
      movements: [{ amount: -700n }, { amount: 700n }],
    })
    expect(await books.ledger.entry(id('undo'))).toMatchObject({
      reverses: id('a'),
      note: 'customer asked',
      movements: [
        { account: customer, amount: 700n },
        { account: revenue, amount: -700n },
      ],
    })
  })

  test('a repeat finds its own reversal, another is told who was first, and its id stays free', async () => {
    await books.ledger.post(charged('a', 700n))
    const first = await books.ledger.reverse(id('a'), { id: id('undo') })
    expect(await books.ledger.reverse(id('a'), { id: id('undo') })).toEqual({ ...first, kind: 'existing' })
    expect(await books.ledger.reverse(id('a'), { id: id('second') })).toMatchObject({
      kind: 'reversed',
      by: id('undo'),
    })
    expect((await books.ledger.post(charged('second', 1n))).kind).toBe('posted')
    expect(await codeOf(books.ledger.reverse(id('a'), { id: id('undo'), note: 'x' }))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(await codeOf(books.ledger.reverse(id('a'), { id: id('a') }))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(await codeOf(books.ledger.post(charged('undo', 700n)))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(await books.ledger.reverse(id('none'), { id: id('third') })).toEqual({ kind: 'missing' })
    // Undoing the undoing puts the first back, once.
    expect((await books.ledger.reverse(id('undo'), { id: id('redo') })).kind).toBe('posted')
    expect(await balances()).toEqual([-701n, 701n])
  })

  test('thirty-two callers with ids of their own undo an entry once', async () => {
    await books.ledger.post(charged('a', 700n))
    const results = await Promise.all(
      Array.from({ length: 32 }, (_, index) => books.ledger.reverse(id('a'), { id: id(`undo-${index}`) })),
    )
    const posted = results.filter(({ kind }) => kind === 'posted')
    expect(posted).toHaveLength(1)
    const [winner] = posted
    for (const result of results) {
      if (result.kind === 'reversed') expect(result.by).toBe(winner?.kind === 'posted' ? winner.id : '')
      else expect(result.kind).toBe('posted')
    }
    expect(await balances()).toEqual([0n, 0n])
  })
})

describe('in the database', () => {
  test.each([
    'update effectively_once.ledger_entry set note = $1',
    'delete from effectively_once.ledger_entry where id = $1',
    'update effectively_once.ledger_movement set amount = 1 where account = $1',
    'delete from effectively_once.ledger_movement where account = $1',
    'insert into effectively_once.ledger_entry (id, fingerprint, lines, recorded_at) values ($1, decode(md5($1), $$hex$$), 2, now()) on conflict (id) do update set note = $1',
  ])('R20: nobody changes history: %s', async (sql) => {
    await books.ledger.post(charged('a', 700n))
    expect(await codeOf(books.pool.query(sql, [id('a')]))).toBe('EO011')
  })

  test.each(['ledger_movement', 'ledger_entry', 'ledger_entry cascade'])('R20: nobody truncates %s', async (table) => {
    const code = await codeOf(books.pool.query(`truncate effectively_once.${table}`))
    // The entries alone are kept by the movements that name them, before any trigger.
    expect(code).toBe(table === 'ledger_entry' ? '0A000' : 'EO011')
  })

  test('R20: a session that skips triggers for replication changes nothing either', async () => {
    await books.ledger.post(charged('a', 700n))
    const tx = await books.begin()
    await tx.query("set local session_replication_role = 'replica'")
    expect(await codeOf(tx.query('delete from effectively_once.ledger_movement'))).toBe('EO011')
  })

  test('who was given rights by default keeps reading and posting, and cannot change', async () => {
    const role = `r_${randomUUID().replaceAll('-', '').slice(0, 12)}`
    const other = await openBooks()
    try {
      await other.pool.query('drop schema effectively_once cascade')
      await other.pool.query(`create role ${role}`)
      await other.pool.query('create schema effectively_once')
      await other.pool.query(`grant usage on schema effectively_once to ${role}`)
      await other.pool.query(
        `alter default privileges in schema effectively_once grant all on tables to ${role}, public`,
      )
      const { migrate } = await import('../../src/stores/postgres/migrate.ts')
      await migrate(other.pool)
      const { rows } = await other.pool.query(
        `select table_name || ' ' || privilege_type as right from information_schema.table_privileges
          where table_name like 'ledger\\_%' and grantee in ($1, 'PUBLIC') and privilege_type in ('INSERT', 'SELECT', 'UPDATE', 'DELETE', 'TRUNCATE')
          group by 1 order by 1`,
        [role],
      )
      expect(rows.map((row: { right: string }) => row.right)).toEqual([
        'ledger_entry INSERT',
        'ledger_entry SELECT',
        'ledger_movement INSERT',
        'ledger_movement SELECT',
      ])
      const tx = await other.begin()
      await tx.query(`set local role ${role}`)
      expect((await other.ledger.in(tx).post(charge('a', 1n))).kind).toBe('posted')
      expect(await codeOf(tx.query('delete from effectively_once.ledger_movement'))).toBe('42501')
    } finally {
      await other.pool.query(`drop owned by ${role}`)
      await other.close()
      await books.pool.query(`drop role ${role}`)
    }
  })

  const insertEntry =
    'with e as (insert into effectively_once.ledger_entry (id, fingerprint, lines, recorded_at) values ($1, decode(md5($1), $$hex$$), $2, now()) returning seq, recorded_at) '
  test.each([
    ['not balanced', 2, "values (1, 'a', 5), (2, 'b', -4)", 'EO010'],
    ['fewer lines than it says', 3, "values (1, 'a', 5), (2, 'b', -5)", 'EO010'],
    ['more lines than it says', 2, "values (1, 'a', 5), (2, 'b', -5), (3, 'c', 1), (4, 'd', -1)", 'EO010'],
    ['a line of nothing', 2, "values (1, 'a', 0), (2, 'b', 0)", '23514'],
    [
      'the amount that has no counterpart',
      3,
      "values (1, 'a', (-9223372036854775808)), (2, 'b', 9223372036854775807), (3, 'c', 1)",
      '23514',
    ],
  ])('an entry with %s is refused whoever inserts it', async (_what, lines, movements, code) => {
    const inserted = books.pool.query(
      `${insertEntry} insert into effectively_once.ledger_movement (entry, line, account, currency, amount, recorded_at) select e.seq, m.line, m.account, 'EUR', m.amount, e.recorded_at from e, (${movements}) as m (line, account, amount)`,
      [id('raw'), lines],
    )
    expect(await codeOf(inserted)).toBe(code)
  })

  test('lines cannot be added to an entry later, and no instant but the clock is taken', async () => {
    const { recordedAt } = await books.ledger.post(charged('a', 700n))
    const added = books.pool.query(
      `insert into effectively_once.ledger_movement (entry, line, account, currency, amount, recorded_at)
        select e.seq, l.line, 'x', 'EUR', l.amount, e.recorded_at from effectively_once.ledger_entry as e, (values (3, 1), (4, -1)) as l (line, amount) where e.id = $1`,
      [id('a')],
    )
    expect(await codeOf(added)).toBe('EO010')
    const dated = books.pool.query(
      `${insertEntry} insert into effectively_once.ledger_movement (entry, line, account, currency, amount, recorded_at) select e.seq, m.line, m.account, 'EUR', m.amount, '2020-01-01' from e, (values (1, 'a', 5), (2, 'b', -5)) as m (line, account, amount)`,
      [id('dated'), 2],
    )
    expect(await codeOf(dated)).toBe('EO010')
    const tx = await books.begin()
    const { rows } = await tx.query(`${insertEntry} select recorded_at > $3::timestamptz as later from e`, [
      id('backdated'),
      2,
      recordedAt,
    ])
    expect(rows).toEqual([{ later: true }])
    // Without movements it is refused when the transaction ends.
    expect(await codeOf(tx.query('commit'))).toBe('EO010')
  })

  test('balances read one index, also as of an instant', async () => {
    await books.ledger.post(charged('a', 700n))
    const { ledgerStatements } = await import('../../src/ledger/statements.ts')
    const texts = ledgerStatements('effectively_once')
    const plan = async (text: string, values: unknown[]) => {
      const tx = await books.begin()
      await tx.query('set local enable_seqscan = off; set local enable_bitmapscan = off')
      const { rows } = await tx.query(`explain ${text}`, values)
      await tx.query('rollback')
      return rows.map((row: Record<string, string>) => row['QUERY PLAN']).join('\n')
    }
    for (const [text, values] of [
      [texts.balance, [customer, 'EUR']],
      [texts.balanceAsOf, [customer, 'EUR', '2026-01-01T00:00Z']],
      [texts.balances, [customer]],
      [texts.balancesAsOf, [customer, '2026-01-01T00:00Z']],
    ] as const) {
      expect(await plan(text, [...values])).toContain('Index Only Scan using ledger_movement_sum')
    }
    expect(await plan(texts.entry, [id('a')])).not.toContain('Seq Scan')
  })
})
