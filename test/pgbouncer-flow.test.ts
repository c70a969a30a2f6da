/**
 * The whole way of a message behind a pooler in transaction mode, which hands each transaction to another server
 * session: an operation adds it, a relay publishes it, a consumer applies it and sends on. LISTEN does not get
 * through; polling does.
 */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { memoryBroker } from '../src/brokers/memory/index.ts'
import { type ConsumerEvent, createOnce } from '../src/index.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { eventually } from './eventually.ts'
import { type Guard, insertOrder, openGuard, POOLS } from './operation/guard.ts'
import { type PgBouncer, pgbouncerMissing, startPgBouncer } from './services/pgbouncer.ts'

const MESSAGES = 30
let guard: Guard
let bouncer: PgBouncer

describe.skipIf(pgbouncerMissing !== undefined)('behind PgBouncer in transaction mode', () => {
  beforeAll(async () => {
    guard = await openGuard()
    bouncer = await startPgBouncer(guard.url, { poolSize: 4 })
  })

  afterAll(async () => {
    await bouncer?.stop()
    await guard.close()
  })

  const KINDS = ['handle', 'ordered', 'handleBatch'] as const
  const cases = POOLS.flatMap(([name, config]) =>
    [true, false].flatMap((prepared) => KINDS.map((kind) => [name, prepared, kind, config] as const)),
  )

  test.each(cases)(
    'I7, I8, I9: %s pool, preparedStatements %s, %s: every message is published, applied once and answered once',
    async (name, preparedStatements, kind, config) => {
      const pool = new pg.Pool({ connectionString: bouncer.through(guard.url), max: 12, ...config })
      pool.on('error', () => {})
      const once = createOnce({ store: postgres(pool, { preparedStatements }) })
      const tag = `${name} ${preparedStatements} ${kind}`
      const broker = memoryBroker()
      const orders = broker.queue('orders', { topics: ['order'] })
      const answers = broker.queue('answers', { topics: ['answer'] })
      const relay = once.relay({ broker, pollMs: 20, leaseMs: 5_000 })
      onTestFinished(async () => {
        await Promise.all([consumer.stop(), relay.stop()])
        await pool.end()
      })
      const events: ConsumerEvent[] = []
      const failed = new Set<string>()
      /** A third of the messages fail once, so that the waiting table is used too. */
      const failsOnce = (id: string, n: number): boolean => n % 3 === 0 && !failed.has(id) && failed.add(id).size > 0
      const refOf = (message: { readonly body: unknown }): { ref: string; n: number } =>
        message.body as { ref: string; n: number }
      const consumer = once.consumer({
        name: tag.replaceAll(' ', '-'),
        source: broker.source('orders'),
        concurrency: 3,
        pollMs: 20,
        backoff: { minMs: 5, maxMs: 20 },
        onEvent: (event) => events.push(event),
        ...(kind === 'ordered' ? { orderBy: true } : {}),
        ...(kind === 'handleBatch'
          ? {
              handleBatch: async ({ tx, outbox, messages }) => {
                for (const message of messages) {
                  const { ref, n } = refOf(message)
                  await insertOrder(tx, ref)
                  await outbox.add({ topic: 'answer', payload: ref })
                  if (failsOnce(message.id, n)) throw new Error('once')
                }
              },
            }
          : {
              handle: async ({ tx, outbox, message }) => {
                const { ref, n } = refOf(message)
                await insertOrder(tx, ref)
                await outbox.add({ topic: 'answer', payload: ref })
                if (failsOnce(message.id, n)) throw new Error('once')
              },
            }),
      })
      await relay.start()
      await consumer.start()
      const refs = Array.from({ length: MESSAGES }, (_, n) => `${tag} ${n}`)
      await Promise.all(
        refs.map((ref, n) =>
          once.transaction({ scope: 'flow', key: ref, payload: null }, ({ outbox }) =>
            outbox.add({ topic: 'order', orderingKey: `k${n % 3}`, payload: { ref, n } }),
          ),
        ),
      )
      await eventually('every answer is published', () => answers.length === MESSAGES, 60_000)
      await eventually('every message is acknowledged', () => orders.length === 0, 60_000)
      await consumer.drain()
      await Promise.all([consumer.stop(), relay.stop()])
      const { rows } = await guard.admin.query(
        'select ref, count(*)::int as n from orders where ref = any($1) group by 1',
        [refs],
      )
      expect(rows.filter(({ n }) => n !== 1)).toEqual([])
      expect(rows).toHaveLength(MESSAGES)
      expect(answers.length).toBe(MESSAGES)
      expect(failed.size).toBe(MESSAGES / 3)
      expect(events.filter((event) => event.kind === 'quarantined')).toEqual([])
    },
    150_000,
  )
})
