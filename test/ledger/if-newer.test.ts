import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { ifNewer, type VersionedRow } from '../../src/ledger/index.ts'
import { type Books, openBooks } from './books.ts'

let books: Books

beforeAll(async () => {
  books = await openBooks()
  await books.pool.query('create schema shop')
  await books.pool.query(
    'create table shop.stock (site text, sku text, seq bigint not null, quantity int not null, info jsonb, primary key (site, sku))',
  )
})
afterAll(() => books.close())
beforeEach(() => books.pool.query('truncate shop.stock'))

const row = (seq: number | bigint, quantity: number, sku = 'a'): VersionedRow => ({
  table: 'shop.stock',
  key: { site: 'north', sku },
  version: { seq },
  set: { quantity, info: { note: "it's" } },
})
const stock = async () => {
  const { rows } = await books.pool.query('select sku, seq::int, quantity, info from shop.stock order by sku')
  return rows as unknown[]
}

test('R21: a newer version replaces the row, an older or equal one changes nothing and says which is there', async () => {
  expect(await ifNewer(books.pool, row(2, 20))).toEqual({ kind: 'stored' })
  expect(await ifNewer(books.pool, row(1, 10))).toEqual({ kind: 'stale', version: 2n })
  expect(await ifNewer(books.pool, row(2, 99))).toEqual({ kind: 'stale', version: 2n })
  expect(await stock()).toEqual([{ sku: 'a', seq: 2, quantity: 20, info: { note: "it's" } }])
  expect(await ifNewer(books.pool, row(3n, 30))).toEqual({ kind: 'stored' })
  expect(await ifNewer(books.pool, row(-(2n ** 62n), 0, 'b'))).toEqual({ kind: 'stored' })
  expect(await ifNewer(books.pool, row(2n ** 62n, 1, 'b'))).toEqual({ kind: 'stored' })
  expect(await ifNewer(books.pool, row(2n ** 62n - 1n, 2, 'b'))).toEqual({ kind: 'stale', version: 2n ** 62n })
})

test('of any number of writers at once the newest version stays', async () => {
  const versions = Array.from({ length: 60 }, (_, index) => ((index * 37) % 60) + 1)
  const results = await Promise.all(versions.map((version) => ifNewer(books.pool, row(version, version * 10))))
  expect(await stock()).toEqual([{ sku: 'a', seq: 60, quantity: 600, info: { note: "it's" } }])
  for (const [index, result] of results.entries()) {
    if (result.kind === 'stale') expect(result.version).toBeGreaterThan(BigInt(versions[index] ?? 0))
  }
})

test('a write that waits for an open transaction is compared with what that has committed', async () => {
  const tx = await books.begin()
  expect(await ifNewer(tx, row(5, 50))).toEqual({ kind: 'stored' })
  const older = ifNewer(books.pool, row(4, 40))
  const newer = ifNewer(books.pool, row(6, 60))
  await tx.query('commit')
  await Promise.all([older, newer])
  expect(await stock()).toMatchObject([{ seq: 6, quantity: 60 }])
})

test('it vanishes with the transaction it is in', async () => {
  const tx = await books.begin()
  await ifNewer(tx, row(1, 10))
  await tx.query('rollback')
  expect(await stock()).toEqual([])
})

test('a row without other columns keeps its version', async () => {
  await books.pool.query('create table if not exists seen (source text primary key, seq bigint not null)')
  const seen = (seq: number) => ifNewer(books.pool, { table: 'seen', key: { source: 'x' }, version: { seq }, set: {} })
  expect(await seen(2)).toEqual({ kind: 'stored' })
  expect(await seen(1)).toEqual({ kind: 'stale', version: 2n })
})

test.each<[string, Partial<VersionedRow>]>([
  ['identifier must match', { table: 'stock; drop table shop.stock' }],
  ['identifier must match', { table: '"stock"' }],
  ['table takes', { table: 'a.b.c' }],
  ['identifier must match', { key: { 'sku" = 1 --': 'x' } }],
  ['identifier must match', { set: { 'quantity = 1, seq': 1 } }],
  ['key takes 1 to', { key: {} }],
  ['version takes one column', { version: { seq: 1, other: 2 } }],
  ['version takes 1 to', { version: {} }],
  ['named twice', { set: { seq: 7 } }],
  ['whole number', { version: { seq: 1.5 } }],
  ['whole number', { version: { seq: 2n ** 63n } }],
  ['whole number', { version: { seq: '1' as unknown as bigint } }],
  ['unknown option', { where: 'true' } as Partial<VersionedRow>],
])('T9: %s: %o is refused before anything is sent', async (message, change) => {
  const refused = ifNewer(books.pool, { ...row(1, 10), ...change })
  await expect(refused).rejects.toThrow(TypeError)
  await expect(refused).rejects.toThrow(message)
})

test('an error about your table is passed on as it is', async () => {
  await expect(ifNewer(books.pool, { ...row(1, 10), table: 'nowhere' })).rejects.toMatchObject({ code: '42P01' })
})
