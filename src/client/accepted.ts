/**
 * 202 and the status resource: what the place that `Location` names says about the operation.
 *
 * @module
 */

import type { Answer } from './attempt.ts'
import { fromBase64 } from './base64.ts'
import { jsonObject } from './problem.ts'

export type OperationStatus =
  | { readonly state: 'in-progress' | 'unknown' | 'not-found' }
  /** `result` is undefined where the resource does not hold it; the operation, sent again, gives it. */
  | { readonly state: 'completed'; readonly result: unknown }

/** The status document; undefined for anything else, such as a job resource of the service's own. */
export function statusOf(body: Uint8Array): OperationStatus | undefined {
  const document = jsonObject(body)
  if (typeof document?.['operation_ref'] !== 'string') return undefined
  switch (document['state']) {
    case 'completed':
      return { state: 'completed', result: document['result'] }
    case 'in-progress':
    case 'unknown':
    case 'not-found':
      return { state: document['state'] }
    default:
      return undefined
  }
}

/** Where a 202 may be asked about. Another origin is not: it would be shown this one's credentials. */
export function statusUrlOf(url: string, location: string | null): string | null {
  if (location === null) return null
  try {
    const found = new URL(location, url)
    found.hash = ''
    return found.origin === new URL(url).origin && found.username === '' ? found.href : null
  } catch {
    return null
  }
}

/**
 * The result that a status resource holds, as the answer that it stands for: `{ status, headers, body | body_base64 }`,
 * or anything else, which then is the body of a 200.
 */
export function answerOf(result: unknown, headers: Headers): Answer {
  const base = { bodyOmitted: false, opaque: false }
  const stored = storedAnswer(result)
  if (stored !== undefined) return { ...stored, ...base }
  const own = new Headers({ 'content-type': 'application/json' })
  const replayed = headers.get('idempotent-replayed')
  if (replayed !== null) own.set('idempotent-replayed', replayed)
  return { status: 200, headers: own, body: jsonBytes(result), ...base }
}

function storedAnswer(result: unknown): Pick<Answer, 'status' | 'headers' | 'body'> | undefined {
  if (typeof result !== 'object' || result === null) return undefined
  const { status, headers, body, body_base64: base64 } = result as Readonly<Record<string, unknown>>
  if (typeof status !== 'number' || !Number.isInteger(status) || status < 200 || status > 599) return undefined
  if (typeof headers !== 'object' || headers === null) return undefined
  const bytes =
    typeof base64 === 'string' ? fromBase64(base64) : body === undefined ? new Uint8Array(0) : jsonBytes(body)
  try {
    return bytes === undefined
      ? undefined
      : { status, headers: new Headers(headers as Record<string, string>), body: bytes }
  } catch {
    return undefined
  }
}

function jsonBytes(value: unknown): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(JSON.stringify(value))
}
