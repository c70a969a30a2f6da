/**
 * 202 and the status resource: what the place that `Location` names says about the operation.
 *
 * @module
 */

import type { Answer } from './attempt.ts'
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

/** The result that a status resource holds, as the answer that it stands for. */
export function answerOf(result: unknown, headers: Headers): Answer {
  const replayed = headers.get('idempotent-replayed')
  const own = new Headers({ 'content-type': 'application/json' })
  if (replayed !== null) own.set('idempotent-replayed', replayed)
  const body = new TextEncoder().encode(JSON.stringify(result))
  return { status: 200, headers: own, body, bodyOmitted: false, opaque: false }
}
