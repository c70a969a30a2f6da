/** The scenario table's server on Koa, which has no router of its own. */
import http from 'node:http'
import { idempotency, onceOf, operationStatus } from '../../../src/frameworks/koa/index.ts'
import { type Adapter, optionsFor } from '../adapter.ts'
import { Koa, type KoaCtx } from '../vendors.ts'
import { listen, streamOf, textOf } from './node.ts'

const tenantOf = ({ req }: KoaCtx) => req.headers['x-tenant'] as string | undefined

export const koaAdapter: Adapter = {
  name: 'koa',
  lacks: (need) => (need === 'twice' ? 'an answer is a property that may be set again' : undefined),
  async serve(once, routes, status = {}) {
    const app = new Koa()
    app.silent = true
    const statusMiddleware = operationStatus(once, optionsFor({ options: status }, tenantOf))
    const mounted = routes.map((route) => {
      const { method = 'POST', path } = route
      const pattern = new RegExp(`^${path.replace(/:\w+/g, '[^/?]+')}$`)
      const operation = route.options?.operation ?? `${method} ${path}`
      return { route, method, pattern, guard: idempotency(once, { ...optionsFor(route, tenantOf), operation }) }
    })
    app.use(async (context, next) => {
      if (context.method === 'GET' && context.path.startsWith('/operations/'))
        return await statusMiddleware(context, next)
      const found = mounted.find((one) => one.method === context.method && one.pattern.test(context.path))
      if (found === undefined) return undefined
      return await found.guard(context, async () => {
        const handed = found.method === 'GET' ? (undefined as never) : onceOf(once, context)
        const reply = await found.route.handler({ once: handed, body: () => textOf(context.req) })
        const { status: code, headers = [], body, as } = reply
        context.status = code
        for (const [name, value] of headers) context.append(name, value)
        if (as === 'stream' || as === 'broken') context.body = streamOf(body, as)
        else if (body !== undefined) context.body = typeof body === 'string' ? body : Buffer.from(body)
        else if (code === 200) context.body = ''
      })
    })
    return await listen(http.createServer(app.callback()))
  },
}
