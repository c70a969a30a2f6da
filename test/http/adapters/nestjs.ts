/** The scenario table's server on NestJS, on both platforms. Decorators are called as the functions that they are. */
import 'reflect-metadata'
import { pipeline } from 'node:stream'
import { Controller, Get, type INestApplication, Module, Post, Put, Req, Res, UseInterceptors } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import { idempotency, type NestRequest, onceOf, operationStatus } from '../../../src/frameworks/nestjs/index.ts'
import { groupedHeaders } from '../../../src/http/response.ts'
import type { Once } from '../../../src/index.ts'
import { type Adapter, optionsFor, type Route, type ScenarioStatus } from '../adapter.ts'
import { streamOf } from './node.ts'

const tenantOf = ({ headers }: NestRequest) => headers['x-tenant'] as string | undefined

/** What both platforms answer with. */
interface Answering {
  status(code: number): unknown
  header(name: string, value: string | string[]): unknown
  send(body?: unknown): unknown
  end?(): unknown
}

const adapterOn = (name: string, create: () => ExpressAdapter | FastifyAdapter): Adapter => ({
  name,
  async serve(once, routes, status = {}) {
    const module = class {}
    Module({ controllers: [controllerOf(once, routes, status)] })(module)
    const app = await NestFactory.create<INestApplication>(module, create() as never, {
      logger: false,
      rawBody: true,
      abortOnError: false,
      forceCloseConnections: true,
    })
    if ('useBodyParser' in app && create() instanceof ExpressAdapter) {
      ;(app as unknown as { useBodyParser(type: string, options: object): void }).useBodyParser('json', {
        limit: '20mb',
      })
    }
    await app.listen(0, '127.0.0.1')
    const address = app.getHttpServer().address() as { readonly port: number }
    return { port: address.port, close: () => app.close() }
  },
})

function controllerOf<Tx>(once: Once<Tx>, routes: readonly Route<Tx>[], status: ScenarioStatus) {
  const controller = class {}
  const verbs = { GET: Get, POST: Post, PUT: Put }
  const add = (name: string, verb: MethodDecorator, value: (request: NestRequest, response: Answering) => unknown) => {
    Object.defineProperty(controller.prototype, name, { value, configurable: true, writable: true })
    const descriptor = Object.getOwnPropertyDescriptor(controller.prototype, name)
    if (descriptor === undefined) throw new Error('no descriptor')
    Req()(controller.prototype, name, 0)
    Res()(controller.prototype, name, 1)
    verb(controller.prototype, name, descriptor)
    return descriptor
  }
  for (const [at, route] of routes.entries()) {
    const { method = 'POST', path } = route
    const descriptor = add(`route${at}`, verbs[method](path), async (request, response) => {
      const handed = method === 'GET' ? (undefined as never) : onceOf(once, request)
      const reply = await route.handler({ once: handed, body: async () => JSON.stringify(request.body) })
      const { status: code, headers = [], body, as } = reply
      response.status(code)
      for (const [header, value] of groupedHeaders(headers)) response.header(header, value)
      if (as === 'stream' || as === 'broken') {
        const stream = streamOf(body, as)
        if (response.end === undefined) response.send(stream)
        else pipeline(stream, response as never, () => {})
        return
      }
      if (body === undefined && response.end !== undefined) response.end()
      else response.send(typeof body === 'string' || body === undefined ? body : Buffer.from(body))
      if (as === 'twice') {
        response.status(202)
        response.header('x-second', 'yes')
        response.send('second')
      }
    })
    UseInterceptors(idempotency(once, optionsFor(route, tenantOf)))(controller.prototype, `route${at}`, descriptor)
  }
  const answer = operationStatus(once, optionsFor({ options: status }, tenantOf))
  add('status', Get('operations/:ref'), (request, response) => answer(request, response))
  Controller()(controller)
  return controller
}

export const nestAdapters: readonly Adapter[] = [
  adapterOn('nestjs on express', () => new ExpressAdapter()),
  adapterOn('nestjs on fastify', () => new FastifyAdapter({ bodyLimit: 20_000_000 })),
]
