/** The scenario table's server on Express, in both of its living versions. */
import http from 'node:http'
import { pipeline } from 'node:stream'
import express, { type NextFunction, type Request, type Response } from 'express'
import { type ExpressRequest, idempotency, onceOf, operationStatus } from '../../../src/frameworks/express/index.ts'
import { type Adapter, optionsFor } from '../adapter.ts'
import { express4 } from '../vendors.ts'
import { listen, streamOf, textOf } from './node.ts'

const tenantOf = ({ headers }: ExpressRequest) => headers['x-tenant'] as string | undefined

const adapterOn = (name: string, create: typeof express, parsedFirst: boolean): Adapter => ({
  name,
  async serve(once, routes, status = {}) {
    const app = create()
    const parser = create.json({ limit: '20mb' })
    if (parsedFirst) app.use(parser)
    for (const route of routes) {
      const { method = 'POST', path } = route
      const handler = (request: Request, response: Response, next: NextFunction) => {
        const body = async () => (parsedFirst ? JSON.stringify(request.body) : await textOf(request))
        const context = method === 'GET' ? (undefined as never) : onceOf(once, request)
        route.handler({ once: context, body }).then(({ status: code, headers = [], body: content, as }) => {
          response.status(code)
          for (const [header, value] of headers) {
            if (header === 'set-cookie') response.append(header, value)
            else response.set(header, value)
          }
          if (as === 'stream') {
            streamOf(content, as).pipe(response)
            return
          }
          if (as === 'broken') {
            pipeline(streamOf(content, as), response, () => {})
            return
          }
          if (content === undefined) response.end()
          else response.send(typeof content === 'string' ? content : Buffer.from(content))
          if (as === 'twice') response.status(202).set('x-second', 'yes').json({ second: true })
        }, next)
      }
      const verb = method.toLowerCase() as 'get' | 'post' | 'put'
      app[verb](path, idempotency(once, optionsFor(route, tenantOf)), handler)
    }
    app.get('/operations/:ref', operationStatus(once, optionsFor({ options: status }, tenantOf)))
    // Express prints errors that reach its own handler.
    app.set('env', 'test')
    return await listen(http.createServer(app))
  },
})

export const expressAdapters: readonly Adapter[] = [
  adapterOn('express 5', express, false),
  adapterOn('express 5 behind a body parser', express, true),
  adapterOn('express 4', express4, false),
]
