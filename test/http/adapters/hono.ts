/** The scenario table's server on Hono, over node's server. */
import http from 'node:http'
import { idempotency, onceOf, operationStatus } from '../../../src/frameworks/hono/index.ts'
import { type Adapter, optionsFor } from '../adapter.ts'
import { getRequestListener, Hono, type HonoCtx } from '../vendors.ts'
import { replyResponse } from './fetch.ts'
import { listen } from './node.ts'

const tenantOf = (context: HonoCtx) => context.req.header('x-tenant')

export const honoAdapter: Adapter = {
  name: 'hono',
  lacks: (need) => (need === 'twice' ? 'a handler returns one response' : undefined),
  async serve(once, routes, status = {}) {
    const app = new Hono()
    for (const route of routes) {
      const { method = 'POST', path } = route
      app.on(method, path, idempotency(once, optionsFor(route, tenantOf)), async (context) => {
        const handed = method === 'GET' ? (undefined as never) : onceOf(once, context)
        return replyResponse(await route.handler({ once: handed, body: () => context.req.text() }))
      })
    }
    app.get('/operations/:ref', operationStatus(once, optionsFor({ options: status }, tenantOf)))
    app.onError((_error, context) => context.json({ error: 'failed' }, 500))
    return await listen(http.createServer(getRequestListener(app.fetch)))
  },
}
