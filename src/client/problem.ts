/**
 * Problem documents (RFC 9457) with the members that an idempotent service adds.
 *
 * @module
 */

export interface Problem {
  /** Stable name of what happened: `OPERATION_IN_PROGRESS`, or the service's own. */
  readonly code?: string | undefined
  readonly type?: string | undefined
  readonly title?: string | undefined
  readonly detail?: string | undefined
  /** Whether the same request with the same key may succeed later. */
  readonly retryable?: boolean | undefined
  /** Whether a new key for the same intent is safe. */
  readonly safeNewKey?: boolean | undefined
  /** How far the operation is known to have come. */
  readonly operationState?: string | undefined
  /** Names the operation in questions to the service. Never the key. */
  readonly operationRef?: string | undefined
}

/** Documents of this size and more are not looked into. */
const BYTES_MAX = 64 * 1_024

/** The problem that a response body holds; undefined when it is no problem document. */
export function problemOf(contentType: string | null, body: Uint8Array): Problem | undefined {
  if (!/^application\/problem\+json\s*(;|$)/i.test(contentType ?? '') || body.length > BYTES_MAX) return undefined
  const document = jsonObject(body)
  if (document === undefined) return undefined
  const text = (member: string): string | undefined =>
    typeof document[member] === 'string' ? document[member] : undefined
  const flag = (member: string): boolean | undefined =>
    typeof document[member] === 'boolean' ? document[member] : undefined
  return {
    code: text('code'),
    type: text('type'),
    title: text('title'),
    detail: text('detail'),
    retryable: flag('retryable'),
    safeNewKey: flag('safe_new_key'),
    operationState: text('operation_state'),
    operationRef: text('operation_ref'),
  }
}

/** A JSON object, or undefined for everything else. */
export function jsonObject(body: Uint8Array): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body))
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}
