/**
 * The contract of a guarded route, as one table: every case runs on every adapter, over real sockets, on memory and on
 * PostgreSQL.
 */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import { gzipSync } from 'node:zlib'
import type { Once } from '../../src/index.ts'
import { eventually } from '../eventually.ts'
import type { Adapter, Call, Reply, Route, ScenarioOptions, ScenarioStatus } from './adapter.ts'
import { type Answered, type Sent, send, sendRaw } from './client.ts'

/** A store, and the application's own writes on it. */
export interface World<Tx> {
  readonly once: Once<Tx>
  write(tx: Tx, name: string): Promise<void>
  count(name: string): Promise<number>
  /** Moves every stored instant into the past. */
  advance(ms: number): Promise<void>
  /** Of all routes. */
  readonly gate?: 'first-statement'
}

export interface Scenario {
  readonly name: string
  /** What a framework must be able to do. */
  readonly needs?: string
  run<Tx>(adapter: Adapter, world: World<Tx>): Promise<void>
}

const DAY_MS = 24 * 3_600_000
const ORDER = JSON.stringify({ amount: 4200, currency: 'EUR' })
const OTHER_ORDER = JSON.stringify({ amount: 9900, currency: 'EUR' })

/** One server, and what its handler does, counted. */
class Stage<Tx> {
  readonly name: string = randomUUID()
  readonly key: string = randomUUID()
  /** How often a handler started; with the gate at its first statement, how often it came to the second. */
  started = 0
  readonly world: World<Tx>
  port = 0

  constructor(world: World<Tx>) {
    this.world = world
  }

  /** A handler that writes once and answers. */
  handler(reply: (call: Call<Tx>) => Reply | Promise<Reply>): Route<Tx>['handler'] {
    return async (call) => {
      const { gate } = this.world
      if (gate === undefined) this.started += 1
      await this.world.write(call.once.tx, this.name)
      if (gate !== undefined) this.started += 1
      return await reply(call)
    }
  }

  post(sent: Partial<Sent> = {}): Promise<Answered> {
    return send(this.port, { path: '/orders', key: this.key, body: ORDER, ...sent })
  }

  written(): Promise<number> {
    return this.world.count(this.name)
  }
}

interface Set<Tx> {
  readonly reply?: (call: Call<Tx>) => Reply | Promise<Reply>
  readonly options?: ScenarioOptions
  readonly routes?: (stage: Stage<Tx>) => readonly Route<Tx>[]
  readonly status?: ScenarioStatus
}

async function staged<Tx>(
  adapter: Adapter,
  world: World<Tx>,
  { reply = () => created(), options = {}, routes, status }: Set<Tx>,
  run: (stage: Stage<Tx>) => Promise<void>,
): Promise<void> {
  const stage = new Stage(world)
  const given = routes?.(stage) ?? [{ path: '/orders', options, handler: stage.handler(reply) }]
  const { gate } = world
  const served = await adapter.serve(
    world.once,
    gate === undefined ? given : given.map((route) => ({ ...route, options: { ...route.options, gate } })),
    status,
  )
  stage.port = served.port
  try {
    await run(stage)
  } finally {
    await served.close()
  }
}

const json = (status: number, content: unknown, headers: Reply['headers'] = []): Reply => ({
  status,
  headers: [['content-type', 'application/json'], ...headers],
  body: JSON.stringify(content),
})

let orders = 0
const created = (): Reply => {
  orders += 1
  return json(201, { id: orders }, [['location', `/orders/${orders}`]])
}

function assertReplay(first: Answered, again: Answered): void {
  assert.equal(first.headers['idempotent-replayed'], undefined)
  assert.equal(again.headers['idempotent-replayed'], 'true')
  assert.equal(again.status, first.status)
  assert.deepEqual(again.body, first.body)
  for (const name of ['content-type', 'location', 'etag', 'content-disposition', 'content-encoding', 'link']) {
    assert.equal(again.headers[name], first.headers[name], name)
  }
}

interface ProblemFacts {
  readonly retryable: boolean
  readonly safeNewKey: boolean
  readonly state: string
}

function assertProblem(answer: Answered, status: number, code: string, facts?: ProblemFacts): void {
  assert.equal(answer.status, status, answer.text)
  assert.match(String(answer.headers['content-type']), /^application\/problem\+json/)
  assert.equal(answer.headers['cache-control'], 'no-store')
  assert.match(String(answer.headers['link']), /rel="describedby"/)
  const body = answer.json()
  assert.equal(body['code'], code)
  assert.equal(body['status'], status)
  for (const member of ['type', 'title', 'detail', 'operation_state'])
    assert.equal(typeof body[member], 'string', member)
  if (facts === undefined) return
  assert.equal(body['retryable'], facts.retryable)
  assert.equal(body['safe_new_key'], facts.safeNewKey)
  assert.equal(body['operation_state'], facts.state)
}

/** A gate that a handler waits at, so that a test knows that it has started. */
class Latch {
  reached: Promise<void>
  open: () => void = () => {}
  readonly #opened: Promise<void>
  #reach: () => void = () => {}

  constructor() {
    this.reached = new Promise((resolve) => {
      this.#reach = resolve
    })
    this.#opened = new Promise((resolve) => {
      this.open = resolve
    })
  }

  async wait(): Promise<void> {
    this.#reach()
    await this.#opened
  }
}

const bytes = Uint8Array.from({ length: 256 }, (_, index) => index)

/** Answers whose replay must be the same, byte for byte. */
const ANSWERS: readonly (readonly [string, Reply])[] = [
  [
    'JSON',
    json(201, { id: 7, text: 'żółć \u0000' }, [
      ['etag', '"v1"'],
      ['location', '/orders/7'],
    ]),
  ],
  ['204', { status: 204 }],
  ['an empty body', { status: 200 }],
  ['the text 0', { status: 200, headers: [['content-type', 'text/plain']], body: '0' }],
  ['the JSON false', json(200, false)],
  ['the JSON null', json(200, null)],
  ['a redirect', { status: 303, headers: [['location', '/orders/7?a=1,2']] }],
  ['binary', { status: 200, headers: [['content-type', 'application/octet-stream']], body: bytes }],
  [
    'a file name with a comma',
    {
      status: 200,
      headers: [
        ['content-type', 'text/csv'],
        ['content-disposition', 'attachment; filename="a,b.csv"'],
      ],
      body: 'a,b',
    },
  ],
  [
    'a body that the handler compressed',
    {
      status: 200,
      headers: [
        ['content-type', 'text/plain'],
        ['content-encoding', 'gzip'],
      ],
      body: gzipSync('hello '.repeat(99)),
    },
  ],
  ['chunks', { status: 200, headers: [['content-type', 'application/octet-stream']], body: bytes, as: 'stream' }],
]

const RELEASED = [401, 403, 407, 408, 425, 429, 500, 502, 503] as const
const FINAL = [400, 402, 404, 409, 410, 412, 422] as const

export const scenarios: readonly Scenario[] = [
  ...ANSWERS.map(
    ([what, reply]): Scenario => ({
      name: `I3, SC13, B05: ${what}: the first answer and its replay are the same, and the handler runs once`,
      run: (adapter, world) =>
        staged(adapter, world, { reply: () => reply }, async (stage) => {
          const first = await stage.post()
          assert.equal(first.status, reply.status, first.text)
          if (reply.body !== undefined) assert.deepEqual(first.body, Buffer.from(reply.body))
          assertReplay(first, await stage.post())
          assertReplay(first, await stage.post())
          assert.equal(stage.started, 1)
          assert.equal(await stage.written(), 1)
        }),
    }),
  ),
  {
    name: 'I3: a compressed answer is replayed to whoever cannot read it as what it says',
    run: (adapter, world) => {
      const text = 'hello '.repeat(99)
      const headers = [
        ['content-type', 'text/plain'],
        ['content-encoding', 'gzip'],
      ] as const
      const reply = (): Reply => ({ status: 200, headers, body: gzipSync(text) })
      return staged(adapter, world, { reply }, async (stage) => {
        const first = await stage.post({ headers: { 'accept-encoding': 'gzip, br' } })
        assertReplay(first, await stage.post({ headers: { 'accept-encoding': 'br;q=1, *;q=0.5' } }))
        for (const accepted of ['identity', 'br', 'gzip;q=0, *', '']) {
          const again = await stage.post({ headers: { 'accept-encoding': accepted } })
          assert.equal(again.headers['idempotent-replayed'], 'true')
          assert.equal(again.headers['content-encoding'], undefined)
          assert.equal(again.headers['content-type'], first.headers['content-type'])
          assert.equal(again.text, text)
        }
        assert.equal(stage.started, 1)
      })
    },
  },
  {
    name: 'SC15, T2: cookies and headers of one moment are sent once and not replayed; kept ones are',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          options: { keepHeaders: ['x-total'] },
          reply: () =>
            json(201, {}, [
              ['set-cookie', 'a=1'],
              ['set-cookie', 'b=2'],
              ['x-total', '12'],
              ['x-other', 'no'],
              ['vary', 'accept'],
            ]),
        },
        async (stage) => {
          const first = await stage.post()
          assert.deepEqual(first.headers['set-cookie'], ['a=1', 'b=2'])
          assert.equal(first.headers['x-other'], 'no')
          const again = await stage.post()
          assertReplay(first, again)
          assert.equal(again.headers['set-cookie'], undefined)
          assert.equal(again.headers['x-other'], undefined)
          assert.equal(again.headers['vary'], undefined)
          assert.equal(again.headers['x-total'], '12')
          assert.equal(again.headers['cache-control'], 'no-store')
        },
      ),
  },
  {
    name: 'R02: a safe method passes untouched, with or without a key',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          routes: (stage) => [
            {
              method: 'GET',
              path: '/orders',
              handler: async () => {
                stage.started += 1
                return json(200, { started: stage.started })
              },
            },
          ],
        },
        async (stage) => {
          for (const key of [stage.key, stage.key, 'a, b']) {
            const answer = await send(stage.port, { method: 'GET', path: '/orders', key })
            assert.equal(answer.status, 200, answer.text)
          }
          assert.equal(stage.started, 3)
        },
      ),
  },
  {
    name: 'B08, R05: without a key a guarded route refuses, and nothing runs',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const answer = await send(stage.port, { path: '/orders', body: ORDER })
        const facts = { retryable: false, safeNewKey: true, state: 'not-started' }
        assertProblem(answer, 400, 'IDEMPOTENCY_KEY_MISSING', facts)
        assert.equal(stage.started, 0)
      }),
  },
  {
    name: 'B08: where the key may be left out, requests without one run each for itself, in a transaction',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          options: { required: false },
          reply: ({ once }) => (once.key === undefined ? created() : json(200, {})),
        },
        async (stage) => {
          const [a, b] = [
            await send(stage.port, { path: '/orders', body: ORDER }),
            await send(stage.port, { path: '/orders', body: ORDER }),
          ]
          assert.equal(a.status, 201, a.text)
          assert.notEqual(a.text, b.text)
          assert.equal(b.headers['idempotent-replayed'], undefined)
          assert.equal(await stage.written(), 2)
          assertReplay(await stage.post(), await stage.post())
          assert.equal(stage.started, 3)
        },
      ),
  },
  {
    name: 'without a key too, a refusal rolls the writes back',
    run: (adapter, world) =>
      staged(adapter, world, { options: { required: false }, reply: () => json(422, {}) }, async (stage) => {
        assert.equal((await send(stage.port, { path: '/orders', body: ORDER })).status, 422)
        assert.equal(await stage.written(), 0)
      }),
  },
  {
    name: 'SC16, B18: empty, too long, joined, repeated and non-ASCII keys get a fixed answer, also where a key is optional',
    run: (adapter, world) =>
      staged(adapter, world, { options: { required: false } }, async (stage) => {
        const refused = ['', ' ', 'a b', 'a, b', '"a', '"a", "b"', 'k'.repeat(256), 'k'.repeat(3_000), 'kl\u00e9']
        for (const key of [...refused, ['a', 'b'], ['a', 'a']]) {
          const answer = await stage.post({ key })
          const facts = { retryable: false, safeNewKey: true, state: 'not-started' }
          assertProblem(answer, 400, 'IDEMPOTENCY_KEY_INVALID', facts)
          assert.match(String(answer.json()['reason']), /^(malformed|multiple|too-long)$/)
        }
        assert.equal(stage.started, 0)
      }),
  },
  {
    name: 'SC16: a quoted key and the bare one are the same key',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        assertReplay(await stage.post(), await stage.post({ key: `"${stage.key}"` }))
        assert.equal(stage.started, 1)
      }),
  },
  {
    name: 'SC11, B10, R04: the same JSON in another spelling is the same request',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const first = await stage.post()
        assertReplay(first, await stage.post({ body: '{ "currency": "\\u0045UR", "amount": 4.2e3 }' }))
        assert.equal(stage.started, 1)
      }),
  },
  {
    name: 'R03, I4, SC10: the key with another body, query or path parameter is refused, and the first answer stays',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        { routes: (stage) => [{ path: '/orders/:id', handler: stage.handler(() => created()) }] },
        async (stage) => {
          const first = await stage.post({ path: '/orders/1' })
          assert.equal(first.status, 201, first.text)
          const facts = { retryable: false, safeNewKey: false, state: 'not-started' }
          for (const other of [
            { path: '/orders/1', body: OTHER_ORDER },
            { path: '/orders/1?dry=1' },
            { path: '/orders/2' },
          ]) {
            assertProblem(await stage.post(other), 422, 'IDEMPOTENCY_KEY_REUSED', facts)
          }
          assertReplay(first, await stage.post({ path: '/orders/1' }))
          assert.equal(stage.started, 1)
        },
      ),
  },
  {
    name: 'a mismatch is 409 where the route says so',
    run: (adapter, world) =>
      staged(adapter, world, { options: { mismatchStatus: 409 } }, async (stage) => {
        await stage.post()
        assertProblem(await stage.post({ body: OTHER_ORDER }), 409, 'IDEMPOTENCY_KEY_REUSED')
      }),
  },
  {
    name: 'R02, SC12: the key on another route is another operation; with one key space per tenant it is a mismatch',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          routes: (stage) => [
            { path: '/orders', handler: stage.handler(() => created()) },
            { path: '/refunds', handler: stage.handler(() => created()) },
            { path: '/a', options: { uniqueWithin: 'tenant' }, handler: stage.handler(() => created()) },
            { path: '/b', options: { uniqueWithin: 'tenant' }, handler: stage.handler(() => created()) },
          ],
        },
        async (stage) => {
          const [order, refund] = [await stage.post(), await stage.post({ path: '/refunds' })]
          assert.notEqual(order.text, refund.text)
          assert.equal((await stage.post({ path: '/a' })).status, 201)
          assertProblem(await stage.post({ path: '/b' }), 422, 'IDEMPOTENCY_KEY_REUSED')
          assert.equal(stage.started, 3)
        },
      ),
  },
  {
    name: 'T1, B12: two tenants with the same key and body see nothing of each other',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const acme = await stage.post({ tenant: 'acme' })
        const initech = await stage.post({ tenant: 'initech' })
        assert.equal(initech.status, 201)
        assert.notEqual(initech.text, acme.text)
        assert.equal(initech.headers['idempotent-replayed'], undefined)
        assertReplay(acme, await stage.post({ tenant: 'acme' }))
        assertReplay(initech, await stage.post({ tenant: 'initech' }))
        assert.equal((await stage.post({ tenant: 'third', body: OTHER_ORDER })).status, 201)
      }),
  },
  {
    name: 'T1, B12: a request without a tenant is refused and runs nothing',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const answer = await stage.post({ tenant: null })
        assert.equal(answer.status, 500)
        assert.ok(!answer.text.includes('scope gave'), 'nothing of the inside is told')
        assert.equal(stage.started, 0)
      }),
  },
  {
    name: 'SC2, R10, B13: while the first is worked on, a repeat gets 409 with Retry-After and another payload 422',
    run: (adapter, world) => {
      const latch = new Latch()
      return staged(adapter, world, { reply: async () => (await latch.wait(), created()) }, async (stage) => {
        const first = stage.post()
        await latch.reached
        const busy = await stage.post()
        const facts = { retryable: true, safeNewKey: false, state: 'in-progress' }
        assertProblem(busy, 409, 'OPERATION_IN_PROGRESS', facts)
        assert.match(String(busy.headers['retry-after']), /^[1-9]\d*$/)
        assertProblem(await stage.post({ body: OTHER_ORDER }), 422, 'IDEMPOTENCY_KEY_REUSED')
        latch.open()
        assertReplay(await first, await stage.post())
        assert.equal(stage.started, 1)
      })
    },
  },
  {
    name: 'R10: where the route waits, repeats wait for the first and get its answer',
    run: (adapter, world) => {
      const latch = new Latch()
      return staged(
        adapter,
        world,
        { options: { whenInProgress: 'wait' }, reply: async () => (await latch.wait(), created()) },
        async (stage) => {
          const first = stage.post()
          await latch.reached
          const waiting = [stage.post(), stage.post(), stage.post()]
          assertProblem(await stage.post({ body: OTHER_ORDER }), 422, 'IDEMPOTENCY_KEY_REUSED')
          latch.open()
          for (const again of waiting) assertReplay(await first, await again)
          assert.equal(stage.started, 1)
        },
      )
    },
  },
  {
    name: 'R10: a wait has an end: 409',
    run: (adapter, world) => {
      const latch = new Latch()
      return staged(
        adapter,
        world,
        { options: { whenInProgress: 'wait', waitMs: 20 }, reply: async () => (await latch.wait(), created()) },
        async (stage) => {
          const first = stage.post()
          await latch.reached
          assertProblem(await stage.post(), 409, 'OPERATION_IN_PROGRESS')
          latch.open()
          assert.equal((await first).status, 201)
        },
      )
    },
  },
  {
    name: 'R10: where the route accepts, a repeat gets 202 and a status resource that follows the operation',
    run: (adapter, world) => {
      const latch = new Latch()
      return staged(
        adapter,
        world,
        {
          options: { whenInProgress: 'accept', statusPath: '/operations' },
          reply: async () => (await latch.wait(), created()),
        },
        async (stage) => {
          const first = stage.post()
          await latch.reached
          const accepted = await stage.post()
          assert.equal(accepted.status, 202, accepted.text)
          const { location = '' } = accepted.headers
          assert.match(location, /^\/operations\/op_[\w-]{22}$/)
          assert.ok(!location.includes(stage.key))
          const ask = (path: string, tenant = 'acme') => send(stage.port, { method: 'GET', path, tenant })
          const running = await ask(location)
          assert.equal(running.status, 200, running.text)
          assert.deepEqual(running.json(), { operation_ref: location.slice(12), state: 'in-progress' })
          latch.open()
          const answer = await first
          const done = (await ask(location)).json()
          assert.equal(done['state'], 'completed')
          const result = done['result'] as Record<string, unknown>
          assert.equal(result['status'], 201)
          assert.deepEqual(result['body'], answer.json())
          const foreign = await ask(location, 'initech')
          assert.equal(foreign.status, 404, 'another tenant learns nothing')
          assert.equal(foreign.json()['state'], 'not-found')
          const unknown = await ask('/operations/op_AAAAAAAAAAAAAAAAAAAAAA')
          assert.deepEqual([unknown.status, unknown.json()['state']], [404, 'not-found'])
          assert.equal((await ask('/operations/nonsense')).status, 404)
        },
      )
    },
  },
  ...FINAL.map(
    (status): Scenario => ({
      name: `R13, SC14: ${status} is final: stored and replayed, its writes rolled back`,
      run: (adapter, world) =>
        staged(adapter, world, { reply: () => json(status, { because: randomUUID() }) }, async (stage) => {
          const first = await stage.post()
          assert.equal(first.status, status)
          assertReplay(first, await stage.post())
          assert.equal(stage.started, 1)
          assert.equal(await stage.written(), 0)
        }),
    }),
  ),
  ...RELEASED.map(
    (status): Scenario => ({
      name: `R13, T5, B06: ${status} releases the key: nothing is stored or written, and a retry runs`,
      run: (adapter, world) => {
        let calls = 0
        return staged(
          adapter,
          world,
          {
            reply: () => {
              calls += 1
              return calls === 1 ? json(status, { call: calls }, [['retry-after', '7']]) : created()
            },
          },
          async (stage) => {
            const first = await stage.post()
            assert.equal(first.status, status)
            assert.equal(first.headers['retry-after'], '7')
            assert.equal(await stage.written(), 0)
            const second = await stage.post()
            assert.equal(second.status, 201)
            assert.equal(second.headers['idempotent-replayed'], undefined)
            assertReplay(second, await stage.post())
            assert.equal(await stage.written(), 1)
          },
        )
      },
    }),
  ),
  {
    name: 'R13: a route can keep the writes of a refusal, and can leave a refusal unstored',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          routes: (stage) => [
            {
              path: '/kept',
              options: { commitOn: (status) => status === 402 },
              handler: stage.handler(() => json(402, { id: randomUUID() })),
            },
            {
              path: '/unstored',
              options: { storeIf: (status) => status !== 409 },
              handler: stage.handler(() => json(409, { id: randomUUID() })),
            },
          ],
        },
        async (stage) => {
          const kept = await stage.post({ path: '/kept' })
          assertReplay(kept, await stage.post({ path: '/kept' }))
          assert.equal(await stage.written(), 1)
          const [a, b] = [await stage.post({ path: '/unstored' }), await stage.post({ path: '/unstored' })]
          assert.notEqual(a.text, b.text)
          assert.equal(await stage.written(), 1)
        },
      ),
  },
  {
    name: 'SC14: a mismatch, a bad key and a busy repeat never touch the stored answer',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const first = await stage.post()
        await stage.post({ body: OTHER_ORDER })
        await stage.post({ key: 'a b' })
        await Promise.all([stage.post(), stage.post({ body: OTHER_ORDER }), stage.post()])
        assertReplay(first, await stage.post())
        assert.equal(stage.started, 1)
      }),
  },
  {
    name: 'B01, T16: a handler that throws leaves nothing, tells nothing, and a retry runs',
    run: (adapter, world) => {
      let calls = 0
      return staged(
        adapter,
        world,
        {
          reply: () => {
            calls += 1
            if (calls === 1) throw new Error('select password from users')
            return created()
          },
        },
        async (stage) => {
          const first = await stage.post()
          assert.equal(first.status, 500)
          assert.equal(await stage.written(), 0)
          assert.equal((await stage.post()).status, 201)
          assert.equal(await stage.written(), 1)
        },
      )
    },
  },
  {
    name: 'B01, B03: an answer that breaks off in the middle is rolled back and tells nothing, and a retry runs',
    run: (adapter, world) => {
      let calls = 0
      return staged(
        adapter,
        world,
        {
          // Koa leaves such an answer open.
          options: adapter.name === 'koa' ? { timeoutMs: 500 } : {},
          reply: () => {
            calls += 1
            return calls === 1 ? { ...created(), as: 'broken' } : created()
          },
        },
        async (stage) => {
          const first = await stage.post()
          assert.equal(first.status >= 500, true, first.text)
          assert.doesNotMatch(first.text, /source/)
          assert.equal(await stage.written(), 0)
          assert.equal((await stage.post()).status, 201)
          assert.equal(await stage.written(), 1)
        },
      )
    },
  },
  {
    name: 'T6: a handler that never answers is cut off: 503, rolled back, and the key is free again',
    run: (adapter, world) => {
      let calls = 0
      return staged(
        adapter,
        world,
        {
          options: { timeoutMs: 200 },
          reply: () => {
            calls += 1
            return calls === 1 ? new Promise<Reply>(() => {}) : created()
          },
        },
        async (stage) => {
          const first = await stage.post()
          assertProblem(first, 503, 'TOO_BUSY', { retryable: true, safeNewKey: false, state: 'unknown' })
          assert.ok(first.headers['retry-after'])
          assert.equal(await stage.written(), 0)
          // The server learns a moment later that the session which holds the key is over.
          await eventually('the key is free', async () => (await stage.post()).status === 201)
          assert.equal(await stage.written(), 1)
        },
      )
    },
  },
  {
    name: 'B01: an answer that comes after the bound is dropped',
    run: (adapter, world) => {
      const latch = new Latch()
      let late = false
      return staged(
        adapter,
        world,
        {
          options: { timeoutMs: 100 },
          reply: async () => {
            await latch.wait()
            late = true
            return created()
          },
        },
        async (stage) => {
          const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
          assertProblem(await stage.post({ agent }), 503, 'TOO_BUSY')
          latch.open()
          await eventually('the handler has answered', () => late)
          const second = await stage.post({ agent })
          assert.equal(second.status, 201, second.text)
          agent.destroy()
          assert.equal(await stage.written(), 1)
        },
      )
    },
  },
  {
    name: 'a second answer of the handler is dropped: the first one is sent, stored and replayed',
    needs: 'twice',
    run: (adapter, world) =>
      staged(adapter, world, { reply: () => ({ ...json(201, { n: 1 }), as: 'twice' }) }, async (stage) => {
        const first = await stage.post()
        assert.equal(first.status, 201)
        assert.deepEqual(first.json(), { n: 1 })
        assert.equal(first.headers['x-second'], undefined)
        assertReplay(first, await stage.post())
      }),
  },
  {
    name: 'a handler that answers without reading the body is as good as any, and its connection stays usable',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
        const first = await stage.post({ agent, body: JSON.stringify({ long: 'x'.repeat(300_000) }) })
        assert.equal(first.status, 201)
        assertReplay(first, await stage.post({ agent, body: JSON.stringify({ long: 'x'.repeat(300_000) }) }))
        agent.destroy()
      }),
  },
  {
    name: 'a handler reads the body as if nobody had read it before',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        { reply: async ({ body }) => json(201, { sent: JSON.parse(await body()) }) },
        async (stage) => {
          const body = JSON.stringify({ text: 'ż'.repeat(50_000) })
          const first = await stage.post({ body })
          assert.deepEqual(first.json()['sent'], JSON.parse(body))
          assertReplay(first, await stage.post({ body }))
        },
      ),
  },
  {
    name: 'B03, T6: an answer above the limit is refused and undone; where it may pass, a repeat learns that it is not kept',
    run: (adapter, world) => {
      const reply = () => ({
        status: 200,
        headers: [['content-type', 'text/plain'] as const, ['location', '/orders/9'] as const],
        body: 'x'.repeat(5_000),
        as: 'stream' as const,
      })
      return staged(
        adapter,
        world,
        {
          routes: (stage) => [
            { path: '/refused', options: { responseBytesMax: 1_000 }, handler: stage.handler(reply) },
            {
              path: '/passed',
              options: { responseBytesMax: 1_000, unstorable: 'pass' },
              handler: stage.handler(reply),
            },
          ],
        },
        async (stage) => {
          const refused = await stage.post({ path: '/refused' })
          assertProblem(refused, 500, 'RESPONSE_NOT_STORABLE')
          assert.equal(await stage.written(), 0)
          const passed = await stage.post({ path: '/passed' })
          assert.equal(passed.status, 200)
          assert.equal(passed.body.byteLength, 5_000)
          assert.equal(await stage.written(), 1)
          const again = await stage.post({ path: '/passed' })
          const facts = { retryable: false, safeNewKey: false, state: 'completed' }
          assertProblem(again, 409, 'RESULT_UNAVAILABLE', facts)
          assert.equal(again.json()['resource'], '/orders/9')
          assert.equal(stage.started, 2)
        },
      )
    },
  },
  {
    name: 'B03: an event stream is refused unless the route lets it pass',
    run: (adapter, world) => {
      const reply = (): Reply => ({
        status: 200,
        headers: [['content-type', 'text/event-stream']],
        body: 'data: 1\n\ndata: 2\n\n',
        as: 'stream',
      })
      return staged(
        adapter,
        world,
        {
          routes: (stage) => [
            { path: '/refused', handler: stage.handler(reply) },
            { path: '/passed', options: { unstorable: 'pass' }, handler: stage.handler(reply) },
          ],
        },
        async (stage) => {
          assertProblem(await stage.post({ path: '/refused' }), 500, 'RESPONSE_NOT_STORABLE')
          assert.equal(await stage.written(), 0)
          assert.equal((await stage.post({ path: '/passed' })).text, 'data: 1\n\ndata: 2\n\n')
          assertProblem(await stage.post({ path: '/passed' }), 409, 'RESULT_UNAVAILABLE')
          assert.equal(await stage.written(), 1)
        },
      )
    },
  },
  {
    name: 'T6: a request body above the limit is refused before anything runs',
    run: (adapter, world) =>
      staged(adapter, world, { options: { bodyBytesMax: 1_000 } }, async (stage) => {
        const answer = await stage.post({ body: JSON.stringify({ long: 'x'.repeat(2_000) }) })
        assert.equal(answer.status, 413, answer.text)
        assert.equal(stage.started, 0)
        assert.equal((await stage.post()).status, 201)
      }),
  },
  {
    name: 'R41: after its time an answer is gone, the key stays taken, and the resource is named or told anew',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          routes: (stage) => [
            { path: '/orders', options: { responseRetentionMs: 60_000 }, handler: stage.handler(() => created()) },
            {
              path: '/rebuilt',
              options: {
                responseRetentionMs: 60_000,
                reconstruct: async ({ status, reference }) => ({
                  status,
                  headers: [['content-type', 'text/plain']],
                  body: Buffer.from(`see ${reference}`),
                }),
              },
              handler: stage.handler(() => created()),
            },
          ],
        },
        async (stage) => {
          const first = await stage.post()
          const rebuilt = await stage.post({ path: '/rebuilt' })
          await world.advance(60_001)
          const again = await stage.post()
          assertProblem(again, 409, 'RESULT_UNAVAILABLE')
          assert.equal(again.json()['resource'], first.headers.location)
          const told = await stage.post({ path: '/rebuilt' })
          assert.deepEqual([told.status, told.text], [201, `see ${rebuilt.headers.location}`])
          assert.equal(told.headers['idempotent-replayed'], 'true')
          assertProblem(await stage.post({ body: OTHER_ORDER }), 422, 'IDEMPOTENCY_KEY_REUSED')
          assert.equal(stage.started, 2)
        },
      ),
  },
  {
    name: 'R41: a route can keep no answer at all, only that it was given and where',
    run: (adapter, world) =>
      staged(adapter, world, { options: { keepResponse: false } }, async (stage) => {
        const first = await stage.post()
        const again = await stage.post()
        assertProblem(again, 409, 'RESULT_UNAVAILABLE')
        assert.equal(again.json()['resource'], first.headers.location)
      }),
  },
  {
    name: 'SC20: after the retention the key works again',
    run: (adapter, world) =>
      staged(adapter, world, { options: { retentionMs: 60_000 } }, async (stage) => {
        await stage.post()
        await world.advance(60_001)
        const again = await stage.post()
        assert.equal(again.headers['idempotent-replayed'], undefined)
        assert.equal(again.status, 201)
        assert.equal(await stage.written(), 2)
      }),
  },
  {
    name: 'a time-ordered key from before the retention is refused where the route checks that',
    run: (adapter, world) =>
      staged(adapter, world, { options: { timeOrderedKeys: 'check', retentionMs: 30 * DAY_MS } }, async (stage) => {
        const v7 = (ms: number) => {
          const hex = ms.toString(16).padStart(12, '0')
          return `${hex.slice(0, 8)}-${hex.slice(8)}-7${randomUUID().slice(15, 18)}-8${randomUUID().slice(20)}`
        }
        const now = Date.now()
        assertProblem(await stage.post({ key: v7(now - 400 * DAY_MS) }), 412, 'KEY_EXPIRED')
        assertProblem(await stage.post({ key: '01ARZ3NDEKTSV4RRFFQ69G5FAV' }), 412, 'KEY_EXPIRED')
        assert.equal(stage.started, 0)
        assert.equal((await stage.post({ key: v7(now) })).status, 201)
        assert.equal((await stage.post({ key: randomUUID() })).status, 201)
      }),
  },
  {
    name: 'T3: rights that were withdrawn end the replay before anything stored is told',
    run: (adapter, world) => {
      let decision: boolean | 'receipt' = true
      const asked: unknown[] = []
      return staged(
        adapter,
        world,
        {
          options: {
            authorizeReplay: ({ tenant }, meta) => {
              asked.push([tenant, meta.status, meta.state, meta.scope[0]])
              return decision
            },
          },
        },
        async (stage) => {
          const first = await stage.post()
          assert.deepEqual(asked, [])
          assertReplay(first, await stage.post())
          assert.deepEqual(asked, [['acme', 201, 'succeeded', 'acme']])
          decision = false
          const forbidden = await stage.post()
          assert.equal(forbidden.status, 403)
          assert.ok(!forbidden.text.includes(first.text))
          decision = 'receipt'
          assertProblem(await stage.post(), 409, 'RESULT_UNAVAILABLE')
          decision = true
          assertReplay(first, await stage.post())
          assert.equal(stage.started, 1)
        },
      )
    },
  },
  {
    name: 'SC23, T2: an encrypted answer opens after its key was rotated, and no more once the key is gone',
    run: async (adapter, world) => {
      const stage = new Stage(world)
      const [old, fresh] = [new Uint8Array(32).fill(1), new Uint8Array(32).fill(2)]
      const handler = stage.handler(() => json(201, { card: '4242' }))
      const on = async (encryption: ScenarioOptions['encryption'], key = stage.key): Promise<Answered> => {
        const served = await adapter.serve(world.once, [{ path: '/orders', options: { encryption }, handler }])
        stage.port = served.port
        try {
          return await stage.post({ key })
        } finally {
          await served.close()
        }
      }
      const first = await on({ current: 'old', keys: { old } })
      assertReplay(first, await on({ current: 'fresh', keys: { old, fresh } }))
      assertProblem(await on({ current: 'fresh', keys: { fresh } }), 409, 'RESULT_UNAVAILABLE')
      assertProblem(await on({ current: 'old', keys: { old: fresh } }), 409, 'RESULT_UNAVAILABLE')
      assertProblem(await on(undefined), 409, 'RESULT_UNAVAILABLE')
      const plain = randomUUID()
      assertReplay(await on(undefined, plain), await on({ current: 'old', keys: { old } }, plain))
      assert.equal(stage.started, 2)
    },
  },
  {
    name: 'R04: what a route leaves out of the fingerprint may differ between attempts',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        {
          options: {
            fingerprint: (_request, body) => {
              const { amount } = body.json() as { amount: number }
              return { fields: { amount } }
            },
          },
        },
        async (stage) => {
          const first = await stage.post({ body: '{"amount":1,"sentAt":"10:00"}' })
          assertReplay(first, await stage.post({ body: '{"amount":1,"sentAt":"10:05"}' }))
          assertProblem(await stage.post({ body: '{"amount":2,"sentAt":"10:00"}' }), 422, 'IDEMPOTENCY_KEY_REUSED')
        },
      ),
  },
  {
    name: 'a caller that hangs up before its request is complete starts nothing',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const socket = sendRaw(stage.port, { path: '/orders', key: stage.key, body: ORDER }, { bodyBytes: 5 })
        await new Promise((resolve) => socket.write('', resolve))
        socket.destroy()
        const answer = await stage.post()
        assert.equal(answer.status, 201)
        assert.equal(answer.headers['idempotent-replayed'], undefined)
        assert.equal(stage.started, 1)
      }),
  },
  {
    name: 'SC19, T5: a caller that hangs up before the handler has read the body changes nothing: all of it is there',
    run: (adapter, world) => {
      const latch = new Latch()
      const read = async ({ body }: Call<unknown>) => (await latch.wait(), json(201, { read: (await body()).length }))
      return staged(adapter, world, { reply: read }, async (stage) => {
        const socket = sendRaw(stage.port, { path: '/orders', key: stage.key, body: ORDER })
        await latch.reached
        socket.destroy()
        // A whole exchange with the server later it knows.
        await send(stage.port, { method: 'GET', path: '/nothing' })
        latch.open()
        await eventually('the writes are committed', async () => (await stage.written()) === 1)
        const again = await stage.post()
        assert.equal(again.headers['idempotent-replayed'], 'true')
        assert.equal(again.status, 201)
        assert.ok(Number(again.json()['read']) > 2)
        assert.equal(stage.started, 1)
      })
    },
  },
  {
    name: 'T6: a hook that never answers ends a replay with 503, and the answer stays',
    run: (adapter, world) => {
      let hangs = true
      const authorizeReplay = () => (hangs ? new Promise<boolean>(() => {}) : true)
      return staged(adapter, world, { options: { authorizeReplay, timeoutMs: 300 } }, async (stage) => {
        const first = await stage.post()
        assertProblem(await stage.post(), 503, 'TOO_BUSY')
        hangs = false
        assertReplay(first, await stage.post())
      })
    },
  },
  ...(['whole', 'stream'] as const).map(
    (as): Scenario => ({
      name: `SC19: a caller that hangs up while the handler works changes nothing: its answer (${as}) is stored and replayed`,
      run: (adapter, world) => {
        const latch = new Latch()
        return staged(
          adapter,
          world,
          { reply: async () => (await latch.wait(), { ...created(), as }) },
          async (stage) => {
            const socket = sendRaw(stage.port, { path: '/orders', key: stage.key, body: ORDER })
            await latch.reached
            socket.destroy()
            await new Promise((resolve) => setImmediate(resolve))
            latch.open()
            await eventually('the writes are committed', async () => (await stage.written()) === 1)
            const again = await stage.post()
            assert.equal(again.headers['idempotent-replayed'], 'true')
            assert.equal(again.status, 201)
            assert.equal(stage.started, 1)
          },
        )
      },
    }),
  ),
  {
    name: 'one connection serves a refusal, an error, a first answer and its replay in turn',
    run: (adapter, world) => {
      let calls = 0
      return staged(
        adapter,
        world,
        {
          reply: () => {
            calls += 1
            if (calls === 1) throw new Error('first call fails')
            return created()
          },
        },
        async (stage) => {
          const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
          assertProblem(await stage.post({ agent, key: 'a b' }), 400, 'IDEMPOTENCY_KEY_INVALID')
          assert.equal((await stage.post({ agent })).status, 500)
          const first = await stage.post({ agent })
          assert.equal(first.status, 201)
          assertReplay(first, await stage.post({ agent }))
          assertProblem(await stage.post({ agent, body: OTHER_ORDER }), 422, 'IDEMPOTENCY_KEY_REUSED')
          assertReplay(first, await stage.post({ agent }))
          agent.destroy()
        },
      )
    },
  },
  {
    name: 'I1, R10: of 32 identical requests at once one is carried out; the others are replays or 409, never 500',
    run: (adapter, world) =>
      staged(adapter, world, {}, async (stage) => {
        const answers = await Promise.all(Array.from({ length: 32 }, () => stage.post()))
        const fresh = answers.filter(
          ({ status, headers }) => status === 201 && headers['idempotent-replayed'] === undefined,
        )
        assert.equal(fresh.length, 1)
        for (const answer of answers) assert.ok([201, 409].includes(answer.status), answer.text)
        assert.equal(stage.started, 1)
        assert.equal(await stage.written(), 1)
      }),
  },
]
