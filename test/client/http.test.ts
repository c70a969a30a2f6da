import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOperation, memoryStorage, type OperationOptions } from '../../src/client/index.ts'
import { type Shop, startShop } from './shop.ts'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.close())

const create = (path: string, key: string, options: Partial<OperationOptions> = {}) =>
  createOperation({
    url: `${shop.url}${path}`,
    key,
    body: { customer: key, cents: 1 },
    storage: memoryStorage(),
    backoff: { capMs: 50 },
    ...options,
  })
const ordersOf = async (customer: string) => (await shop.orders()).filter((order) => order.customer === customer)

test('B127: guarded routes: a fresh answer, a replay, a mismatch and a stored no are told apart', async () => {
  expect(await create('/orders', 'h-1')()).toMatchObject({ state: 'completed', replayed: false })
  const again = await create('/orders', 'h-1')()
  expect(again).toMatchObject({ state: 'completed', replayed: true, response: { status: 201 } })
  expect(again.state === 'completed' && (await again.response.json())).toEqual({
    orderId: expect.any(Number) as number,
  })
  expect(await create('/orders', 'h-1', { body: { customer: 'h-1', cents: 2 } })()).toMatchObject({
    state: 'refused',
    problem: { code: 'IDEMPOTENCY_KEY_REUSED' },
    safeNewKey: false,
  })
  const no = { body: { customer: 'h-2', cents: 20_000 } }
  expect(await create('/orders', 'h-2', no)()).toMatchObject({ state: 'refused', status: 402, replayed: false })
  expect(await create('/orders', 'h-2', no)()).toMatchObject({ state: 'refused', status: 402, replayed: true })
  expect(await ordersOf('h-1')).toHaveLength(1)
})

test('B127, R10: while another request works, 409 with Retry-After is waited out and the outcome is replayed', async () => {
  const held = shop.hold('during')
  const first = create('/orders', 'h-3')()
  await held.reached
  const before = shop.requests.length
  const waits: number[] = []
  // The wait that Retry-After asks for ends when the first request has been answered.
  const clock = {
    now: () => Date.now() + waits.reduce((sum, ms) => sum + ms, 0),
    sleep: async (ms: number) => {
      waits.push(ms)
      held.release()
      await first
    },
  }
  expect(await create('/orders', 'h-3', { clock })()).toMatchObject({ state: 'completed', replayed: true, attempts: 2 })
  expect(waits[0]).toBeGreaterThanOrEqual(1_000)
  expect(shop.requests.length - before).toBe(2)
  expect((await first).state).toBe('completed')
  expect(await ordersOf('h-3')).toHaveLength(1)
})

test('R10: whenInProgress accept: the 202 is followed to the status resource and gives the stored answer', async () => {
  const held = shop.hold('during')
  const first = create('/accepted', 'h-4')()
  await held.reached
  let looks = 0
  const clock = {
    now: () => Date.now() + looks * 1_500,
    // Released at the second wait, so the status resource has been asked while the work was going on.
    sleep: async () => {
      looks += 1
      if (looks < 2) return
      held.release()
      await first
    },
  }
  const second = await create('/accepted', 'h-4', { clock })()
  const result = await first
  expect(second).toMatchObject({ state: 'completed', attempts: 1, response: { status: 201 } })
  expect(second.state === 'completed' && (await second.response.json())).toEqual(
    result.state === 'completed' && (await result.response.json()),
  )
  expect(looks).toBeGreaterThanOrEqual(2)
  expect(await ordersOf('h-4')).toHaveLength(1)
})
