/**
 * Body: the bytes of a request, read before anything parses them, and put back so that parsers find them as they came.
 *
 * Where something has parsed them already, what it kept is taken: `rawBody` (bytes), a Buffer or string in `body`, else
 * the parsed value, which is compared by its canonical form.
 *
 * @module
 */

import { type IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import { isJson, parseMediaType } from '../../fingerprint/media-type.ts'
import type { RequestBody } from '../exchange.ts'
import { NO_BODY } from '../response.ts'
import { SetupError } from '../setup-error.ts'

/** What body parsers leave on a request. */
export interface ParsedRequest {
  readonly body?: unknown
  readonly rawBody?: unknown
}

/** Where the bytes lie that were read and put back. */
const BODY = Symbol('effectively-once body')

interface Read extends IncomingMessage {
  [BODY]?: RequestBody
}

/**
 * The body. `gone`: the caller hung up before its end. Bounded by `bytesMax`; the time is bounded by the server.
 *
 * @throws {SetupError} when something has read the body and kept nothing of it.
 */
export async function readBody(
  request: IncomingMessage,
  bytesMax: number,
  parsed: ParsedRequest = request as ParsedRequest,
): Promise<RequestBody | 'too-large' | 'gone'> {
  const known = (request as Read)[BODY]
  if (known !== undefined) return known
  if (hasNoBody(request)) return { bytes: NO_BODY, contentDecoded: false }
  if (Number(request.headers['content-length'] ?? 0) > bytesMax) return 'too-large'
  if (request.readableDidRead || request.readableEnded) return keptBody(parsed, request.headers, bytesMax)
  const bytes = await readAndPutBack(request, bytesMax)
  if (!Buffer.isBuffer(bytes)) return bytes
  const read: RequestBody = { bytes, contentDecoded: false }
  ;(request as Read)[BODY] = read
  return read
}

/**
 * The body, where a layer in front has put a stream of its own in the place of the request, for instance one that
 * inflates: read, remembered for `readBody`, and given back as a stream to go on with.
 */
export async function readInstead(
  request: IncomingMessage,
  payload: AsyncIterable<Uint8Array | string>,
  bytesMax: number,
): Promise<Readable | 'too-large'> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of payload) {
    const bytes = Buffer.from(chunk as Uint8Array)
    size += bytes.byteLength
    if (size > bytesMax) return 'too-large'
    chunks.push(bytes)
  }
  const bytes = Buffer.concat(chunks)
  ;(request as Read)[BODY] = { bytes, contentDecoded: true }
  return Readable.from(bytes.byteLength === 0 ? [] : [bytes])
}

/** In HTTP/1 the head says whether there is a body, as it came: layers in front change `headers`. In HTTP/2 it need not. */
function hasNoBody({ headers, rawHeaders, httpVersionMajor }: IncomingMessage): boolean {
  if (httpVersionMajor > 1 || headers['transfer-encoding'] !== undefined) return false
  const length = headers['content-length']
  if (length !== undefined && length !== '0') return false
  return !rawHeaders.some((name, at) => at % 2 === 0 && saysBody(name.toLowerCase(), rawHeaders[at + 1]))
}

function saysBody(name: string, value: string | undefined): boolean {
  return name === 'transfer-encoding' || (name === 'content-length' && value !== '0')
}

/** Parsers inflate before they keep anything. */
function keptBody(
  { body, rawBody }: ParsedRequest,
  headers: IncomingHttpHeaders,
  bytesMax: number,
): RequestBody | 'too-large' {
  const bytes = bytesOf(rawBody) ?? bytesOf(body)
  if (bytes !== undefined) return bytes.byteLength > bytesMax ? 'too-large' : { bytes, contentDecoded: true }
  if (body !== undefined && isWhole(body, headers)) return { parsed: body }
  throw new SetupError('the body of the request was read before and not all of it was kept; put idempotency first')
}

/** Longest body that may parse to `{}`, bytes; a few more when it came compressed. */
const EMPTY_BYTES_MAX = 64

/**
 * Whether what was parsed is all that was sent. What reads uploads leaves the files elsewhere, and parsers lay an empty
 * object where they have parsed nothing: compared by that, one upload would be answered with the answer to another.
 */
function isWhole(body: unknown, headers: IncomingHttpHeaders): boolean {
  const type = parseMediaType(headers['content-type'] ?? '')
  if (type?.essence.startsWith('multipart/') === true) return false
  const isEmpty = typeof body === 'object' && body !== null && Object.keys(body).length === 0
  if (!isEmpty) return true
  const mayBeEmpty = type === undefined || isJson(type) || type.essence === 'application/x-www-form-urlencoded'
  return mayBeEmpty && Number(headers['content-length'] ?? 0) <= EMPTY_BYTES_MAX
}

function bytesOf(value: unknown): Uint8Array | undefined {
  if (value instanceof Uint8Array) return value
  return typeof value === 'string' ? Buffer.from(value, 'utf8') : undefined
}

/**
 * Reads to the end in paused mode and puts all of it back in the turn in which the end is known, before the stream tells
 * anybody about its end.
 */
function readAndPutBack(request: IncomingMessage, bytesMax: number): Promise<Buffer | 'too-large' | 'gone'> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = []
    let size = 0
    const done = (result: Buffer | 'too-large' | 'gone') => {
      request.off('readable', read)
      request.off('end', end)
      request.off('close', gone)
      request.off('error', gone)
      // Somebody has to listen: a caller that hangs up later is an `error` too.
      request.on('error', ignore)
      resolve(result)
    }
    const read = () => {
      for (let chunk = next(request); chunk !== null; chunk = next(request)) {
        // Somebody may have asked for text.
        const bytes = typeof chunk === 'string' ? Buffer.from(chunk, request.readableEncoding ?? 'utf8') : chunk
        size += bytes.byteLength
        if (size > bytesMax) {
          done('too-large')
          return
        }
        chunks.push(bytes)
      }
      if (!request.complete && !hasEnded(request)) return
      const whole = Buffer.concat(chunks)
      if (whole.byteLength > 0) {
        request.unshift(whole)
        outliveCaller(request)
      }
      done(whole)
    }
    const end = () => done(Buffer.concat(chunks))
    const gone = () => done('gone')
    request.on('readable', read)
    request.on('end', end)
    request.on('close', gone)
    request.on('error', gone)
    if (request.destroyed) gone()
  })
}

/**
 * Keeps a request whose body was put back readable when the caller hangs up. Node would destroy it, and parsers look at
 * its socket first; they would find no body, a handler would refuse what was never sent, and that would be stored.
 */
function outliveCaller(request: IncomingMessage): void {
  request.destroy = destroyWhenRead
  // A request of HTTP/2 stays readable by itself.
  if (!Object.hasOwn(request, 'socket')) return
  Object.defineProperty(request, SOCKET, { value: request.socket, writable: true })
  Object.defineProperty(request, 'socket', SHOWN_SOCKET)
}

function destroyWhenRead(this: IncomingMessage, error?: Error): IncomingMessage {
  return this.readableEnded ? IncomingMessage.prototype.destroy.call(this, error) : this
}

/** Where the socket itself lies. */
const SOCKET = Symbol('effectively-once socket')

interface Shown extends IncomingMessage {
  [SOCKET]: IncomingMessage['socket']
}

const SHOWN_SOCKET: PropertyDescriptor = {
  configurable: true,
  enumerable: true,
  get(this: Shown): IncomingMessage['socket'] {
    const socket = this[SOCKET]
    if (this.readableEnded || socket.readable) return socket
    return Object.create(socket, { readable: { value: true } }) as IncomingMessage['socket']
  },
  set(this: Shown, socket: IncomingMessage['socket']): void {
    this[SOCKET] = socket
  },
}

/** All of it has arrived, and nobody has been told yet. Only requests of HTTP/1 have a public member that says so. */
function hasEnded(request: IncomingMessage): boolean {
  const { _readableState: state } = request as { readonly _readableState?: { readonly ended?: boolean } }
  return state?.ended === true
}

function next(request: IncomingMessage): Buffer | string | null {
  return request.read() as Buffer | string | null
}

function ignore(): void {}
