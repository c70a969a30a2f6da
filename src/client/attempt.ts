/**
 * One attempt: a request, and its answer read to the end within one time-out.
 *
 * The body belongs to the attempt. A connection that breaks in the middle of it is a failed attempt, and nothing of it
 * is kept, so that bytes of two attempts never meet.
 *
 * @module
 */

import { TIMER_MS_MAX } from './clock.ts'

export type Fetch = (url: string, init: RequestInit) => Promise<Response>

export interface AttemptRequest {
  readonly fetch: Fetch
  readonly url: string
  readonly method: string
  readonly headers: Headers
  readonly body: Uint8Array<ArrayBuffer> | null
  readonly credentials: 'omit' | 'same-origin' | 'include'
  readonly redirect: 'manual' | 'follow'
  readonly timeoutMs: number
  readonly responseBytesMax: number
  readonly signal: AbortSignal | undefined
}

export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly body: Uint8Array<ArrayBuffer>
  /** The body was longer than `responseBytesMax`; `body` is empty. */
  readonly bodyOmitted: boolean
  /** A redirect that the browser hides: no status, no headers. */
  readonly opaque: boolean
}

export type Attempted =
  | { readonly kind: 'answer'; readonly answer: Answer }
  | { readonly kind: 'network'; readonly error: unknown }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'aborted' }

export async function attempt(request: AttemptRequest): Promise<Attempted> {
  const { signal } = request
  const controller = new AbortController()
  let late = false
  const abort = (): void => controller.abort()
  const timer = setTimeout(
    () => {
      late = true
      abort()
    },
    Math.min(request.timeoutMs, TIMER_MS_MAX),
  )
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted === true) abort()
  try {
    const { method, headers, body: sent, credentials, redirect } = request
    const init = {
      method,
      headers,
      body: sent,
      credentials,
      redirect,
      cache: 'no-store' as const,
      signal: controller.signal,
    }
    const response = await request.fetch(request.url, init)
    const body = await bodyOf(response, request.responseBytesMax)
    return {
      kind: 'answer',
      answer: {
        status: response.status,
        headers: response.headers,
        body: body ?? new Uint8Array(0),
        bodyOmitted: body === undefined,
        opaque: response.type === 'opaqueredirect',
      },
    }
  } catch (error) {
    if (late) return { kind: 'timeout' }
    return signal?.aborted === true ? { kind: 'aborted' } : { kind: 'network', error }
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}

/** The whole body; undefined when it is longer than `bytesMax`. */
async function bodyOf(response: Response, bytesMax: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
  if (response.body === null) return new Uint8Array(0)
  const reader = (response.body as ReadableStream<Uint8Array>).getReader()
  const chunks: Uint8Array[] = []
  let length = 0
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    length += value.length
    if (length > bytesMax) {
      await reader.cancel()
      return undefined
    }
    chunks.push(value)
  }
  const body = new Uint8Array(length)
  let at = 0
  for (const chunk of chunks) {
    body.set(chunk, at)
    at += chunk.length
  }
  return body
}

/** Statuses that a `Response` refuses to have a body with. */
const NO_BODY = new Set([101, 103, 204, 205, 304])

/** The answer as a `Response` that can be read like any other. */
export function responseOf({ status, headers, body }: Answer): Response {
  // What a browser hides has status 0, which nobody can build a Response with; it is never a result with one.
  return new Response(NO_BODY.has(status) ? null : body, { status, headers })
}
