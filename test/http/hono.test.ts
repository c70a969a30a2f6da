/** What a guarded handler on Hono may do with its request after the guard has read the body. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { idempotency } from '../../src/frameworks/hono/index.ts'
import { createOnce } from '../../src/index.ts'
import type { OpenStore } from '../../src/store/conformance/harness.ts'
import { memoryHarness } from '../conformance/memory-harness.ts'
import { Hono, type HonoCtx } from './vendors.ts'

let opened: OpenStore<unknown>
beforeAll(async () => {
  opened = await memoryHarness.open()
})
afterAll(() => opened.close())

const TEXT = '{"a":"ü"}'

/** What a handler says about its request, behind the guard and a layer of the application. */
async function told(
  handler: (context: HonoCtx) => unknown,
  request: { readonly body?: string | FormData; readonly type?: string } = {},
  layer: (context: HonoCtx) => void = () => {},
): Promise<unknown> {
  const app = new Hono()
  const once = createOnce({ store: opened.store })
  app.post(
    '/orders/:id',
    idempotency(once, { scope: () => 'acme' }),
    async (context, next) => {
      layer(context)
      await next()
    },
    async (context) => context.json({ told: await handler(context) }),
  )
  const { body = TEXT, type } = request
  const headers = {
    'idempotency-key': randomUUID(),
    'x-more': 'yes',
    ...(type === undefined ? {} : { 'content-type': type }),
  }
  const answer = await app.request('http://localhost/orders/7?q=1', { method: 'POST', body, headers })
  expect(answer.status).toBe(200)
  return ((await answer.json()) as { told: unknown }).told
}

describe('the request of a guarded handler on Hono', () => {
  test.each<[string, (context: HonoCtx) => unknown, unknown]>([
    ['json', ({ req }) => req.json(), { a: 'ü' }],
    [
      'json, each time anew',
      async ({ req }) => [await req.json(), await req.text(), await req.json()],
      [{ a: 'ü' }, TEXT, { a: 'ü' }],
    ],
    ['arrayBuffer', async ({ req }) => Buffer.from(await req.arrayBuffer()).toString(), TEXT],
    ['blob', async ({ req }) => await (await req.blob()).text(), TEXT],
    ['raw.text', ({ req }) => req.raw.text(), TEXT],
    ['raw.clone, then raw', async ({ req }) => [await req.raw.clone().text(), await req.raw.text()], [TEXT, TEXT]],
    ['a request made of raw', ({ req }) => new Request(req.raw).text(), TEXT],
    ['json after blob', async ({ req }) => [(await req.blob()).size, await req.json()], [10, { a: 'ü' }]],
    [
      'header',
      ({ req }) => [req.header('x-more'), req.header()['x-more'], req.header('none') ?? null],
      ['yes', 'yes', null],
    ],
    ['header after raw', ({ req }) => [req.raw.headers.get('x-more'), req.header('x-more')], ['yes', 'yes']],
    [
      'url, method, query, param',
      ({ req }) => [req.url, req.method, req.query('q'), req.param('id')],
      ['http://localhost/orders/7?q=1', 'POST', '1', '7'],
    ],
    [
      'url and method after raw',
      ({ req }) => [req.raw.url, req.url, req.method],
      ['http://localhost/orders/7?q=1', 'http://localhost/orders/7?q=1', 'POST'],
    ],
    ['the caller that hangs up is not seen', ({ req }) => req.raw.signal.aborted, false],
  ])('%s', async (_name, handler, expected) => {
    expect(await told(handler)).toEqual(expected)
  })

  test('a form is parsed', async () => {
    const form = new FormData()
    form.set('name', 'value')
    expect(await told(({ req }) => req.parseBody(), { body: form })).toEqual({ name: 'value' })
    const type = 'application/x-www-form-urlencoded'
    expect(await told(({ req }) => req.parseBody(), { body: 'name=value', type })).toEqual({ name: 'value' })
  })

  test('a layer behind the guard may replace the request', async () => {
    const replace = ({ req }: HonoCtx) => {
      req.raw = new Request('http://localhost/other', { method: 'PUT', body: '{"b":1}', headers: { 'x-more': 'no' } })
    }
    const seen = await told(
      async ({ req }) => [await req.json(), req.header('x-more'), req.method, req.url],
      {},
      replace,
    )
    expect(seen).toEqual([{ b: 1 }, 'no', 'PUT', 'http://localhost/other'])
  })

  test('a layer behind the guard may lay in a body', async () => {
    const layIn = ({ req }: HonoCtx) => {
      req.bodyCache.text = Promise.resolve('{"c":2}')
    }
    expect(await told(({ req }) => req.json(), {}, layIn)).toEqual({ c: 2 })
  })
})

test('a handler that forgets to return its answer is an error and rolled back, not an empty 200', async () => {
  const app = new Hono()
  const once = createOnce({ store: opened.store })
  let calls = 0
  app.onError((error, context) => context.json({ error: error.message }, 500))
  app.post('/orders', idempotency(once, { scope: () => 'acme' }), async (context) => {
    calls += 1
    return calls === 1 ? undefined : context.json({ calls }, 201)
  })
  const headers = { 'idempotency-key': randomUUID() }
  const post = () => app.request('http://localhost/orders', { method: 'POST', body: '{}', headers })
  const first = await post()
  expect([first.status, await first.text()]).toEqual([500, expect.stringContaining('returned no Response')])
  expect(await (await post()).json()).toEqual({ calls: 2 })
})
