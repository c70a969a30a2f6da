/** The scenario table's server on plain node:http. */
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { idempotency, operationStatus } from '../../../src/frameworks/node/index.ts'
import { type Adapter, optionsFor, type Reply, type Served } from '../adapter.ts'

const tenantOf = ({ headers }: IncomingMessage) => headers['x-tenant'] as string | undefined

export const nodeAdapter: Adapter = {
  name: 'node',
  async serve(once, routes, status = {}) {
    const handlers = routes.map((route) => {
      const { method = 'POST', path } = route
      const listener = idempotency(
        once,
        { ...optionsFor(route, tenantOf), operation: route.options?.operation ?? `${method} ${path}` },
        async (request, response, context) => {
          await writeReply(response, await route.handler({ once: context, body: () => textOf(request) }))
        },
      )
      const pattern = new RegExp(`^${path.replace(/:\w+/g, '[^/?]+')}(?:\\?|$)`)
      return { method, pattern, listener }
    })
    const statusListener = operationStatus(once, optionsFor({ options: status }, tenantOf))
    return await listen(
      http.createServer((request, response) => {
        const { method, url = '/' } = request
        if (method === 'GET' && url.startsWith('/operations/')) return statusListener(request, response)
        const found = handlers.find((one) => one.method === method && one.pattern.test(url))
        if (found === undefined) response.writeHead(404).end()
        else found.listener(request, response)
      }),
    )
  },
}

export async function textOf(stream: Readable): Promise<string> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(Buffer.from(chunk as Uint8Array))
  return Buffer.concat(chunks).toString('utf8')
}

/** Answers on node's own response. */
export async function writeReply(
  response: ServerResponse,
  { status, headers = [], body, as = 'whole' }: Reply,
): Promise<void> {
  response.statusCode = status
  for (const [name, value] of headers) response.appendHeader(name, value)
  if (as === 'stream' || as === 'broken') {
    await pipeline(streamOf(body, as), response)
  } else {
    response.end(body)
    if (as === 'twice') {
      response.statusCode = 202
      response.setHeader('x-second', 'yes')
      response.end('second answer')
    }
  }
}

export function chunksOf(body: string | Uint8Array = ''): Buffer[] {
  const bytes = Buffer.from(body)
  const size = Math.max(1, Math.ceil(bytes.byteLength / 7))
  return Array.from({ length: Math.ceil(bytes.byteLength / size) }, (_, at) =>
    bytes.subarray(at * size, (at + 1) * size),
  )
}

/** The body as a stream, also one that fails after its first half. */
export function streamOf(body: Reply['body'] | undefined, as: Reply['as']): Readable {
  const chunks = chunksOf(body)
  if (as !== 'broken') return Readable.from(chunks)
  return Readable.from(
    (function* () {
      yield* chunks.slice(0, Math.ceil(chunks.length / 2))
      throw new Error('the source has failed')
    })(),
  )
}

export async function listen(server: http.Server): Promise<Served> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return {
    port: address.port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
