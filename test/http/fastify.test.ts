/** What only Fastify does: hooks that work on every answer. */
import { randomUUID } from 'node:crypto'
import type { AddressInfo } from 'node:net'
import { fastify } from 'fastify'
import { expect, test } from 'vitest'
import { idempotency } from '../../src/frameworks/fastify/index.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { send } from './client.ts'

test('I3: what onSend hooks make of an answer is stored, and they do not work on it a second time', async () => {
  const once = createOnce({ store: memory() })
  const app = fastify({ forceCloseConnections: true })
  const told: number[] = []
  app.addHook('onRequest', async (_request, reply) => {
    reply.header('access-control-allow-origin', '*')
  })
  app.addHook('onSend', async (_request, _reply, payload) => JSON.stringify({ wrapped: String(payload) }))
  app.addHook('onResponse', async (_request, reply) => {
    told.push(reply.statusCode)
  })
  const guarded = { ...idempotency(once, { scope: () => 'acme' }) }
  app.post('/orders', guarded, async (_request, reply) => reply.code(201).send({ id: 7 }))
  app.post('/bare', guarded, async (_request, reply) => {
    reply.hijack()
    reply.raw.writeHead(201).end('bare')
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  const key = randomUUID()
  const post = (body: string, path = '/orders') => send(port, { path, key, body })
  try {
    const first = await post('{}')
    const again = await post('{}')
    expect(again.headers['idempotent-replayed']).toBe('true')
    expect([again.status, again.text]).toEqual([201, '{"wrapped":"{\\"id\\":7}"}'])
    expect(again.text).toBe(first.text)
    for (const name of ['content-type', 'access-control-allow-origin']) {
      expect(again.headers[name]).toBe(first.headers[name])
    }
    // A problem is an answer of its own.
    const refused = await post('{"other":1}')
    expect([refused.status, Object.keys(refused.json())]).toEqual([422, ['wrapped']])
    const bare = [await post('{}', '/bare'), await post('{}', '/bare')]
    expect(bare.map(({ text, headers }) => [text, headers['content-type']])).toEqual(
      Array.from({ length: 2 }, () => ['bare', undefined]),
    )
  } finally {
    await app.close()
  }
  expect(told).toEqual([201, 201, 422, 201, 201])
})
