/**
 * Routes of mode `run`, as one table: every case runs on every adapter, over real sockets, on memory and on PostgreSQL.
 * What does not depend on the mode stands in ./scenarios.cases.ts.
 */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import { found, notApplied, stillUnknown } from '../../src/index.ts'
import { eventually } from '../eventually.ts'
import type { Adapter, Call, Reply, ScenarioOptions } from './adapter.ts'
import { type Answered, type Sent, send } from './client.ts'
import type { World } from './scenarios.cases.ts'

export interface RunScenario {
  readonly name: string
  run<Tx>(adapter: Adapter, world: World<Tx>): Promise<void>
}

const ORDER = JSON.stringify({ amount: 4200 })
const CREATED: Reply = { status: 201, headers: [['content-type', 'application/json']], body: '{"id":1}' }

/** An error of a client for an answer of its provider. */
const answered = (status: number) => Object.assign(new Error(`status ${status}`), { status })

/** One route of mode `run`, and what a provider further on has seen of it. */
class RunStage<Tx> {
  readonly name: string = randomUUID()
  readonly key: string = randomUUID()
  started = 0
  /** Keys that the provider was called with. */
  readonly calls: string[] = []
  readonly world: World<Tx>
  port = 0

  constructor(world: World<Tx>) {
    this.world = world
  }

  /** An effect whose calls are counted; `answer` throws what a client would throw. */
  charge(call: Call<Tx>, answer: (attempt: number) => { readonly id: number } = () => ({ id: 1 })): Promise<unknown> {
    return call.once.op.effect('charge', {
      request: { amount: 4200 },
      delivery: 'keyed',
      patienceMs: 0,
      call: (_request, { idempotencyKey }) => {
        this.calls.push(idempotencyKey)
        return answer(this.calls.length)
      },
    })
  }

  book(call: Call<Tx>): Promise<void> {
    return call.once.op.transaction('book', ({ tx }) => this.world.write(tx, this.name))
  }

  post(sent: Partial<Sent> = {}): Promise<Answered> {
    return send(this.port, { path: '/orders', key: this.key, body: ORDER, ...sent })
  }

  written(): Promise<number> {
    return this.world.count(this.name)
  }
}

async function staged<Tx>(
  adapter: Adapter,
  world: World<Tx>,
  handler: (call: Call<Tx>, stage: RunStage<Tx>) => Promise<Reply>,
  run: (stage: RunStage<Tx>) => Promise<void>,
  options: ScenarioOptions = {},
): Promise<void> {
  const stage = new RunStage(world)
  const route = {
    path: '/orders',
    options: { mode: 'run' as const, ...options },
    handler: (call: Call<Tx>) => {
      stage.started += 1
      return handler(call, stage)
    },
  }
  const served = await adapter.serve(world.once, [route])
  stage.port = served.port
  try {
    await run(stage)
  } finally {
    await served.close()
  }
}

/** A request whose answer nobody waits for. */
function hangUp(port: number, key: string): http.ClientRequest {
  const request = http.request({
    port,
    method: 'POST',
    path: '/orders',
    headers: { 'idempotency-key': key, 'content-type': 'application/json', 'x-tenant': 'acme' },
  })
  request.on('error', () => {})
  request.end(ORDER)
  return request
}

export const runScenarios: readonly RunScenario[] = [
  {
    name: 'R09, R15, I3: effect, step and answer happen once, and a repeat gets the stored answer',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          await stage.book(call)
          return CREATED
        },
        async (stage) => {
          const first = await stage.post()
          const again = await stage.post()
          assert.equal(first.status, 201)
          assert.equal(again.status, 201)
          assert.equal(again.text, first.text)
          assert.equal(again.headers['idempotent-replayed'], 'true')
          assert.deepEqual([stage.started, stage.calls.length, await stage.written()], [1, 1, 1])
        },
      ),
  },
  {
    name: 'contract row 15: a 5xx leaves the operation open with Retry-After, and the repeat goes on behind the last finished step',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          if (stage.started === 1) return { status: 502, body: 'down' }
          await stage.book(call)
          return CREATED
        },
        async (stage) => {
          const first = await stage.post()
          assert.equal(first.status, 502)
          assert.equal(first.text, 'down')
          assert.equal(first.headers['retry-after'], '1')
          const again = await stage.post()
          assert.equal(again.status, 201)
          assert.equal(again.headers['idempotent-replayed'], undefined)
          assert.deepEqual([stage.started, stage.calls.length, await stage.written()], [2, 1, 1])
          assert.equal((await stage.post()).headers['idempotent-replayed'], 'true')
        },
      ),
  },
  {
    name: 'contract row 15, R16: a lost answer of the provider is asked for again with the same key',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await stage
            .charge(call, (attempt) => {
              if (attempt === 1) throw answered(500)
              return { id: 1 }
            })
            .catch(() => {})
          return CREATED
        },
        async (stage) => {
          // The handler swallows the failure and answers 201; that is no outcome.
          assert.ok((await stage.post()).status >= 500)
          assert.equal((await stage.post()).status, 201)
          assert.equal(stage.calls.length, 2)
          assert.equal(new Set(stage.calls).size, 1)
        },
      ),
  },
  {
    name: 'contract row 16, I11: an unknown effect is told as OUTCOME_UNKNOWN without Retry-After until it is resolved',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await call.once.op
            .effect('send', {
              request: null,
              delivery: 'at-most-once',
              reconcile: () => stillUnknown(),
              call: (_request, { idempotencyKey }) => {
                stage.calls.push(idempotencyKey)
                throw answered(500)
              },
            })
            .catch(() => {})
          return CREATED
        },
        async (stage) => {
          for (let attempt = 0; attempt < 2; attempt++) {
            const answer = await stage.post()
            assert.equal(answer.status, 409)
            assert.equal(answer.headers['retry-after'], undefined)
            const problem = answer.json()
            assert.equal(problem['code'], 'OUTCOME_UNKNOWN')
            assert.equal(problem['retryable'], false)
            assert.equal(problem['safe_new_key'], false)
            const status = await send(stage.port, {
              method: 'GET',
              path: `/operations/${String(problem['operation_ref'])}`,
            })
            assert.equal(status.json()['state'], 'unknown')
          }
          assert.equal(stage.calls.length, 1)
          const proof = { actor: 'a person', reason: 'it is in the book' }
          const resolved = await world.once.resolve({ providerKey: stage.calls[0] ?? '' }, found({ id: 7 }), proof)
          assert.equal(resolved, 'resolved')
          assert.equal((await stage.post()).status, 201)
          assert.equal(stage.calls.length, 1)
        },
      ),
  },
  {
    name: 'contract row 8, R10: while the owner works a repeat gets 409 with Retry-After, and another payload 422',
    run: (adapter, world) => {
      let release = () => {}
      const held = new Promise<void>((resolve) => {
        release = resolve
      })
      return staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          await held
          return CREATED
        },
        async (stage) => {
          const first = stage.post()
          await eventually('the provider is called', () => stage.calls.length === 1)
          const repeat = await stage.post()
          assert.equal(repeat.status, 409)
          assert.ok(Number(repeat.headers['retry-after']) >= 1)
          assert.equal((await stage.post({ body: '{"amount":1}' })).status, 422)
          release()
          assert.equal((await first).status, 201)
        },
      )
    },
  },
  {
    name: 'contract row 24: with accept a repeat gets 202, and the status resource tells the result in the end',
    run: (adapter, world) => {
      let release = () => {}
      const held = new Promise<void>((resolve) => {
        release = resolve
      })
      return staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          await held
          return CREATED
        },
        async (stage) => {
          const first = stage.post()
          await eventually('the provider is called', () => stage.calls.length === 1)
          const repeat = await stage.post()
          assert.equal(repeat.status, 202)
          const path = repeat.headers.location ?? ''
          const running = await send(stage.port, { method: 'GET', path })
          assert.equal(running.json()['state'], 'in-progress')
          release()
          assert.equal((await first).status, 201)
          const done = await send(stage.port, { method: 'GET', path })
          assert.equal(done.json()['state'], 'completed')
        },
        { whenInProgress: 'accept', statusPath: '/operations' },
      )
    },
  },
  {
    name: 'contract row 12, R13: a final refusal is stored, also the one that a provider gave',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          const refused = await stage
            .charge(call, () => {
              throw answered(402)
            })
            .then(() => undefined)
            .catch((error: Error) => error)
          return refused?.name === 'EffectRefused' ? { status: 402, body: 'declined' } : CREATED
        },
        async (stage) => {
          assert.equal((await stage.post()).status, 402)
          const again = await stage.post()
          assert.equal(again.status, 402)
          assert.equal(again.text, 'declined')
          assert.equal(again.headers['idempotent-replayed'], 'true')
          assert.equal(stage.calls.length, 1)
        },
      ),
  },
  {
    name: 'contract row 19: an operation that is proven not applied says so, and that a new key is safe',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call, () => {
            throw answered(503)
          })
          return CREATED
        },
        async (stage) => {
          assert.ok((await stage.post()).status >= 500)
          const [open] = await world.once
            .unfinished({ states: ['processing'], limit: 1_000 })
            .then((jobs) => jobs.slice(-1))
          const act = { actor: 'a person', reason: 'the order was cancelled at the provider' }
          assert.equal(await world.once.resolve({ id: open?.id ?? '' }, notApplied(), act), 'resolved')
          const answer = await stage.post()
          assert.equal(answer.status, 409)
          assert.equal(answer.json()['code'], 'NOT_APPLIED')
          assert.equal(answer.json()['safe_new_key'], true)
        },
      ),
  },
  {
    name: 'contract rows 3 and 4: without a key, or with one that is none, nothing starts',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async () => CREATED,
        async (stage) => {
          const missing = await send(stage.port, { path: '/orders', body: ORDER })
          assert.deepEqual([missing.status, missing.json()['code']], [400, 'IDEMPOTENCY_KEY_MISSING'])
          const bad = await stage.post({ key: 'x'.repeat(256) })
          assert.deepEqual([bad.status, bad.json()['code']], [400, 'IDEMPOTENCY_KEY_INVALID'])
          assert.equal(stage.started, 0)
        },
      ),
  },
  {
    name: 'contract row 16, B17: the first answer to an unknown effect is the own 5xx of the handler, a later one tells what is known',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          const sent = await call.once.op
            .effect('send', {
              request: null,
              delivery: 'at-most-once',
              reconcile: () => stillUnknown(),
              call: (_request, { idempotencyKey }) => {
                stage.calls.push(idempotencyKey)
                throw answered(500)
              },
            })
            .then(() => true)
            .catch(() => false)
          return sent ? CREATED : { status: 502, body: 'no answer' }
        },
        async (stage) => {
          const first = await stage.post()
          assert.deepEqual([first.status, first.text, first.headers['retry-after']], [502, 'no answer', undefined])
          for (let tries = 0; tries < 2; tries++) {
            const later = await stage.post()
            assert.deepEqual([later.status, later.headers['retry-after']], [409, undefined])
            assert.equal(later.json()['code'], 'OUTCOME_UNKNOWN')
          }
          assert.equal(stage.calls.length, 1)
        },
      ),
  },
  {
    name: 'contract row 13: a refusal that says nothing about the operation is not stored, and the repeat runs',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          if (stage.started === 1) return { status: 429, headers: [['retry-after', '7']], body: 'slow down' }
          await stage.charge(call)
          return CREATED
        },
        async (stage) => {
          const first = await stage.post()
          assert.deepEqual([first.status, first.headers['retry-after'], first.text], [429, '7', 'slow down'])
          const again = await stage.post()
          assert.equal(again.status, 201)
          assert.equal(again.headers['idempotent-replayed'], undefined)
          assert.deepEqual([stage.started, stage.calls.length], [2, 1])
        },
      ),
  },
  {
    name: 'contract row 18: after its time the answer is gone, and the key stays taken',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          return CREATED
        },
        async (stage) => {
          assert.equal((await stage.post()).status, 201)
          await world.advance(60_001)
          const gone = await stage.post()
          assert.equal(gone.status, 409)
          assert.equal(gone.json()['code'], 'RESULT_UNAVAILABLE')
          assert.equal(gone.json()['operation_state'], 'completed')
          assert.equal(stage.started, 1)
        },
        { responseRetentionMs: 60_000 },
      ),
  },
  {
    name: 'contract row 23: a caller that hangs up changes nothing: the work is done, and the repeat gets its answer',
    run: (adapter, world) => {
      let release = () => {}
      const held = new Promise<void>((resolve) => {
        release = resolve
      })
      return staged(
        adapter,
        world,
        async (call, stage) => {
          await stage.charge(call)
          await held
          await stage.book(call)
          return CREATED
        },
        async (stage) => {
          const caller = hangUp(stage.port, stage.key)
          await eventually('the provider is called', () => stage.calls.length === 1)
          caller.destroy()
          release()
          await eventually('the answer is stored', async () => (await stage.post()).status === 201)
          assert.equal((await stage.post()).headers['idempotent-replayed'], 'true')
          assert.deepEqual([stage.started, stage.calls.length, await stage.written()], [1, 1, 1])
        },
      )
    },
  },
  {
    name: 'R15: there is no transaction beside the steps, and no op in an atomic route',
    run: (adapter, world) =>
      staged(
        adapter,
        world,
        async (call) => {
          assert.throws(() => call.once.tx, TypeError)
          assert.throws(() => call.once.outbox, TypeError)
          return { status: 200, body: 'ok' }
        },
        async (stage) => {
          assert.equal((await stage.post()).text, 'ok')
        },
      ),
  },
]
