/**
 * Freezing a body: bytes and content type are made once, so that every attempt sends the same ones.
 *
 * A `FormData` gets a new boundary each time it is sent, a stream can be read once, an object may have changed between
 * two attempts; each of these makes a retry another payload under the same key.
 *
 * @module
 */

import { ClientError } from './errors.ts'

export interface FrozenBody {
  /** A copy of our own; null = the request has no body. */
  readonly bytes: Uint8Array<ArrayBuffer> | null
  /** What the kind of body implies; null where the caller has to say. */
  readonly contentType: string | null
}

/**
 * Takes the body as it is now. Everything but `Blob` and `FormData` is frozen when this returns; for those two the
 * promise gives the bytes.
 *
 * @throws {TypeError} for a stream or a value that JSON would change silently.
 * @throws {ClientError} `BODY_TOO_LARGE`.
 */
export function freezeBody(body: unknown, bytesMax: number): FrozenBody | Promise<FrozenBody> {
  if (body === undefined) return { bytes: null, contentType: null }
  if (typeof body === 'string') return ofText(body, 'text/plain;charset=UTF-8', bytesMax)
  if (body instanceof URLSearchParams) {
    return ofText(body.toString(), 'application/x-www-form-urlencoded;charset=UTF-8', bytesMax)
  }
  if (body instanceof ArrayBuffer) return ofBytes(new Uint8Array(body), null, bytesMax)
  if (ArrayBuffer.isView(body)) {
    return ofBytes(new Uint8Array(body.buffer, body.byteOffset, body.byteLength), null, bytesMax)
  }
  if (body instanceof FormData || body instanceof Blob) return ofParts(body, bytesMax)
  return ofText(json(body), 'application/json', bytesMax)
}

function ofText(text: string, contentType: string, bytesMax: number): FrozenBody {
  return ofBytes(new TextEncoder().encode(text), contentType, bytesMax)
}

function ofBytes(bytes: Uint8Array, contentType: string | null, bytesMax: number): FrozenBody {
  if (bytes.length > bytesMax) {
    throw new ClientError('BODY_TOO_LARGE', `the body has ${bytes.length} bytes, bodyBytesMax is ${bytesMax}`)
  }
  return { bytes: new Uint8Array(bytes), contentType }
}

/** A `Response` takes the parts now and chooses the boundary, once. */
async function ofParts(body: FormData | Blob, bytesMax: number): Promise<FrozenBody> {
  if (body instanceof Blob && body.size > bytesMax) {
    throw new ClientError('BODY_TOO_LARGE', `the body has ${body.size} bytes, bodyBytesMax is ${bytesMax}`)
  }
  const response = new Response(body)
  const contentType = response.headers.get('content-type')
  return ofBytes(new Uint8Array(await response.arrayBuffer()), contentType, bytesMax)
}

function json(body: unknown): string {
  if (isStream(body)) {
    throw new TypeError('createOperation: body is a stream, which can be sent only once; read it into bytes first')
  }
  if (!isJsonLike(body)) {
    throw new TypeError(
      'createOperation: body must be text, bytes, URLSearchParams, FormData, a Blob or plain JSON data',
    )
  }
  const text: string | undefined = JSON.stringify(body)
  if (text === undefined) throw new TypeError('createOperation: body has no JSON form')
  return text
}

function isStream(body: unknown): boolean {
  if (typeof body !== 'object' || body === null) return false
  return 'getReader' in body || 'pipe' in body || Symbol.asyncIterator in body
}

/** Plain objects, arrays, and what says itself how it looks in JSON. A Map or Set would become `{}`. */
function isJsonLike(body: unknown): boolean {
  if (typeof body === 'number') return Number.isFinite(body)
  if (body === null || typeof body === 'boolean' || Array.isArray(body)) return true
  if (typeof body !== 'object') return false
  const prototype: unknown = Object.getPrototypeOf(body)
  return prototype === null || Object.getPrototypeOf(prototype) === null || 'toJSON' in body
}
