/**
 * Body: the bytes of a request, read before anything parses them, and put back so that parsers find them as they came.
 *
 * Where something has parsed them already, what it kept is taken: `rawBody` (bytes), a Buffer or string in `body`, else
 * the parsed value, which is compared by its canonical form.
 *
 * @module
 */

import type { IncomingMessage } from 'node:http'
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
  [BODY]?: Buffer
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
  if (hasNoBody(request)) return { bytes: NO_BODY, contentDecoded: false }
  if (Number(request.headers['content-length'] ?? 0) > bytesMax) return 'too-large'
  const known = (request as Read)[BODY]
  if (known !== undefined) return { bytes: known, contentDecoded: false }
  if (request.readableDidRead || request.readableEnded) return keptBody(parsed, bytesMax)
  const bytes = await readAndPutBack(request, bytesMax)
  if (!Buffer.isBuffer(bytes)) return bytes
  ;(request as Read)[BODY] = bytes
  return { bytes, contentDecoded: false }
}

function hasNoBody({ headers }: IncomingMessage): boolean {
  const length = headers['content-length']
  return headers['transfer-encoding'] === undefined && (length === undefined || length === '0')
}

/** Parsers inflate before they keep anything. */
function keptBody({ body, rawBody }: ParsedRequest, bytesMax: number): RequestBody | 'too-large' {
  const bytes = bytesOf(rawBody) ?? bytesOf(body)
  if (bytes !== undefined) return bytes.byteLength > bytesMax ? 'too-large' : { bytes, contentDecoded: true }
  if (body !== undefined) return { parsed: body }
  throw new SetupError('the body of the request was read before and nothing of it was kept; put idempotency first')
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
      if (!request.complete) return
      const whole = Buffer.concat(chunks)
      if (whole.byteLength > 0) request.unshift(whole)
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

function next(request: IncomingMessage): Buffer | string | null {
  return request.read() as Buffer | string | null
}

function ignore(): void {}
