/**
 * Outgoing: a row as the message that a publisher takes. Bytes, id and headers are the same on every send (B66).
 *
 * @module
 */

import type { OutgoingMessage } from '../broker/contract.ts'
import type { PendingRow } from '../store/outbox.ts'

const NO_HEADERS: Readonly<Record<string, string>> = Object.freeze({})

/** The message, or in one line why this row cannot be one: written by a newer release, or damaged (B45). */
export function toOutgoing(row: PendingRow): OutgoingMessage | string {
  const payload = decode(row)
  if (payload === undefined) return `payload encoding "${row.encoding.slice(0, 32)}" is not known to this release`
  const headers = row.headers === '{}' ? NO_HEADERS : parseHeaders(row.headers)
  if (headers === undefined) return 'headers are not a JSON object of strings'
  return {
    id: row.id,
    topic: row.topic,
    orderingKey: row.orderingKey,
    payload,
    contentType: row.contentType,
    headers,
    createdAtMs: row.createdAtMs,
  }
}

function decode(row: PendingRow): string | Uint8Array | undefined {
  if (row.encoding === 'text') return row.payload
  return row.encoding === 'base64' ? Buffer.from(row.payload, 'base64') : undefined
}

function parseHeaders(text: string): Readonly<Record<string, string>> | undefined {
  try {
    const parsed: unknown = JSON.parse(text)
    if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return undefined
    const entries = Object.entries(parsed)
    return entries.every(([, value]) => typeof value === 'string')
      ? (Object.fromEntries(entries) as Record<string, string>)
      : undefined
  } catch {
    return undefined
  }
}
