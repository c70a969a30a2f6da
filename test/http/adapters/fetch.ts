/** The scenario table's server on fetch handlers: node's server, with the little that turns it into Request and Response. */
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { idempotency, operationStatus } from '../../../src/frameworks/fetch/index.ts'
import { type Adapter, optionsFor, type Reply } from '../adapter.ts'
import { listen, streamOf } from './node.ts'

const tenantOf = (request: Request) => request.headers.get('x-tenant') ?? undefined

export const fetchAdapter: Adapter = {
  name: 'fetch',
  lacks: (need) => (need === 'twice' ? 'a handler returns one response' : undefined),
  async serve(once, routes, status = {}) {
    const handlers = routes.map((route) => {
      const { method = 'POST', path } = route
      const handle = idempotency(
        once,
        { ...optionsFor(route, tenantOf), operation: route.options?.operation ?? `${method} ${path}` },
        async (request, handed) => replyResponse(await route.handler({ once: handed, body: () => request.text() })),
      )
      return { method, pattern: new RegExp(`^${path.replace(/:\w+/g, '[^/]+')}$`), handle }
    })
    const statusHandler = operationStatus(once, optionsFor({ options: status }, tenantOf))
    const fetchHandler = async (request: Request): Promise<Response> => {
      const { pathname } = new URL(request.url)
      if (request.method === 'GET' && pathname.startsWith('/operations/')) return await statusHandler(request)
      const found = handlers.find((one) => one.method === request.method && one.pattern.test(pathname))
      return found === undefined ? new Response(null, { status: 404 }) : await found.handle(request)
    }
    return await listen(http.createServer((request, response) => void serve(fetchHandler, request, response)))
  },
}

/** A reply as a Response. */
export function replyResponse({ status, headers = [], body, as }: Reply): Response {
  const made = new Headers()
  for (const [name, value] of headers) made.append(name, value)
  const content =
    as === 'stream' || as === 'broken'
      ? (Readable.toWeb(streamOf(body, as)) as ReadableStream)
      : body === undefined || typeof body === 'string'
        ? (body ?? null)
        : Uint8Array.from(body)
  return new Response(content, { status, headers: made })
}

async function serve(
  handle: (request: Request) => Promise<Response>,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  const headers = new Headers()
  for (const [name, value] of Object.entries(incoming.headersDistinct)) {
    for (const line of value ?? []) headers.append(name, line)
  }
  const { method = 'GET', url = '/' } = incoming
  const hasBody = method !== 'GET'
  try {
    const response = await handle(
      new Request(`http://localhost${url}`, {
        method,
        headers,
        ...(hasBody ? { body: Readable.toWeb(incoming) as ReadableStream, duplex: 'half' } : {}),
      }),
    )
    outgoing.statusCode = response.status
    for (const [name, value] of response.headers) outgoing.appendHeader(name, value)
    if (response.body === null) outgoing.end()
    else await pipeline(Readable.fromWeb(response.body), outgoing)
  } catch {
    if (!outgoing.headersSent) outgoing.statusCode = 500
    outgoing.end()
  }
}
