/** The wait for a client has one bound, whatever it is spent on. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { Connections } from '../../src/stores/postgres/connections.ts'
import type { PgClient } from '../../src/stores/postgres/handle.ts'

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(() => {
  vi.useRealTimers()
})

test('T6: the wait behind other transactions and the wait for the pool have one bound together', async () => {
  const client: PgClient = { query: () => Promise.reject(new Error('nothing is asked here')), release: () => {} }
  const given = [client]
  // A pool whose one client went to somebody else while we waited for our turn.
  const pool = { connect: () => new Promise<PgClient>((resolve) => given.splice(0, 1).forEach(resolve)) }
  const connections = new Connections(pool, { limit: 1, acquireTimeoutMs: 1_000, waitersMax: 10 })
  const first = await connections.acquire()
  const told: unknown[] = []
  const second = connections.acquire().catch((error: unknown) => told.push(error))
  await vi.advanceTimersByTimeAsync(900)
  connections.release(first)
  await vi.advanceTimersByTimeAsync(99)
  expect(told).toEqual([])
  await vi.advanceTimersByTimeAsync(1)
  await second
  expect(told).toMatchObject([{ code: 'STORE_UNAVAILABLE' }])
})
