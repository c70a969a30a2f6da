/** A consumer whose BEGIN fails: what was sent behind it in the same trip must not commit by itself. */
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { memoryBroker } from '../../src/brokers/memory/index.ts'
import { type ConsumerEvent, createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { eventually } from '../eventually.ts'
import { type Guard, insertOrder, openGuard, POOLS, spoil } from '../operation/guard.ts'
import { QUICK } from './scene.ts'

const FAILURES = 4
/** The ways in which a transaction of the inbox opens. */
const KINDS = ['each', 'eager', 'ordered', 'batch'] as const

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

describe.each(POOLS)('%s pool', (pool, config) => {
  test.each(KINDS)(
    'B105, I9: %s: a BEGIN that fails lets no mark and no work commit by itself, and nothing counts',
    async (kind) => {
      const users = new pg.Pool({ connectionString: guard.url, max: 3, ...config })
      users.on('error', () => {})
      const begins = spoil(users, 'begin deferrable', FAILURES)
      const broker = memoryBroker()
      const queue = broker.queue('orders', { topics: ['#'] })
      const name = `${pool}-${kind}`
      const refs = Array.from({ length: 5 }, (_, n) => `${name}-${n}`)
      const publisher = broker.openPublisher({ publishTimeoutMs: 5_000 })
      for (const id of refs) {
        const message = {
          id,
          topic: 'a',
          orderingKey: null,
          payload: '1',
          contentType: 'application/json',
          headers: {},
        }
        publisher.publish({ ...message, createdAtMs: 0 }, () => {})
      }
      await eventually('they are there', () => queue.length === refs.length)
      const events: ConsumerEvent[] = []
      /** What others could see of the messages while a BEGIN had failed. */
      const seen: number[] = []
      const counts = async (): Promise<number[]> => await Promise.all(refs.map((ref) => guard.count(ref)))
      const consumer = createOnce({ store: postgres(users) }).consumer({
        name,
        source: broker.source('orders'),
        ...QUICK,
        concurrency: kind === 'batch' ? 1 : 2,
        onEvent: (event) => events.push(event),
        ...(kind === 'ordered' ? { orderBy: (message) => message.id } : {}),
        ...(kind === 'batch'
          ? {
              handleBatch: async ({ tx, messages }) => {
                await Promise.all(messages.map((message) => insertOrder(tx, message.id)))
              },
            }
          : { eager: kind === 'eager', handle: ({ tx, message }) => insertOrder(tx, message.id) }),
      })
      await consumer.start()
      await eventually('every BEGIN that was to fail has failed', async () => {
        seen.push(...(begins.left > 0 ? await counts() : []))
        return begins.left === 0
      })
      await eventually('all are acknowledged', () => queue.length === 0)
      await consumer.stop()
      await users.end()
      expect(Math.max(...seen, 0)).toBeLessThanOrEqual(1)
      expect(await counts()).toEqual(refs.map(() => 1))
      expect(events.filter((event) => event.kind === 'applied' && event.attempt === 1)).toHaveLength(refs.length)
      // The store's failure, not the messages': none has used up an attempt.
      expect(events.filter((event) => event.kind === 'waiting' || event.kind === 'quarantined')).toEqual([])
    },
  )
})
