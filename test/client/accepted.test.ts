import { afterEach, expect, test } from 'vitest'
import { createOperation, memoryStorage, type RetryBudget, retryBudget } from '../../src/client/index.ts'
import { answer, jumpingClock, problem, repeatable, reset, type Scripted, type Step, scripted } from './scripted.ts'

const open: Scripted[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()))
})

async function scene(steps: readonly Step[], deadlineMs?: number, budget: RetryBudget = retryBudget()) {
  const clock = jumpingClock()
  const server = await scripted(steps, clock)
  open.push(server)
  const storage = memoryStorage()
  const attemptHeaders = () => ({ authorization: 'Bearer t' })
  const options = { url: `${server.url}/orders`, body: 'x', storage, attemptHeaders, deadlineMs }
  return { server, storage, send: createOperation({ ...options, ...repeatable(clock), budget }) }
}

const ref = 'r-1'
const accepted = (headers: Record<string, string> = {}): Step =>
  answer(202, { operation_ref: ref, state: 'in-progress' }, { location: '/operations/r-1', ...headers })
const state = (name: string, more: Record<string, unknown> = {}, headers: Record<string, string> = {}): Step =>
  answer(200, { operation_ref: ref, state: name, ...more }, headers)
const sent = (server: Scripted) => server.arrived.map(({ method, path }) => `${method} ${path}`)

const POST = 'POST /orders'
const GET = 'GET /operations/r-1'

test('R10: 202 is followed to its status resource until that is decided, not before Retry-After', async () => {
  const { server, send, storage } = await scene([
    accepted({ 'retry-after': '2' }),
    state('in-progress', {}, { 'retry-after': '3' }),
    reset,
    answer(503, {}, { 'retry-after': '4' }),
    state('in-progress'),
    state('completed', { result: { orderId: 7 } }),
  ])
  const result = await send()
  expect(result).toMatchObject({ state: 'completed', attempts: 1 })
  expect(result.state === 'completed' && (await result.response.json())).toEqual({ orderId: 7 })
  expect(sent(server)).toEqual([POST, GET, GET, GET, GET, GET])
  const times = server.arrived.map(({ at }) => at)
  const floors = [2_000, 3_000, 0, 4_000, 1_000]
  floors.forEach((floor, index) => {
    expect((times[index + 1] ?? 0) - (times[index] ?? 0)).toBeGreaterThanOrEqual(floor)
  })
  expect(server.arrived.every(({ headers }) => headers['authorization'] === 'Bearer t')).toBe(true)
  expect(server.arrived.slice(1).every(({ headers }) => headers['idempotency-key'] === undefined)).toBe(true)
  expect(await storage.entries()).toEqual([])
})

test('a result with status, headers and body is the answer that was stored, a no as well as a yes', async () => {
  const json = { 'content-type': 'application/json', location: '/orders/7' }
  const yes = { status: 201, headers: json, body: { orderId: 7 } }
  const { send } = await scene([accepted(), state('completed', { result: yes })])
  const created = await send()
  expect(created).toMatchObject({ state: 'completed', response: { status: 201 } })
  expect(created.state === 'completed' && created.response.headers.get('location')).toBe('/orders/7')
  expect(created.state === 'completed' && (await created.response.json())).toEqual({ orderId: 7 })

  const bytes = { status: 200, headers: { 'content-type': 'application/pdf' }, body_base64: 'AP+A' }
  const { send: binary } = await scene([accepted(), state('completed', { result: bytes })])
  const pdf = await binary()
  expect(pdf.state === 'completed' && [...new Uint8Array(await pdf.response.arrayBuffer())]).toEqual([0, 255, 128])

  const no = { status: 402, headers: json, body: { reason: 'credit' } }
  const { send: refusing, storage } = await scene([accepted(), state('completed', { result: no })])
  expect(await refusing()).toMatchObject({ state: 'refused', status: 402, safeNewKey: true })
  expect(await storage.entries()).toEqual([])

  const none = { status: 204, headers: {} }
  const { send: empty } = await scene([accepted(), state('completed', { result: none })])
  expect(await empty()).toMatchObject({ state: 'completed', response: { status: 204, body: null } })
})

test('completed without its result: the operation sent again gives the stored answer', async () => {
  const replay = answer(201, { orderId: 7 }, { 'idempotent-replayed': 'true' })
  const { server, send } = await scene([accepted(), state('completed'), replay])
  expect(await send()).toMatchObject({ state: 'completed', replayed: true, response: { status: 201 } })
  expect(sent(server)).toEqual([POST, GET, POST])
  expect(server.arrived[2]?.headers['idempotency-key']).toBe(server.arrived[0]?.headers['idempotency-key'])
})

test('not found there: the operation is sent again with its key', async () => {
  const { server, send } = await scene([
    accepted(),
    state('not-found'),
    accepted(),
    answer(404, { operation_ref: ref, state: 'not-found' }),
    answer(201),
  ])
  expect(await send()).toMatchObject({ state: 'completed', attempts: 3 })
  expect(sent(server)).toEqual([POST, GET, POST, GET, POST])
  expect(new Set(server.arrived.map(({ headers }) => headers['idempotency-key'] ?? 'none')).size).toBe(2)
})

test('unknown there is unknown here, and stays in the storage', async () => {
  const { send, storage } = await scene([accepted(), state('unknown')])
  expect(await send()).toMatchObject({ state: 'unknown', reason: 'outcome-unknown' })
  expect(await storage.entries()).toHaveLength(1)
})

test('still running at the deadline: pending, and a later call goes on', async () => {
  const running = Array.from({ length: 30 }, () => state('in-progress', {}, { 'retry-after': '2' }))
  const { send, storage, server } = await scene([accepted(), ...running], 10_000)
  expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline', attempts: 1 })
  expect(await storage.entries()).toHaveLength(1)
  expect(server.arrived.length).toBeLessThan(8)
})

test('looking again while the service works costs nothing of the retry budget', async () => {
  const running = Array.from({ length: 40 }, () => state('in-progress', {}, { 'retry-after': '1' }))
  const done = state('completed', { result: {} })
  const { send } = await scene([accepted(), ...running, done], 100_000, retryBudget({ tokens: 0 }))
  expect((await send()).state).toBe('completed')

  const busy = Array.from({ length: 40 }, () => problem(409, { code: 'OPERATION_IN_PROGRESS' }, { 'retry-after': '1' }))
  const { send: waiting } = await scene([...busy, answer(201)], 100_000, retryBudget({ tokens: 0 }))
  expect((await waiting()).state).toBe('completed')
})

test('fresh credentials are needed there too', async () => {
  const { send } = await scene([accepted(), problem(401, {})])
  expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'login' })
})

test('a place of the service itself is not a status resource: the 202 is the answer', async () => {
  for (const step of [answer(200, { job: 5, state: 'completed' }), answer(404), answer(200, 'text')]) {
    const { server, send } = await scene([answer(202, { job: 5 }, { location: '/jobs/5' }), step])
    const result = await send()
    expect(result).toMatchObject({ state: 'completed', response: { status: 202 } })
    expect(result.state === 'completed' && (await result.response.json())).toEqual({ job: 5 })
    expect(sent(server)).toEqual([POST, 'GET /jobs/5'])
  }
})

test('a place on another origin is never asked, so that it sees no credentials', async () => {
  const other = await scripted([])
  open.push(other)
  for (const location of [`${other.url}/operations/r-1`, '//evil.invalid/x', 'http://[broken']) {
    const { server, send } = await scene([accepted({ location }), answer(201)])
    expect(await send()).toMatchObject({ state: 'completed', attempts: 2 })
    expect(sent(server)).toEqual([POST, POST])
  }
  expect(other.arrived).toEqual([])
})
