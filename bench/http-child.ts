/**
 * A server of the http suite: the same handlers guarded and bare, on Hono and on Fastify, in a process of its own. Started
 * with DATABASE_URL; tells its ports, and its memory when it is asked.
 *
 * @module
 */

import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { fastify } from 'fastify'
import pg from 'pg'
import type * as FastifyDoor from '../src/frameworks/fastify/index.ts'
import type * as HonoDoor from '../src/frameworks/hono/index.ts'
import type { HandlerContext } from '../src/http/exchange.ts'
import { getRequestListener, Hono } from '../test/http/vendors.ts'
import { bareTransaction, orderInsert } from './database.ts'
import { core, DIST, stores } from './subject.ts'

const honoDoor = (await import(new URL('frameworks/hono/index.js', DIST).href)) as typeof HonoDoor
const fastifyDoor = (await import(new URL('frameworks/fastify/index.js', DIST).href)) as typeof FastifyDoor

/** How long the handler of the hot key works, milliseconds. */
const HOT_MS = 300
/** Size of the answers that memory is measured with, bytes. */
const LARGE = Buffer.alloc(200_000, 'x')

const pool = new pg.Pool({
  connectionString: process.env['DATABASE_URL'],
  pipeline: true,
  max: 20,
  idleTimeoutMillis: 0,
})
const once = core.createOnce({ store: stores.postgres(pool) })
type Context = HandlerContext<pg.PoolClient>

const insert = async ({ tx }: Context) => ({ orderId: String((await tx.query(orderInsert('c-7'))).rows[0].id) })
const bare = async () => ({ orderId: String(await bareTransaction(pool)) })
const select = async () => {
  const { rows } = await pool.query({ name: 'prepared', text: 'select body from prepared where id = $1', values: [1] })
  return JSON.parse(rows[0].body) as object
}
const hot = async ({ tx }: Context) => {
  const made = await tx.query(orderInsert('hot'))
  await new Promise((resolve) => setTimeout(resolve, HOT_MS))
  return { orderId: String(made.rows[0].id), at: Date.now() }
}

const scope = () => 'acme'
const app = new Hono()
app.post('/guarded', honoDoor.idempotency(once, { scope }), async (c) => {
  await c.req.json()
  return c.json(await insert(honoDoor.onceOf(once, c)), 201)
})
app.post('/first', honoDoor.idempotency(once, { scope, gate: 'first-statement' }), async (c) => {
  await c.req.json()
  return c.json(await insert(honoDoor.onceOf(once, c)), 201)
})
app.post('/bare', async (c) => {
  await c.req.json()
  return c.json(await bare(), 201)
})
app.post('/select', async (c) => {
  await c.req.json()
  return c.json(await select(), 201)
})
app.post('/hot', honoDoor.idempotency(once, { scope, whenInProgress: 'wait', waitMs: 30_000 }), async (c) =>
  c.json(await hot(honoDoor.onceOf(once, c)), 201),
)
app.post('/large', honoDoor.idempotency(once, { scope }), async () => new Response(LARGE, { status: 201 }))
const honoServer = http.createServer(getRequestListener(app.fetch)).listen(0, '127.0.0.1')

const other = fastify()
other.post('/guarded', { ...fastifyDoor.idempotency(once, { scope }) }, async (request, reply) =>
  reply.code(201).send(await insert(fastifyDoor.onceOf(once, request))),
)
other.post('/first', { ...fastifyDoor.idempotency(once, { scope, gate: 'first-statement' }) }, async (request, reply) =>
  reply.code(201).send(await insert(fastifyDoor.onceOf(once, request))),
)
other.post('/bare', async (_request, reply) => reply.code(201).send(await bare()))
await other.listen({ port: 0, host: '127.0.0.1' })

process.on('message', (message) => {
  if (message === 'memory') process.send?.({ rss: process.memoryUsage.rss() })
  if (message === 'stop') process.exit(0)
})
process.on('disconnect', () => process.exit(0))
process.send?.({
  hono: (honoServer.address() as AddressInfo).port,
  fastify: (other.server.address() as AddressInfo).port,
})
