/**
 * Exchange on fetch: `Request` in, `Response` out, as Hono, Next.js, Bun, Deno and workers have them.
 *
 * @module
 */

import type { Answer, Exchange, HandlerContext, RequestBody } from '../exchange.ts'
import type { Guard } from '../guard.ts'
import { type HeaderList, NO_BODY, type Produced, sharedHeaders, type WholeResponse } from '../response.ts'
import { SetupError } from '../setup-error.ts'

export interface FetchExchange<Req> {
  /** What hooks get. */
  readonly request: Req
  readonly raw: Request
  readonly template: string | undefined
  /** Where the framework has read the body already. */
  readonly readAlready?: (() => Promise<RequestBody>) | undefined
}

/** The request for a handler. */
export interface Readable {
  /** The body's bytes, where the guard has read them. */
  readonly bytes: Uint8Array | undefined
  /**
   * A request that can be read from the beginning, and does not abort when the caller hangs up. Made when it is asked
   * for: it costs as much as a look-up, and a replay needs none.
   */
  readonly request: () => Request
}

/**
 * Guards one request. `start` starts the handler.
 *
 * @returns undefined when the handler has to run unguarded. Rejects with the handler's own error.
 */
export async function guardFetch<Tx, Req>(
  guard: Guard<Tx, Req>,
  exchange: FetchExchange<Req>,
  start: (context: HandlerContext<Tx>, readable: Readable) => Promise<Response>,
): Promise<Response | undefined> {
  const { raw } = exchange
  const { responseBytesMax, passUnstorable } = guard.policy
  let read: Uint8Array | undefined
  let captured: Captured | undefined
  const key = raw.headers.get('idempotency-key')
  const facts: Exchange<Tx, Req> = {
    request: exchange.request,
    method: raw.method,
    target: raw.url,
    headers: raw.headers,
    keyLines: key === null ? [] : [key],
    template: exchange.template,
    async body(bytesMax) {
      if (raw.bodyUsed) {
        if (exchange.readAlready !== undefined) return await exchange.readAlready()
        throw new SetupError('the body of the request was read before; put idempotency first')
      }
      const bytes = await readBytes(raw, bytesMax)
      if (!(bytes instanceof Uint8Array)) return bytes
      read = bytes
      return { bytes, contentDecoded: false }
    },
    async run(context) {
      const bytes = read
      const request = () => (bytes === undefined ? raw : withBody(raw, bytes))
      captured = await capture(await start(context, { bytes, request }), responseBytesMax, passUnstorable)
      return captured.produced
    },
  }
  const answer: Answer = await guard.handle(facts)
  switch (answer.kind) {
    case 'unguarded':
      return undefined
    case 'handler':
      return captured === undefined ? new Response(null, { status: 500 }) : captured.response()
    case 'instead': {
      const { produced } = captured ?? {}
      const outer = produced === undefined ? [] : sharedHeaders(headersOf(produced))
      captured?.drop()
      return responseOf({ ...answer.response, headers: [...outer, ...answer.response.headers] })
    }
    case 'gone':
      // Nobody is there; a Response has to be returned all the same.
      return new Response(null, { status: 400 })
  }
}

/** A `Response` of a whole answer. */
export function responseOf({ status, headers, body }: WholeResponse): Response {
  const made = new Headers()
  for (const [name, value] of headers) made.append(name, value)
  // Statuses without a body take none, not even an empty one.
  return new Response(body.byteLength === 0 ? null : (body as Uint8Array<ArrayBuffer>), { status, headers: made })
}

function headersOf(produced: Produced): HeaderList {
  return produced.kind === 'whole' ? produced.response.headers : produced.headers
}

async function readBytes(request: Request, bytesMax: number): Promise<Uint8Array | 'too-large' | 'gone'> {
  const declared = Number(request.headers.get('content-length') ?? Number.NaN)
  if (declared > bytesMax) return 'too-large'
  // A server ends a body at its declared length, and hosts read such bodies without making a stream of them.
  if (declared >= 0) {
    const whole = await request.arrayBuffer().catch(() => undefined)
    if (whole === undefined) return 'gone'
    return whole.byteLength > bytesMax ? 'too-large' : new Uint8Array(whole)
  }
  if (request.body === null) return NO_BODY
  const reader = request.body.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return Buffer.concat(chunks)
      size += value.byteLength
      if (size > bytesMax) {
        cancelLater(reader)
        return 'too-large'
      }
      chunks.push(value)
    }
  } catch {
    return 'gone'
  }
}

/** Without the signal: a caller that hangs up does not stop the work. */
function withBody(raw: Request, bytes: Uint8Array): Request {
  const { method, headers, url } = raw
  const made = new Request(url, {
    method,
    headers,
    ...(bytes.byteLength === 0 ? {} : { body: bytes as Uint8Array<ArrayBuffer> }),
  })
  return withMembers(made, raw)
}

/** What the host has put on its requests besides (`nextUrl`, `cookies`, `params`), read from the one that it made. */
function withMembers(made: Request, raw: Request): Request {
  for (let owner: object | null = raw; owner !== null; owner = Object.getPrototypeOf(owner) as object | null) {
    if (owner === Request.prototype) break
    for (const name of Object.getOwnPropertyNames(owner)) {
      if (name in made) continue
      const get = (): unknown => {
        const value: unknown = Reflect.get(raw, name)
        return typeof value === 'function' ? (value.bind(raw) as unknown) : value
      }
      Object.defineProperty(made, name, { configurable: true, enumerable: true, get })
    }
  }
  return made
}

/** A handler's response, read as far as it is kept. */
interface Captured {
  readonly produced: Produced
  /** The handler's response, to be sent. */
  response(): Response
  /** It will not be sent. */
  drop(): void
}

async function capture(response: Response, bytesMax: number, pass: boolean): Promise<Captured> {
  if (!isResponse(response)) throw new TypeError('a guarded handler returns a Response')
  const { status } = response
  // `Response.error()` has 0: refused before the commit, because nobody can send it.
  if (status < 200) throw new RangeError(`an answer cannot have the status ${status}`)
  const headers: HeaderList = [...response.headers]
  const untouched = () => response
  if (response.headers.get('content-type')?.toLowerCase().startsWith('text/event-stream') === true) {
    return {
      produced: { kind: 'unstorable', status, headers, reason: 'event-stream' },
      response: untouched,
      drop: () => cancelLater(response.body),
    }
  }
  if (response.body === null) {
    return { produced: whole(status, headers, NO_BODY), response: untouched, drop: () => {} }
  }
  const reader = response.body.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  const again = (body: ConstructorParameters<typeof Response>[0]) => () =>
    new Response(body, { status, statusText: response.statusText, headers: [...response.headers] })
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    chunks.push(value)
    size += value.byteLength
    if (size > bytesMax) {
      const drop = () => cancelLater(reader)
      const rest = pass || status >= 400 ? again(continued(chunks, reader)) : untouched
      return { produced: { kind: 'unstorable', status, headers, reason: 'too-big' }, response: rest, drop }
    }
  }
  const body = Buffer.concat(chunks)
  return { produced: whole(status, headers, body), response: again(body), drop: () => {} }
}

/** Also one of another copy of fetch, such as undici from npm. */
function isResponse(response: unknown): response is Response {
  if (response instanceof Response) return true
  if (typeof response !== 'object' || response === null) return false
  const { status, headers, body } = response as Partial<Response>
  return typeof status === 'number' && typeof headers?.get === 'function' && body !== undefined
}

/**
 * Cancels in a later turn. A web stream over a node stream throws where nobody can catch it when it is cancelled between
 * being asked for more and getting it.
 */
function cancelLater(stream: Pick<ReadableStreamDefaultReader, 'cancel'> | null): void {
  setImmediate(() => {
    stream?.cancel().catch(() => {})
  })
}

function whole(status: number, headers: HeaderList, body: Uint8Array): Produced {
  return { kind: 'whole', response: { status, headers, body } }
}

/** What was read, then the rest as it is asked for. */
function continued(
  chunks: Uint8Array[],
  reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>,
): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const kept = chunks.shift()
      if (kept !== undefined) {
        controller.enqueue(kept)
        return
      }
      const { done, value } = await reader.read()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    cancel: (reason) => reader.cancel(reason),
  })
}
