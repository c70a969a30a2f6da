import fc from 'fast-check'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createLedger, transfer } from '../../src/ledger/index.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { type Books, charge, openBooks } from './books.ts'

let books: Books

beforeAll(async () => {
  books = await openBooks()
})
afterAll(() => books.close())

/** One step of a worker. Entries and accounts are few, so that workers meet. */
type Step =
  | {
      readonly kind: 'post'
      readonly entry: number
      readonly from: number
      readonly to: number
      readonly amount: bigint
    }
  | { readonly kind: 'reverse'; readonly entry: number; readonly by: number }

interface Batch {
  readonly steps: readonly Step[]
  readonly end: 'alone' | 'commit' | 'rollback'
}

const ACCOUNTS = 4
const entries = fc.nat(7)
const step: fc.Arbitrary<Step> = fc.oneof(
  fc
    .record({ entry: entries, from: fc.nat(ACCOUNTS - 1), to: fc.nat(ACCOUNTS - 1), amount: fc.bigInt(1n, 3n) })
    .map((fields) => ({ kind: 'post' as const, ...fields })),
  fc.record({ entry: entries, by: entries }).map((fields) => ({ kind: 'reverse' as const, ...fields })),
)
const batch: fc.Arbitrary<Batch> = fc.record({
  steps: fc.array(step, { minLength: 1, maxLength: 4 }),
  end: fc.constantFrom('alone', 'commit', 'rollback'),
})

let runs = 0

test('R21: any interleaving of posts, reversals and rollbacks keeps every sum zero and every balance right', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.array(batch, { maxLength: 5 }), { minLength: 2, maxLength: 6 }), async (workers) => {
      runs += 1
      const run = `run-${runs}`
      const account = (index: number) => `${run}/account-${index}`
      const idOf = (index: number) => `${run}/entry-${index}`
      // What was told as posted and committed, as the changes that it stands for.
      const applied = new Map<string, Step>()

      const carryOut = async (one: Step, ledger: Pick<Books['ledger'], 'post' | 'reverse'>) => {
        const done =
          one.kind === 'post'
            ? ledger.post({
                id: idOf(one.entry),
                movements: transfer(account(one.from), account(one.to), one.amount, 'EUR'),
              })
            : ledger.reverse(idOf(one.entry), { id: `${idOf(one.by)}` })
        const result = await done.catch((error: unknown) => {
          if ((error as { code?: string }).code === 'IDEMPOTENCY_KEY_REUSED') return { kind: 'mismatch' as const }
          throw error
        })
        return result.kind === 'posted' ? { id: result.id, step: one } : undefined
      }
      const inTransaction = async ({ steps, end }: Batch) => {
        const tx = await books.pool.connect()
        const posted: { id: string; step: Step }[] = []
        try {
          await tx.query('begin')
          for (const one of steps) {
            const done = await carryOut(one, books.ledger.in(tx))
            if (done !== undefined) posted.push(done)
          }
          await tx.query(end)
          if (end === 'commit') for (const { id, step: one } of posted) applied.set(id, one)
        } catch (error) {
          await tx.query('rollback')
          // Two transactions that post the same ids in opposite order: the server ends one.
          if ((error as { code?: string }).code !== '40P01') throw error
        } finally {
          tx.release()
        }
      }
      await Promise.all(
        workers.map(async (batches) => {
          for (const one of batches) {
            if (one.end !== 'alone') {
              await inTransaction(one)
              continue
            }
            for (const single of one.steps) {
              const done = await carryOut(single, books.ledger)
              if (done !== undefined) applied.set(done.id, single)
            }
          }
        }),
      )

      /** What an entry changes: its movements, or the opposite of those of the entry that it undoes. */
      const changes = (id: string): ReadonlyMap<number, bigint> => {
        const one = applied.get(id)
        const found = new Map<number, bigint>()
        if (one?.kind === 'post') {
          found.set(one.from, -one.amount)
          found.set(one.to, (found.get(one.to) ?? 0n) + one.amount)
        } else if (one !== undefined) {
          for (const [index, amount] of changes(idOf(one.entry))) found.set(index, -amount)
        }
        return found
      }
      const expected = Array.from({ length: ACCOUNTS }, () => 0n)
      for (const id of applied.keys())
        for (const [index, amount] of changes(id)) expected[index] = (expected[index] ?? 0n) + amount
      const found = await Promise.all(expected.map((_, index) => books.ledger.balance(account(index), 'EUR')))
      expect(found).toEqual(expected)

      const undone = [...applied.values()].flatMap((one) => (one.kind === 'reverse' ? [one.entry] : []))
      expect(new Set(undone).size).toBe(undone.length)
      const { rows } = await books.pool.query(
        `select
           (select count(*)::int from effectively_once.ledger_entry where starts_with(id, $1)) as entries,
           (select coalesce(sum(amount), 0)::text from effectively_once.ledger_movement) as sum,
           (select count(*)::int from (
              select entry from effectively_once.ledger_movement group by entry, currency having sum(amount) <> 0
            ) as unbalanced) as unbalanced`,
        [`${run}/`],
      )
      expect(rows).toEqual([{ entries: applied.size, sum: '0', unbalanced: 0 }])
    }),
    { numRuns: 30 },
  )
}, 120_000)

test('an answer that is lost on its way is found by the repeat, and counts once', async () => {
  const address = new URL(books.url)
  const proxy = await tcpProxy({ target: { port: Number(address.port), host: address.hostname } })
  const pool = new pg.Pool({ connectionString: proxy.through(books.url), max: 1 })
  pool.on('error', () => {})
  try {
    const ledger = createLedger(pool)
    const lost = proxy.swallow('ledger.post')
    await expect(ledger.post(charge('lost', 700n, 'lost:a', 'lost:b'))).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      retryable: true,
    })
    await lost.met
    await proxy.pass()
    expect((await ledger.post(charge('lost', 700n, 'lost:a', 'lost:b'))).kind).toBe('existing')
    expect(await ledger.balance('lost:a', 'EUR')).toBe(-700n)
  } finally {
    await pool.end()
    await proxy.close()
  }
})
