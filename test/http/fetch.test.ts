/** What hosts of fetch handlers do: requests with members of their own, responses of another copy of fetch. */
import { randomUUID } from 'node:crypto'
import { expect, test } from 'vitest'
import { type FetchHandler, idempotency } from '../../src/frameworks/fetch/index.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'

const once = createOnce({ store: memory() })

function guarded(handler: FetchHandler<unknown, []>): (request?: Request) => Promise<Response> {
  const handle = idempotency(once, { scope: () => 'acme', operation: `POST /${randomUUID()}` }, handler)
  const headers = { 'idempotency-key': 'k-1', cookie: 'theme=dark' }
  return (request = new Request('http://localhost/orders?dry=1', { method: 'POST', body: '{"id":7}', headers })) =>
    handle(request)
}

/** As hosts extend requests. */
class HostRequest extends Request {
  readonly #params = { id: '7' }

  get nextUrl(): URL {
    return new URL(this.url)
  }

  get params(): { readonly id: string } {
    return this.#params
  }

  cookie(name: string): string | undefined {
    return new RegExp(`${name}=([^;]*)`).exec(this.headers.get('cookie') ?? '')?.[1]
  }
}

test('a handler finds on its request what the host has put there, and can read the body', async () => {
  const post = guarded(async (request) => {
    const host = request as HostRequest
    return Response.json([host.nextUrl.search, host.params.id, host.cookie('theme'), await request.json()])
  })
  const headers = { 'idempotency-key': 'k-2', cookie: 'theme=dark' }
  const request = new HostRequest('http://localhost/orders?dry=1', { method: 'POST', body: '{"id":7}', headers })
  expect(await (await post(request)).json()).toEqual(['?dry=1', '7', 'dark', { id: 7 }])
})

test('a response that nobody can send is refused before the commit', async () => {
  let calls = 0
  const post = guarded(() => {
    calls += 1
    return calls === 1 ? Response.error() : new Response('sent', { status: 201 })
  })
  await expect(post()).rejects.toThrow('cannot have the status 0')
  const retry = await post()
  expect([retry.status, retry.headers.get('idempotent-replayed')]).toEqual([201, null])
})

test('a response of another copy of fetch is one, and nothing else is', async () => {
  const foreign = {
    status: 201,
    statusText: 'Created',
    headers: new Headers({ location: '/orders/7' }),
    body: new Response('made elsewhere').body,
  }
  const answer = await guarded(() => foreign as unknown as Response)()
  expect([answer.status, answer.headers.get('location'), await answer.text()]).toEqual([
    201,
    '/orders/7',
    'made elsewhere',
  ])
  await expect(guarded(() => ({ status: 200 }) as unknown as Response)()).rejects.toThrow('returns a Response')
  await expect(guarded(() => undefined as unknown as Response)()).rejects.toThrow('returns a Response')
})
