/** Identity: which scopes and keys are taken, and that no two operations are ever one. */
import fc from 'fast-check'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce, type Once, type OnceError } from '../../src/index.ts'
import { createLedger } from '../../src/ledger/index.ts'
import { identify, type Scope } from '../../src/operation/identity.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type Guard, insertOrder, openGuard } from './guard.ts'

let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})

afterAll(() => guard.close())

const codeOf = (key: unknown): string | undefined => {
  try {
    identify('s', key as string)
    return undefined
  } catch (error) {
    return (error as OnceError).code
  }
}

describe('keys', () => {
  test.each([undefined, null, ''])('%j is IDEMPOTENCY_KEY_MISSING', (key) => {
    expect(codeOf(key)).toBe('IDEMPOTENCY_KEY_MISSING')
  })

  test.each([
    ['a number', 7],
    ['a list', ['a']],
    ['an object', { toString: () => 'a' }],
    ['a boxed string', Object('a')],
    ['256 bytes', 'a'.repeat(256)],
    ['256 bytes of two-byte characters', 'é'.repeat(128)],
    ['257 bytes, the last character crossing the limit', `${'a'.repeat(253)}😀`],
    ['3000 bytes', 'a'.repeat(3_000)],
    ['10000 bytes', 'a'.repeat(10_000)],
    ['a NUL', 'a\u0000b'],
    ['a line break', 'a\nb'],
    ['DEL', 'a\u007f'],
    ['a C1 control', 'a\u0085'],
    ['a lone high surrogate', 'a\ud800'],
    ['a lone low surrogate', '\udc00a'],
  ])('B18: a key that is %s is IDEMPOTENCY_KEY_INVALID', (_name, key) => {
    expect(codeOf(key)).toBe('IDEMPOTENCY_KEY_INVALID')
  })

  test.each([
    ['255 bytes', 'a'.repeat(255)],
    ['255 bytes of three-byte characters', '€'.repeat(85)],
    ['255 bytes that end in a four-byte character', `${'a'.repeat(251)}😀`],
    ['a space', ' '],
    ['quotes and backslashes', `'"\\;--`],
  ])('B18: a key of %s works in the database and is replayed', async (_name, key) => {
    const run = () => once.transaction({ scope: ['acme', 'keys'], key, payload: null }, () => key)
    expect((await run()).replayed).toBe(false)
    expect(await run()).toMatchObject({ value: key, replayed: true })
  })

  test('B18: long keys with one prefix stay apart, and so do keys in two Unicode forms', () => {
    const long = 'a'.repeat(254)
    expect(identify('s', `${long}1`).id).not.toBe(identify('s', `${long}2`).id)
    expect(identify('s', 'é').id).not.toBe(identify('s', 'e\u0301').id)
    expect(identify('s', 'a').id).not.toBe(identify('s', 'A').id)
  })

  test('an error about a key does not show it', () => {
    for (const key of ['secret\u0000', 'secret'.repeat(100)]) {
      expect(() => identify('s', key)).toThrow(
        expect.objectContaining({ message: expect.not.stringContaining('secret') }),
      )
    }
  })
})

describe('scopes', () => {
  test.each([
    ['undefined', undefined],
    ['null', null],
    ['empty', ''],
    ['an empty list', []],
    ['a list with an empty part', ['a', '']],
    ['a list with a number', ['a', 1]],
    ['a list with undefined', ['a', undefined]],
    ['nested', ['a', ['b']]],
    ['nine parts', Array.from({ length: 9 }, () => 'a')],
    ['a part of 256 bytes', ['é'.repeat(128)]],
    ['a part with a NUL', ['a\u0000']],
    ['a part with a lone surrogate', ['a\udfff']],
    ['an object', { tenant: 'a' }],
  ])('T1: a scope that is %s is a TypeError, for every API', async (_name, scope) => {
    const operation = { scope: scope as Scope, key: 'k', payload: null }
    await expect(once.transaction(operation, () => 1)).rejects.toThrow(TypeError)
    await expect(once.statement(operation, { text: 'select 1' })).rejects.toThrow(TypeError)
    const client = await guard.admin.connect()
    await client.query('begin')
    await expect(once.in(client).claim(operation)).rejects.toThrow(TypeError)
    await client.query('rollback')
    client.release()
  })

  test('T1: leaving the scope out does not compile', () => {
    // @ts-expect-error scope is required
    void (() => once.transaction({ key: 'k', payload: null }, () => 1))
    // @ts-expect-error scope is required
    void (() => once.statement({ key: 'k', payload: null }, { text: 'select 1' }))
  })

  test('SC12: no choice of delimiters makes two operations one', () => {
    const part = fc.string({
      minLength: 1,
      maxLength: 4,
      unit: fc.constantFrom('a', 'b', ':', '1', '2', ',', '"', '['),
    })
    const operation = fc.tuple(fc.array(part, { minLength: 1, maxLength: 4 }), part)
    fc.assert(
      fc.property(operation, operation, ([scopeA, keyA], [scopeB, keyB]) => {
        const same = JSON.stringify([scopeA, keyA]) === JSON.stringify([scopeB, keyB])
        expect(identify(scopeA, keyA).id === identify(scopeB, keyB).id).toBe(same)
      }),
      { numRuns: 2_000 },
    )
    const ids = (
      [
        [['a', 'b'], 'c'],
        [['a'], 'bc'],
        [['ab'], 'c'],
        [['a', 'b', 'c'], 'c'],
        [['1:a1:b'], 'c'],
        [['a1:b'], 'c'],
        [['a'], '1:b1:c'],
        [['aa', 'b'], 'c'],
        [['a', 'ab'], 'c'],
      ] as const
    ).map(([scope, key]) => identify(scope, key).id)
    expect(new Set(ids).size).toBe(ids.length)
  })

  test('a string is a list of one', () => {
    expect(identify('a', 'k')).toEqual(identify(['a'], 'k'))
  })
})

describe('T1, R02: two tenants with the same key and payload', () => {
  const tenants = ['tenant-a', 'tenant-b'] as const
  const operation = (tenant: string, key: string) => ({ scope: [tenant, 'orders'], key, payload: { amount: 1 } })

  test('once.transaction: each has its own outcome, and nobody sees the other', async () => {
    const run = (tenant: string) =>
      once.transaction(operation(tenant, 'x'), ({ tx }) => insertOrder(tx, `tx ${tenant}`).then(() => tenant))
    for (const tenant of tenants) expect(await run(tenant)).toMatchObject({ value: tenant, replayed: false })
    for (const tenant of tenants) expect(await run(tenant)).toMatchObject({ value: tenant, replayed: true })
  })

  test('once.transaction: the other tenant is not held up while one works', async () => {
    await once.transaction(operation('tenant-a', 'busy'), async ({ tx }) => {
      await insertOrder(tx, 'busy')
      const other = guard.once()
      const outcome = await outsideOfWork(() => other.transaction(operation('tenant-b', 'busy'), () => 'b'))
      expect(outcome).toMatchObject({ value: 'b', replayed: false })
      return 'a'
    })
  })

  test('once.statement: each has its own rows', async () => {
    const run = (tenant: string) =>
      once.statement(operation(tenant, 'st'), {
        text: 'insert into orders (ref) values ($1) returning ref',
        values: [tenant],
      })
    for (const tenant of tenants) expect((await run(tenant)).value).toEqual([{ ref: tenant }])
    for (const tenant of tenants) expect(await run(tenant)).toMatchObject({ value: [{ ref: tenant }], replayed: true })
  })

  test('once.in(tx): a claim of one tenant is no claim of the other', async () => {
    const client = await guard.admin.connect()
    try {
      for (const tenant of tenants) {
        await client.query('begin')
        const claim = await once.in(client).claim(operation(tenant, 'in'))
        expect(claim.kind).toBe('claimed')
        if (claim.kind === 'claimed') await once.in(client).succeed(claim.claim, tenant)
        await client.query('commit')
      }
      for (const tenant of tenants) {
        await client.query('begin')
        expect(await once.in(client).claim(operation(tenant, 'in'))).toMatchObject({
          kind: 'replay',
          outcome: { value: tenant },
        })
        await client.query('commit')
      }
    } finally {
      client.release()
    }
  })
})

/** Leaves the async context of a work, in which operations are refused. */
function outsideOfWork<T>(run: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    detached.push(() => void run().then(resolve, reject))
  })
}
const detached: (() => void)[] = []
const timer = setInterval(() => detached.shift()?.(), 5)
afterAll(() => clearInterval(timer))

describe('options', () => {
  const scope = ['acme', 'options']

  test('T9: a schema name that is no plain identifier is refused before anything is sent', () => {
    const hostile = fc.oneof(
      fc.string(),
      fc.constantFrom('a"; drop schema public; --', 'A', 'ä', '1a', 'a b', 'a.b', '', 'a'.repeat(64), `a'`, 'a\u0000'),
    )
    fc.assert(
      fc.property(hostile, (schema) => {
        const plain = /^[a-z_][a-z0-9_]{0,62}$/.test(schema)
        const make = () => postgres(guard.admin, { schema })
        if (plain) expect(make).not.toThrow()
        else expect(make).toThrow(TypeError)
      }),
    )
    guard.admin.setMaxListeners(0)
    for (const schema of ['information_schema', 'pg_catalog', 'pg_x']) {
      expect(() => postgres(guard.admin, { schema })).toThrow(/^schema must not be information_schema/)
      expect(() => createLedger(guard.admin, { schema })).toThrow(/^schema must not be information_schema/)
    }
    for (const schema of [7, null, {}, ['a']]) {
      expect(() => postgres(guard.admin, { schema: schema as unknown as string })).toThrow(TypeError)
    }
  })

  test('T9: two schemas in one database are two worlds, on one pool', async () => {
    const longest = `s${'x'.repeat(62)}`
    const worlds = ['other_world', longest, `${longest.slice(0, 62)}y`].map((schema) =>
      createOnce({ store: postgres(guard.admin, { schema }) }),
    )
    for (const world of worlds) await world.migrate()
    for (const world of worlds) {
      expect((await world.transaction({ scope, key: 'world', payload: null }, () => 1)).replayed).toBe(false)
    }
  })

  test.each([
    ['once.transaction', { timeOutMs: 1 }],
    ['whenInProgress', { whenInProgress: 'wiat' }],
    ['waitMs', { waitMs: 0 }],
    ['timeoutMs', { timeoutMs: Number.NaN }],
    ['isolation', { isolation: `serializable; drop table orders` }],
    ['optimistic', { optimistic: 'yes' }],
    ['signal', { signal: {} }],
    ['attemptsMax', { attemptsMax: 1.5 }],
    ['retentionMs', { retentionMs: -1 }],
    ['options', null],
  ])('a wrong option is a TypeError that names it: %s', async (named, options) => {
    await expect(once.transaction({ scope, key: 'k', payload: null }, () => 1, options as never)).rejects.toThrow(
      expect.objectContaining({ name: 'TypeError', message: expect.stringContaining(named) }),
    )
  })

  test.each([
    ['tenant', { scope, key: 'k', payload: null, tenant: 'x' }],
    ['payload', { scope, key: 'k' }],
    ['fingerprint', { scope, key: 'k', fingerprint: { value: new Uint8Array(3), mode: 'raw' } }],
    ['fingerprint', { scope, key: 'k', fingerprint: { value: new Uint8Array(32), mode: 'other' } }],
    ['fingerprint', { scope, key: 'k', fingerprint: null }],
    ['operation', 'k'],
    ['operation', null],
  ])('a malformed operation is a TypeError about %s', async (named, operation) => {
    await expect(once.transaction(operation as never, () => 1)).rejects.toThrow(
      expect.objectContaining({ name: 'TypeError', message: expect.stringContaining(named) }),
    )
  })

  test.each([
    [() => postgres(guard.admin, { shema: 'x' } as never), 'shema'],
    [() => postgres(guard.admin, { preparedStatements: 'no' } as never), 'preparedStatements'],
    [() => postgres(guard.admin, { transactionsMax: 0 }), 'transactionsMax'],
    [() => postgres(undefined as never), 'pg.Pool'],
    [() => postgres(new pg.Client() as never), 'pg.Pool'],
    [() => createOnce({ store: memory(), secret: 1 } as never), 'secret'],
    [() => createOnce({} as never), 'store'],
    [() => createOnce(undefined as never), 'store'],
    [() => createOnce({ store: memory(), outcomeBytesMax: 1 }), 'outcomeBytesMax'],
    [() => createOnce({ store: memory(), secrets: { current: 'a', keys: {} } }), 'secrets'],
  ])('a wrong start-up option is a TypeError that names it', (make, named) => {
    expect(make).toThrow(expect.objectContaining({ name: 'TypeError', message: expect.stringContaining(named) }))
  })
})
