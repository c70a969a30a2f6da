/**
 * Routes with `gate: 'first-statement'`: the handler of a repeat starts, and must leave nothing and decide nothing. Two
 * servers on pools of their own stand for two processes, so that no memory of one tells the other.
 */
import http from 'node:http'
import type pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type HandlerContext, idempotency } from '../../src/frameworks/node/index.ts'
import { type Guard, insertOrder, openGuard } from '../operation/guard.ts'
import { listen } from './adapters/node.ts'
import { type Answered, send } from './client.ts'

type Handler = (
  context: HandlerContext<pg.PoolClient>,
  served: string,
) => Promise<readonly [status: number, said: unknown]>

let guard: Guard
let posts: readonly ((key: string, body?: string) => Promise<Answered>)[]
let closing: (() => Promise<void>)[] = []
let handler: Handler
/** What became of handlers, in order. */
let told: string[] = []

beforeAll(async () => {
  guard = await openGuard()
})
afterAll(() => guard.close())

// New ones for each test: a server that has met a replay looks for the record first for a while.
beforeEach(async () => {
  told = []
  const servers = await Promise.all(
    ['one', 'two'].map(async (name) => {
      const listener = idempotency(
        guard.once({ max: 4 }),
        { scope: () => 'acme', operation: 'POST /orders', gate: 'first-statement', onError: () => {} },
        async (_request, response, context) => {
          const [status, said] = await handler(context, name)
          response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(said))
        },
      )
      return await listen(http.createServer(listener))
    }),
  )
  closing = servers.map((server) => () => server.close())
  posts = servers.map(
    ({ port }) =>
      (key: string, body = '{}') =>
        send(port, { path: '/orders', key, body }),
  )
})
afterEach(async () => {
  for (const close of closing) await close()
})

const on = (server: 0 | 1): ((key: string, body?: string) => Promise<Answered>) => {
  const post = posts[server]
  if (post === undefined) throw new Error('no such server')
  return post
}

const inserting: Handler = async ({ tx, key = '' }, served) => {
  told.push(`${served} starts`)
  try {
    const { rows } = await insertOrder(tx, key)
    told.push(`${served} inserts`)
    return [201, rows[0]]
  } catch (error) {
    told.push(`${served} fails`)
    throw error
  }
}

test('I4, I3: the handler of a repeat fails at its first statement, and the first answer is replayed', async () => {
  handler = inserting
  const first = await on(0)('replayed')
  const again = await on(1)('replayed')
  expect(again.headers['idempotent-replayed']).toBe('true')
  expect(again.text).toBe(first.text)
  expect(told).toEqual(['one starts', 'one inserts', 'two starts', 'two fails'])
  expect(await guard.count('replayed')).toBe(1)
})

test('I4: a handler that swallows the failure and answers all the same does not get its answer sent', async () => {
  handler = async ({ tx, key = '' }, served) => {
    await insertOrder(tx, key).catch(() => {})
    // Later statements find a dead handle.
    await insertOrder(tx, `${key} again`).catch(() => told.push(`${served} is dead`))
    return [201, { served }]
  }
  await on(0)('swallowed')
  const again = await on(1)('swallowed')
  expect(again.json()).toEqual({ served: 'one' })
  expect(again.headers['idempotent-replayed']).toBe('true')
  expect(told).toEqual(['two is dead'])
  expect(await guard.count('swallowed')).toBe(1)
  expect(await guard.count('swallowed again')).toBe(1)
})

test.each([201, 401, 409, 500])(
  'I4, R10: an answer %i without any statement is not sent before it is decided',
  async (status) => {
    const key = `bare-${status}`
    let reached: () => void = () => {}
    const holds = new Promise<void>((resolve) => {
      reached = resolve
    })
    let finish: () => void = () => {}
    const finished = new Promise<void>((resolve) => {
      finish = resolve
    })
    handler = async (context, served) => {
      if (served === 'two') return [status, { served }]
      await insertOrder(context.tx, key)
      reached()
      await finished
      return [201, { served }]
    }
    const first = on(0)(key)
    await holds
    const busy = await on(1)(key)
    expect([busy.status, busy.json()['code']]).toEqual([409, 'OPERATION_IN_PROGRESS'])
    const other = await on(1)(key, '{"other":true}')
    expect([other.status, other.json()['code']]).toEqual([422, 'IDEMPOTENCY_KEY_REUSED'])
    finish()
    const answer = await first
    const again = await on(1)(key)
    expect(again.text).toBe(answer.text)
    expect(again.headers['idempotent-replayed']).toBe('true')
    expect(await guard.count(key)).toBe(1)
  },
)

test('R13: an answer without any statement is sent when nobody has the key, and its key is free or taken as ever', async () => {
  handler = async (_context, served) => [served === 'one' ? 401 : 201, { served }]
  expect((await on(0)('nobody')).status).toBe(401)
  expect((await on(1)('nobody')).json()).toEqual({ served: 'two' })
  expect((await on(0)('nobody')).json()).toEqual({ served: 'two' })
})

test('T6: a handler that never answers and has sent nothing is ended by timeoutMs', async () => {
  const listener = idempotency(
    guard.once({ max: 2 }),
    { scope: () => 'acme', operation: 'POST /orders', gate: 'first-statement', timeoutMs: 200, onError: () => {} },
    () => new Promise(() => {}),
  )
  const server = await listen(http.createServer(listener))
  try {
    const answer = await send(server.port, { path: '/orders', key: 'never', body: '{}' })
    expect([answer.status, answer.json()['code']]).toEqual([503, 'TOO_BUSY'])
  } finally {
    await server.close()
  }
})
