/** The one line of the guide, as it is written there, is accepted by the frameworks' own types and at run time. */
import express from 'express'
import { fastify } from 'fastify'
import { expect, test } from 'vitest'
import * as onExpress from '../../src/frameworks/express/index.ts'
import * as onFastify from '../../src/frameworks/fastify/index.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'

const once = createOnce({ store: memory() })

test('T1: Fastify takes the hooks, spread or as they are, and the request of scope has its type', async () => {
  const app = fastify()
  const { idempotency, onceOf, operationStatus } = onFastify
  app.post('/spread', { ...idempotency(once, { scope: (request) => request.url }) }, async (r) => onceOf(once, r).key)
  app.post('/plain', idempotency(once, { scope: () => 'acme' }), async (r) => onceOf(once, r).tx.get('x'))
  app.get('/operations/:ref', operationStatus(once, { scope: (request) => request.url }))
  await app.ready()
  await app.close()
})

test('T1: Express takes the middleware, and the request of scope has its type', () => {
  const app = express()
  const { idempotency, onceOf, operationStatus } = onExpress
  app.post('/orders', idempotency(once, { scope: (req) => String(req.headers['x-tenant']) }), (req, res) => {
    res.json(onceOf(once, req).key)
  })
  app.get('/operations/:ref', operationStatus(once, { scope: () => 'acme' }))
  expect(app).toBeTypeOf('function')
})
