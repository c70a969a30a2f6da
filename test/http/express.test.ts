/** What only Express does: files, pipes, error handlers, layers inside and outside of the guard, routers. */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import express, { type NextFunction, type Request, type Response, Router } from 'express'
import { afterAll, describe, expect, test } from 'vitest'
import { idempotency } from '../../src/frameworks/express/index.ts'
import type { RouteOptions } from '../../src/http/options.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { eventually } from '../eventually.ts'
import { listen } from './adapters/node.ts'
import { type Answered, type Sent, send, sendRaw } from './client.ts'
import { express4 } from './vendors.ts'

const folder = mkdtempSync(join(tmpdir(), 'express-'))
const file = join(folder, 'order.csv')
writeFileSync(file, 'id,amount\n7,4200\n')
afterAll(() => rmSync(folder, { recursive: true }))

type App = ReturnType<typeof express>
type Post = (sent?: Partial<Sent>) => Promise<Answered>

describe.each([
  ['express 5', express],
  ['express 4', express4],
])('%s', (_, create) => {
  const once = createOnce({ store: memory() })
  const errors: unknown[] = []
  const guarded = (options: Partial<RouteOptions<Request>> = {}) =>
    idempotency(once, { scope: () => 'acme', onError: (error) => errors.push(error), ...options })

  async function serving(build: (app: App) => void, run: (post: Post) => Promise<void>): Promise<void> {
    const app = create()
    app.set('env', 'test')
    build(app)
    const served = await listen(http.createServer(app))
    const key = randomUUID()
    try {
      await run((sent = {}) => send(served.port, { path: '/orders', key, body: '{}', ...sent }))
    } finally {
      await served.close()
    }
  }

  async function replays(build: (app: App) => void): Promise<Answered> {
    let first: Answered | undefined
    await serving(build, async (post) => {
      first = await post()
      const again = await post()
      expect(again.headers['idempotent-replayed']).toBe('true')
      expect([again.status, again.text]).toEqual([first.status, first.text])
      expect(again.headers['content-type']).toBe(first.headers['content-type'])
    })
    if (first === undefined) throw new Error('not run')
    return first
  }

  test('B01: a file that is sent is replayed', async () => {
    const answer = await replays((app) => app.post('/orders', guarded(), (_req, res) => res.sendFile(file)))
    expect(answer.text).toBe('id,amount\n7,4200\n')
    expect(answer.headers['content-type']).toMatch(/^text\/csv/)
  })

  test('B01: a download, a redirect, sendStatus, json and a bare end are replayed', async () => {
    const ways: readonly ((res: Response) => unknown)[] = [
      (res) => res.download(file),
      (res) => res.redirect(303, '/orders/7'),
      (res) => res.sendStatus(202),
      (res) => res.json({ a: 1 }),
      (res) => res.status(204).end(),
      (res) => res.writeHead(201, 'Made', { 'Content-Type': 'text/plain' }).end('made'),
      (res) => res.writeHead(201, ['Content-Type', 'text/plain']).end('flat list'),
    ]
    for (const [at, way] of ways.entries()) {
      await replays((app) => app.post('/orders', guarded({ operation: `way ${at}` }), (_req, res) => void way(res)))
    }
  })

  test('B06: next(error) reaches the error handler; its 409 is stored, its 503 releases the key', async () => {
    let calls = 0
    const fail = (status: number) => (app: App) => {
      app.post('/orders', guarded(), (_req, _res, next) => {
        calls += 1
        next(Object.assign(new Error('no'), { status }))
      })
      app.use((error: { status: number }, _req: Request, res: Response, _next: NextFunction) => {
        res.status(error.status).json({ error: 'mine', calls })
      })
    }
    expect((await replays(fail(409))).json()).toEqual({ error: 'mine', calls: 1 })
    await serving(fail(503), async (post) => {
      expect((await post()).json()).toEqual({ error: 'mine', calls: 2 })
      expect((await post()).json()).toEqual({ error: 'mine', calls: 3 })
    })
  })

  test('a scope that throws is answered by the error handler of the application', async () => {
    await serving(
      (app) => {
        const scope = () => {
          throw Object.assign(new Error('who?'), { status: 401 })
        }
        app.post('/orders', guarded({ scope }), (_req, res) => res.json({}))
        app.use((error: { status: number }, _req: Request, res: Response, _next: NextFunction) => {
          res.status(error.status).json({ error: 'mine' })
        })
      },
      async (post) => expect([(await post()).status, (await post()).json()]).toEqual([401, { error: 'mine' }]),
    )
  })

  test('T1, T16: a scope that gives no text is told to the operator, and the caller gets a problem', async () => {
    for (const tenant of [42, true, {}, Symbol('acme'), new Set(['acme']), [7], 'a\nb']) {
      errors.length = 0
      await serving(
        (app) => app.post('/orders', guarded({ scope: () => tenant as string }), (_req, res) => res.sendStatus(201)),
        async (post) => {
          const answer = await post()
          expect([answer.status, answer.headers['content-type']]).toEqual([500, 'application/problem+json'])
          expect(answer.text).not.toMatch(/scope|tenant/)
          expect(String(errors[0])).toMatch(/scope/)
        },
      )
    }
  })

  test('a status that cannot be sent is refused before the commit, and one in text is the number', async () => {
    for (const status of [99, 199, 1000, Number.NaN, 'abc', undefined]) {
      await serving(
        (app) =>
          app.post('/orders', guarded(), (_req, res) => {
            res.statusCode = status as number
            res.end('never')
          }),
        async (post) => {
          for (const answer of [await post(), await post()]) {
            expect([answer.status, answer.headers['idempotent-replayed']]).toEqual([500, undefined])
            expect(answer.text).not.toContain('never')
          }
        },
      )
    }
    const answer = await replays((app) =>
      app.post('/orders', guarded(), (_req, res) => {
        res.statusCode = '404' as unknown as number
        res.end('gone')
      }),
    )
    expect(answer.status).toBe(404)
  })

  test.each<[string, (res: Response) => void]>([
    ['written', (res) => res.writeHead(201)],
    ['flushed', (res) => res.status(201).flushHeaders()],
    ['begun', (res) => void res.status(201).write('{}')],
  ])(
    'a status that is set after the head was %s changes nothing: neither what is sent nor what is stored',
    async (_how, head) => {
      const answer = await replays((app) =>
        app.post('/orders', guarded(), (_req, res) => {
          head(res)
          res.statusCode = 500
          res.end()
        }),
      )
      expect(answer.status).toBe(201)
    },
  )

  test('I4: a fingerprint that is no { fields } is refused: it would make every body the same', async () => {
    for (const given of [Promise.resolve({ fields: 1 }), 'x', null, {}, { fields: undefined }]) {
      errors.length = 0
      await serving(
        (app) =>
          app.post('/orders', guarded({ fingerprint: () => given as { fields: unknown } }), (_, res) => res.end()),
        async (post) => {
          expect((await post()).status).toBe(500)
          expect(String(errors[0])).toMatch(/fingerprint/)
        },
      )
    }
  })

  test('a route that is guarded twice is told to the operator, and nothing of it is stored', async () => {
    errors.length = 0
    await serving(
      (app) => app.post('/orders', guarded(), guarded(), (_req, res) => res.sendStatus(201)),
      async (post) => {
        for (const answer of [await post(), await post()]) {
          expect([answer.status, answer.json()['code']]).toEqual([500, 'NESTED_OPERATION'])
          expect(answer.headers['idempotent-replayed']).toBeUndefined()
        }
        expect(errors).toHaveLength(2)
      },
    )
  })

  test('an onError that throws does not change the answer', async () => {
    const onError = () => {
      throw new Error('told to nobody')
    }
    const storeIf = () => {
      throw new Error('of the hook')
    }
    await serving(
      (app) => app.post('/orders', guarded({ onError, storeIf }), (_req, res) => res.sendStatus(400)),
      async (post) => {
        const answer = await post()
        expect([answer.status, answer.headers['content-type']]).toEqual([500, 'application/problem+json'])
      },
    )
  })

  test('headers of outer layers come with every answer: first, replay and problem', async () => {
    await serving(
      (app) => {
        app.use((_req, res, next) => {
          res.set('access-control-allow-origin', '*').set('x-request-id', 'r')
          next()
        })
        app.post('/orders', guarded({ timeoutMs: 100 }), (req, res) => {
          if (req.query['slow'] === undefined) res.json({})
        })
      },
      async (post) => {
        for (const answer of [
          await post(),
          await post(),
          await post({ key: 'a b' }),
          await post({ path: '/orders?slow=1', key: 'z' }),
        ]) {
          expect(answer.headers['access-control-allow-origin'], answer.text).toBe('*')
          expect(answer.headers['x-request-id']).toBe('r')
        }
      },
    )
  })

  test('a layer outside that changes the body on its way out works on the first answer and on the replay', async () => {
    await serving(
      (app) => {
        app.use((_req, res, next) => {
          const end = Reflect.get(Object.getPrototypeOf(res) as object, 'end') as () => unknown
          res.end = ((chunk?: Uint8Array) => {
            if (!res.headersSent) res.setHeader('x-outer', 'seen')
            return Reflect.apply(end, res, [chunk === undefined ? 'none' : Buffer.from(chunk).toString().toUpperCase()])
          }) as Response['end']
          next()
        })
        app.post('/orders', guarded(), (_req, res) => void res.send('quiet'))
      },
      async (post) => {
        for (const replayed of [undefined, 'true']) {
          const answer = await post()
          expect([answer.headers['idempotent-replayed'], answer.headers['x-outer']]).toEqual([replayed, 'seen'])
        }
      },
    )
  })

  test('a layer inside that waits for the head of the answer is heard, once', async () => {
    let heads = 0
    const answer = await replays((app) => {
      const inner = (_req: Request, res: Response, next: NextFunction) => {
        const writeHead = Reflect.get(res, 'writeHead') as () => unknown
        res.writeHead = ((...args: unknown[]) => {
          heads += 1
          res.setHeader('etag', '"inner"')
          return Reflect.apply(writeHead, res, args) as Response
        }) as Response['writeHead']
        next()
      }
      app.post('/orders', guarded(), inner, (_req, res) => void res.json({ a: 1 }))
    })
    expect(answer.headers['etag']).toBe('"inner"')
    expect(heads).toBeGreaterThan(0)
  })

  test('the handler may use once of the request as the method of emitters that it is, too', async () => {
    await replays((app) =>
      app.post('/orders', guarded(), (req, res) => {
        const { once: both } = req as unknown as { once: Request['once'] & { key: string } }
        req.once('end', () => res.json({ key: typeof both.key }))
        req.resume()
      }),
    )
  })

  test('T1: in a mounted router and behind app.use the operation has to be named', async () => {
    await serving(
      (app) => {
        const router = Router()
        router.post('/orders', guarded(), (_req, res) => res.json({}))
        app.use('/:tenant', router as never)
      },
      async (post) => {
        errors.length = 0
        const answer = await post({ path: '/acme/orders' })
        expect(answer.status).toBe(500)
        expect(answer.text).not.toContain('template')
        expect(String(errors[0])).toContain('give the option operation')
      },
    )
  })

  test('SC19, T5: a caller that hangs up before a parser behind the guard has read is not taken for one without a body', async () => {
    let reached = () => {}
    let goOn = () => {}
    const started = new Promise<void>((resolve) => {
      reached = resolve
    })
    const gate = new Promise<void>((resolve) => {
      goOn = resolve
    })
    const app = create()
    app.set('env', 'test')
    app.post(
      '/orders',
      guarded(),
      async (_req, _res, next) => {
        reached()
        await gate
        next()
      },
      create.json(),
      (req, res) => {
        res.status(req.body?.id === 7 ? 201 : 400).json({})
      },
    )
    const served = await listen(http.createServer(app))
    const sent = { path: '/orders', key: randomUUID(), body: '{"id":7}' }
    try {
      const socket = sendRaw(served.port, sent)
      await started
      socket.destroy()
      await send(served.port, { method: 'GET', path: '/nothing' })
      goOn()
      let again: Answered | undefined
      await eventually('the answer is stored', async () => {
        again = await send(served.port, sent)
        return again.status !== 409
      })
      expect([again?.status, again?.headers['idempotent-replayed']]).toEqual([201, 'true'])
    } finally {
      await served.close()
    }
  })

  test('B03: a parser in front that has lost digits of a number is found out', async () => {
    await serving(
      (app) => {
        app.use(create.json())
        app.post('/orders', guarded(), (_req, res) => res.json({}))
      },
      async (post) => {
        errors.length = 0
        expect((await post({ body: '{"id":9007199254740993}' })).status).toBe(500)
        expect(String(errors[0])).toContain('rawBody')
        expect((await post({ body: '{"id":1}' })).status).toBe(200)
      },
    )
  })
})
