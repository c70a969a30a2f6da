/** The guard behind a pooler in transaction mode, which hands each transaction to another server session. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOnce, rejected } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type PgBouncer, pgbouncerMissing, startPgBouncer } from '../services/pgbouncer.ts'
import { type Guard, insertOrder, openGuard, POOLS } from './guard.ts'

let guard: Guard
let bouncer: PgBouncer

if (pgbouncerMissing !== undefined) console.warn(`*** SKIPPED: tests behind PgBouncer. ${pgbouncerMissing} ***`)

describe.skipIf(pgbouncerMissing !== undefined)('behind PgBouncer in transaction mode', () => {
  beforeAll(async () => {
    guard = await openGuard()
    bouncer = await startPgBouncer(guard.url, { poolSize: 4 })
  })

  afterAll(async () => {
    await bouncer?.stop()
    await guard.close()
  })

  const cases = POOLS.flatMap(([name, config]) =>
    [true, false].map((preparedStatements) => [name, preparedStatements, config] as const),
  )

  test.each(cases)(
    'I1, I3: %s pool, preparedStatements %s: every form works under concurrency',
    async (name, preparedStatements, config) => {
      const pool = new pg.Pool({ connectionString: bouncer.through(guard.url), max: 8, ...config })
      const once = createOnce({ store: postgres(pool, { preparedStatements }) })
      const scope = [`bouncer ${name} ${preparedStatements}`]
      const keys = Array.from({ length: 30 }, (_, n) => `${scope[0]} ${n}`)
      const runAll = () =>
        Promise.all(
          keys.map(async (key, n) => {
            const operation = { scope, key, payload: { key } }
            if (n % 5 === 0) {
              const text = 'insert into orders (ref) values ($1) returning ref'
              return await once.statement(operation, { text, values: [key] })
            }
            return await once.transaction(
              operation,
              async ({ tx, outbox }) => {
                await insertOrder(tx, key)
                await outbox.add([
                  { topic: 'a', payload: n },
                  { topic: 'b', payload: n },
                ])
                return n % 7 === 0 ? rejected(key) : key
              },
              { optimistic: n % 3 === 0, whenInProgress: 'wait' },
            )
          }),
        )
      const first = await runAll()
      const second = await runAll()
      expect(first.every((outcome) => !outcome.replayed)).toBe(true)
      expect(second).toEqual(first.map((outcome) => ({ ...outcome, replayed: true })))
      for (const [n, key] of keys.entries()) expect(await guard.count(key)).toBe(n % 7 === 0 && n % 5 !== 0 ? 0 : 1)
      expect(await guard.records(scope[0] ?? '')).toBe(keys.length)

      const client = await pool.connect()
      for (const kind of ['claimed', 'replay']) {
        await client.query('begin')
        const claim = await once.in(client).claim({ scope, key: 'in', payload: 1 })
        expect(claim.kind).toBe(kind)
        if (claim.kind === 'claimed') {
          await once.in(client).outbox.add({ topic: 'c', payload: 1 })
          await once.in(client).succeed(claim.claim, 'in')
        }
        await client.query('commit')
        if (claim.kind === 'claimed') expect(await once.in(client).verifyCommit(claim.claim)).toBe('committed')
      }
      client.release()
      await pool.end()
    },
    60_000,
  )
})
