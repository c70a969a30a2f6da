/** What the scenario table cannot say about NestJS: handlers that are marked one by one. */
import 'reflect-metadata'
import { Controller, type INestApplication, Module, Post, Req } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import { describe, expect, test } from 'vitest'
import { Idempotent, idempotencyForDecorated, type NestRequest, onceOf } from '../../src/frameworks/nestjs/index.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'

/** A decorator that puts a function of its own in the handler's place, as those for logging and caching do. */
const Wrap: MethodDecorator = (_target, _name, descriptor) => {
  const inner = descriptor.value as (...args: unknown[]) => unknown
  Object.assign(descriptor, {
    value(this: unknown, ...args: unknown[]) {
      return Reflect.apply(inner, this, args)
    },
  })
}

describe.each([
  ['express', () => new ExpressAdapter()],
  ['fastify', () => new FastifyAdapter()],
])('on %s', (_name, platform) => {
  async function serve() {
    const once = createOnce({ store: memory() })
    const runs: Record<string, number> = {}
    class Base {}
    const create = (name: string) => ({
      value(request: NestRequest) {
        runs[name] = (runs[name] ?? 0) + 1
        return { run: runs[name], guarded: isGuarded(request) }
      },
      configurable: true,
      writable: true,
    })
    const isGuarded = (request: NestRequest): boolean => {
      try {
        return onceOf(once, request) !== undefined
      } catch {
        return false
      }
    }
    class Orders extends Base {}
    const add = (owner: { prototype: object }, name: string, decorators: readonly MethodDecorator[]) => {
      const descriptor: PropertyDescriptor = create(name)
      Req()(owner.prototype, name, 0)
      // As the compiler does: the last one first, each on what the one before has left.
      for (const decorator of decorators.toReversed()) decorator(owner.prototype, name, descriptor)
      Object.defineProperty(owner.prototype, name, descriptor)
    }
    add(Orders, 'plain', [Post('plain'), Idempotent()])
    add(Orders, 'wrapped', [Post('wrapped'), Wrap, Idempotent()])
    add(Orders, 'wrapping', [Post('wrapping'), Idempotent(), Wrap])
    add(Base, 'inherited', [Post('inherited'), Idempotent()])
    add(Orders, 'unmarked', [Post('unmarked')])
    Controller('orders')(Orders)
    class App {}
    Module({ controllers: [Orders] })(App)
    const app = await NestFactory.create<INestApplication>(App, platform() as never, { logger: false, rawBody: true })
    app.useGlobalInterceptors(idempotencyForDecorated(once, { scope: () => 'acme' }) as never)
    await app.listen(0, '127.0.0.1')
    const { port } = app.getHttpServer().address() as { readonly port: number }
    const post = async (path: string) => {
      const response = await fetch(`http://127.0.0.1:${port}/orders/${path}`, {
        method: 'POST',
        headers: { 'idempotency-key': 'k-1', 'content-type': 'application/json' },
        body: '{}',
      })
      return {
        status: response.status,
        replayed: response.headers.get('idempotent-replayed'),
        body: await response.json(),
      }
    }
    return { post, close: () => app.close() }
  }

  test('a marked handler runs once, whatever decorator wraps it and wherever it was declared; others run each time', async () => {
    const { post, close } = await serve()
    try {
      for (const path of ['plain', 'wrapped', 'wrapping', 'inherited']) {
        expect([path, await post(path)]).toEqual([
          path,
          { status: 201, replayed: null, body: { run: 1, guarded: true } },
        ])
        expect([path, await post(path)]).toEqual([
          path,
          { status: 201, replayed: 'true', body: { run: 1, guarded: true } },
        ])
      }
      expect((await post('unmarked')).body).toEqual({ run: 1, guarded: false })
      expect((await post('unmarked')).body).toEqual({ run: 2, guarded: false })
    } finally {
      await close()
    }
  })
})
