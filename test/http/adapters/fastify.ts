/** The scenario table's server on Fastify. */
import { fastify } from 'fastify'
import { type FastifyRequest, idempotency, onceOf, operationStatus } from '../../../src/frameworks/fastify/index.ts'
import { type Adapter, optionsFor } from '../adapter.ts'
import { streamOf } from './node.ts'

const tenantOf = ({ raw }: FastifyRequest) => raw.headers['x-tenant'] as string | undefined

export const fastifyAdapter: Adapter = {
  name: 'fastify',
  async serve(once, routes, status = {}) {
    const app = fastify({ forceCloseConnections: true, bodyLimit: 20_000_000 })
    for (const route of routes) {
      const { method = 'POST', path: url } = route
      app.route({
        method,
        url,
        ...idempotency(once, optionsFor(route, tenantOf)),
        handler: async (request, reply) => {
          const handed = method === 'GET' ? (undefined as never) : onceOf(once, request)
          const answer = await route.handler({ once: handed, body: async () => JSON.stringify(request.body) })
          const { status: code, headers = [], body, as } = answer
          reply.code(code)
          for (const [name, value] of headers) reply.header(name, value)
          if (as === 'stream' || as === 'broken') return reply.send(streamOf(body, as))
          void reply.send(typeof body === 'string' || body === undefined ? body : Buffer.from(body))
          if (as === 'twice') void reply.code(202).header('x-second', 'yes').send({ second: true })
          return reply
        },
      })
    }
    app.get('/operations/:ref', operationStatus(once, optionsFor({ options: status }, tenantOf)))
    await app.listen({ port: 0, host: '127.0.0.1' })
    const address = app.server.address()
    if (address === null || typeof address === 'string') throw new Error('no port')
    return { port: address.port, close: () => app.close() }
  },
}
