/** The database refuses, vanishes or answers late: at the claim, at the commit, and after it. */

import http from 'node:http'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type HandlerContext, idempotency, type NodeRouteOptions } from '../../src/frameworks/node/index.ts'
import { createOnce } from '../../src/index.ts'
import { madeOrExisting, postgres, uniqueViolation } from '../../src/stores/postgres/index.ts'
import { type TcpProxy, tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { eventually } from '../eventually.ts'
import { type Guard, openGuard } from '../operation/guard.ts'
import { listen } from './adapters/node.ts'
import { type Answered, send } from './client.ts'

let guard: Guard
let proxy: TcpProxy
let pool: pg.Pool
let schema: pg.Client

beforeAll(async () => {
  guard = await openGuard()
  const { hostname: host, port } = new URL(guard.url)
  proxy = await tcpProxy({ target: { host, port: Number(port) } })
  pool = new pg.Pool({ connectionString: proxy.through(guard.url), pipeline: true, max: 4 })
  pool.on('error', () => {})
  // One of them for each `once` below.
  pool.setMaxListeners(32)
  schema = new pg.Client({ connectionString: guard.url })
  await schema.connect()
  await schema.query('create table parent (id int primary key)')
  await schema.query('create table child (parent int references parent deferrable initially deferred)')
  await schema.query('create table stock (id int primary key, n int)')
  await schema.query('insert into stock values (1, 0), (2, 0)')
  await schema.query(
    'create table invoice (id int generated always as identity, merchant text, ref text, unique (merchant, ref))',
  )
})
afterAll(async () => {
  await pool.end()
  await proxy.close()
  await schema.end()
  await guard.close()
})

type Handler = (tx: pg.PoolClient, key: string) => Promise<readonly [status: number, content: unknown]>

async function serving(
  handler: Handler,
  run: (post: (key: string) => Promise<Answered>, port: number) => Promise<void>,
  options: Partial<NodeRouteOptions> = {},
): Promise<void> {
  const once = createOnce({ store: postgres(pool, { answerTimeoutMs: 2_000, acquireTimeoutMs: 1_000 }) })
  const answer = async (response: http.ServerResponse, { tx, key = '' }: HandlerContext<pg.PoolClient>) => {
    const [status, content] = await handler(tx, key)
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(content))
  }
  const listener = idempotency(
    once,
    { scope: () => 'acme', operation: 'POST /orders', onError: () => {}, ...options },
    (_request, response, context) => answer(response, context),
  )
  const served = await listen(http.createServer(listener))
  try {
    await run((key) => send(served.port, { path: '/orders', key, body: '{}' }), served.port)
  } finally {
    await served.close()
  }
}

const insert: Handler = async (tx, key) => {
  const { rows } = await tx.query('insert into orders (ref) values ($1) returning id', [key])
  return [201, rows[0]]
}

test('R09: nothing leaves before the commit: when it is refused, the caller does not see the answer, and nothing is stored', async () => {
  await serving(
    async (tx, key) => {
      await insert(tx, key)
      await tx.query('insert into child (parent) values (404)')
      return [201, { id: 'never' }]
    },
    async (post) => {
      const answer = await post('refused')
      expect(answer.status).toBe(500)
      expect(answer.text).not.toContain('never')
      expect(answer.text).not.toMatch(/child|constraint|foreign/i)
      expect(await guard.count('refused')).toBe(0)
    },
  )
  await serving(insert, async (post) => {
    const answer = await post('refused')
    expect([answer.status, answer.headers['idempotent-replayed']]).toEqual([201, undefined])
  })
})

test('R09: the answer stays in the process until the COMMIT was answered', async () => {
  const held = proxy.hold('commit')
  await serving(insert, async (post) => {
    let answered = false
    const pending = post('held').then((answer) => {
      answered = true
      return answer
    })
    await held.met
    await new Promise((resolve) => setImmediate(resolve))
    expect(answered).toBe(false)
    held.release()
    expect((await pending).status).toBe(201)
    expect(await guard.count('held')).toBe(1)
  })
  held.disarm()
})

test('SC18: the answer to COMMIT is lost: the caller gets its answer all the same, once', async () => {
  await serving(insert, async (post) => {
    const fault = proxy.swallow('commit')
    void fault.met.then(() => proxy.pass())
    const answer = await post('lost')
    expect(fault.count).toBe(1)
    expect(answer.status).toBe(201)
    expect(await guard.count('lost')).toBe(1)
    const again = await post('lost')
    expect([again.text, again.headers['idempotent-replayed']]).toEqual([answer.text, 'true'])
  })
})

test('SC18: the connection is cut before COMMIT arrives: 503, and the retry runs', async () => {
  await serving(insert, async (post) => {
    const fault = proxy.cutAt('commit')
    void fault.met.then(() => proxy.pass())
    const answer = await post('cut')
    expect(fault.count).toBe(1)
    expect([answer.status, answer.json()['code']]).toEqual([503, 'STORE_UNAVAILABLE'])
    expect(answer.headers['retry-after']).toBeDefined()
    expect(await guard.count('cut')).toBe(0)
    expect((await post('cut')).status).toBe(201)
    expect(await guard.count('cut')).toBe(1)
  })
})

test('SC18: without a store the handler does not run, and the caller is told when to come again', async () => {
  let started = 0
  await serving(
    async (tx, key) => {
      started += 1
      return await insert(tx, key)
    },
    async (post) => {
      proxy.refuse()
      proxy.cut()
      const answer = await post('down')
      expect([answer.status, answer.json()['code'], answer.json()['retryable']]).toEqual([
        503,
        'STORE_UNAVAILABLE',
        true,
      ])
      expect(answer.headers['retry-after']).toMatch(/^[1-9]\d*$/)
      expect(started).toBe(0)
      await proxy.pass()
      expect((await post('down')).status).toBe(201)
    },
  )
})

test('B107: one connection serves ten requests at once', async () => {
  const one = new pg.Pool({ connectionString: guard.url, pipeline: true, max: 1 })
  const once = createOnce({ store: postgres(one) })
  const listener = idempotency(
    once,
    { scope: () => 'acme', operation: 'POST /one' },
    async (_request, response, { tx, key }) => {
      await tx.query('insert into orders (ref) values ($1)', [`one-${key}`])
      response.writeHead(201).end()
    },
  )
  const served = await listen(http.createServer(listener))
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, at) => send(served.port, { path: '/one', key: `k${at}`, body: '{}' })),
  )
  expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => 201))
  await served.close()
  await one.end()
})

/** A statement that the database refuses with a serialization failure, after another write of the handler. */
const losing: Handler = async (tx, key) => {
  await insert(tx, key)
  await guard.admin.query('update stock set n = n + 1 where id = 1')
  await tx.query('update stock set n = n + 1 where id = 1')
  return [201, {}]
}

const swallowing =
  (status: number): Handler =>
  async (tx, key) =>
    await losing(tx, key).catch(() => [status, { detail: 'never' }] as const)

const telling: Handler = async (tx, key) => {
  await insert(tx, key)
  await guard.admin.query('update stock set n = n + 1 where id = 1')
  return await new Promise((resolve) => {
    tx.query('update stock set n = n + 1 where id = 1', [], (error: Error | null) =>
      resolve([error === null ? 201 : 500, { detail: 'never' }]),
    )
  })
}

test.each([
  ['thrown', losing],
  ['swallowed and answered with 201', swallowing(201)],
  ['swallowed and answered with 400', swallowing(400)],
  ['swallowed and answered with 500', swallowing(500)],
  ['told to a callback and answered with 500', telling],
])(
  'R13, T5: a serialization failure in the handler, %s, is 503 with Retry-After, leaves nothing, and the retry runs',
  async (way, first) => {
    const name = `lost ${way}`.replaceAll(' ', '-')
    let handler = first
    await serving(
      async (tx, key) => await handler(tx, key),
      async (post) => {
        const answer = await post(name)
        expect([answer.status, answer.json()['code'], answer.json()['retryable']]).toEqual([
          503,
          'STORE_UNAVAILABLE',
          true,
        ])
        expect(answer.headers['retry-after']).toMatch(/^[1-9]\d*$/)
        expect(answer.text).not.toContain('never')
        expect(await guard.count(name)).toBe(0)
        handler = insert
        const again = await post(name)
        expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, undefined])
        expect(await guard.count(name)).toBe(1)
      },
      { isolation: 'repeatable read' },
    )
  },
)

test('R13: without a key too, a serialization failure that the handler swallows is 503', async () => {
  await serving(
    swallowing(201),
    async (_post, port) => {
      const answer = await send(port, { path: '/orders', body: '{}' })
      expect([answer.status, answer.json()['code']]).toEqual([503, 'STORE_UNAVAILABLE'])
      expect(await guard.count('')).toBe(0)
    },
    { isolation: 'repeatable read', required: false },
  )
})

test('R13: a deadlock that the handler loses is 503 with Retry-After, and the retry runs', async () => {
  const other = new pg.Client({ connectionString: guard.url })
  await other.connect()
  let deadlocks = true
  await serving(
    async (tx, key) => {
      if (!deadlocks) return await insert(tx, key)
      deadlocks = false
      await tx.query(`set local deadlock_timeout = '10ms'`)
      await tx.query('update stock set n = n + 1 where id = 1')
      await other.query(`begin; set local deadlock_timeout = '60s'; update stock set n = n + 1 where id = 2`)
      const waiting = other.query('update stock set n = n + 1 where id = 1')
      await eventually('the other waits for us', async () => {
        const { rows } = await guard.admin.query('select 1 from pg_locks where not granted')
        return rows.length > 0
      })
      try {
        await tx.query('update stock set n = n + 1 where id = 2')
      } finally {
        await waiting
        await other.query('rollback')
      }
      return [201, {}]
    },
    async (post) => {
      const answer = await post('deadlock')
      expect([answer.status, answer.json()['code']]).toEqual([503, 'STORE_UNAVAILABLE'])
      expect(answer.headers['retry-after']).toBeDefined()
      expect((await post('deadlock')).status).toBe(201)
      expect(await guard.count('deadlock')).toBe(1)
    },
  )
  await other.end()
})

test('a serialization failure that a savepoint has undone is the own affair of the handler', async () => {
  await serving(
    async (tx) => {
      await tx.query('savepoint before')
      await losing(tx, 'saved').catch(() => tx.query('rollback to before'))
      return [404, { detail: 'own' }]
    },
    async (post) => {
      expect((await post('saved')).status).toBe(404)
      expect((await post('saved')).headers['idempotent-replayed']).toBe('true')
    },
    { isolation: 'repeatable read' },
  )
})

test('R06: a violation of a business constraint is "already done", also under another key, and other violations are errors', async () => {
  const handler: Handler = async (tx) => {
    const made = await madeOrExisting(tx, {
      constraint: 'invoice_merchant_ref_key',
      make: async () => (await tx.query(`insert into invoice (merchant, ref) values ('m', 'r') returning id`)).rows[0],
      existing: async () => (await tx.query(`select id from invoice where merchant = 'm' and ref = 'r'`)).rows[0],
    })
    return [made.kind === 'made' ? 201 : 200, made.value]
  }
  await serving(handler, async (post) => {
    const [first, second] = [await post('invoice-1'), await post('invoice-2')]
    expect([first.status, second.status]).toEqual([201, 200])
    expect(second.text).toBe(first.text)
    expect((await post('invoice-2')).headers['idempotent-replayed']).toBe('true')
    const race = await Promise.all(Array.from({ length: 4 }, (_, at) => post(`invoice-race-${at}`)))
    expect(new Set(race.map(({ text }) => text))).toEqual(new Set([first.text]))
  })
  await schema.query('begin')
  const error: unknown = await madeOrExisting(schema as never, {
    constraint: 'some_other_key',
    make: async () => await schema.query(`insert into invoice (merchant, ref) values ('m', 'r')`),
    existing: async () => undefined,
  }).catch((thrown: unknown) => thrown)
  await schema.query('rollback')
  expect(uniqueViolation(error)).toEqual({ constraint: 'invoice_merchant_ref_key' })
  expect(uniqueViolation(new Error('x', { cause: error }))).toEqual({ constraint: 'invoice_merchant_ref_key' })
  expect(uniqueViolation(new Error('other'))).toBeUndefined()
})
