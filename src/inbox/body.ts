/**
 * Body: bytes of a message as JSON, without surprises. (T10)
 *
 * @module
 */

import { isUtf8 } from 'node:buffer'

/** The body cannot be read as asked. A message that meets it is quarantined at once, with its bytes. */
export class UndecodableBody extends Error {
  override readonly name = 'UndecodableBody'
}

/**
 * Parses UTF-8 JSON.
 *
 * @throws {UndecodableBody} No UTF-8, no JSON, or members that change prototypes when an object is copied
 *   (`__proto__`, `constructor.prototype`). The message names the trouble, never the content.
 */
export function readJson(bytes: Uint8Array): unknown {
  const text = readText(bytes)
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new UndecodableBody(`a body of ${bytes.byteLength} bytes is no JSON`)
  }
  // Escapes can hide a name, so their presence is enough to look; most bodies have neither.
  if (text.includes('__proto__') || text.includes('constructor') || text.includes('\\u')) refuseHostileNames(value)
  return value
}

/** @throws {UndecodableBody} The bytes are no UTF-8. */
export function readText(bytes: Uint8Array): string {
  if (!isUtf8(bytes)) throw new UndecodableBody(`a body of ${bytes.byteLength} bytes is no UTF-8`)
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8')
  return text.charCodeAt(0) === 0xfeff ? text.slice(1) : text
}

/** Walks without recursion: depth is the sender's choice. */
function refuseHostileNames(root: unknown): void {
  const open: unknown[] = [root]
  while (open.length > 0) {
    const value = open.pop()
    if (typeof value !== 'object' || value === null) continue
    if (Object.hasOwn(value, '__proto__')) throw new UndecodableBody('the body has a member "__proto__"')
    if (Object.hasOwn(value, 'constructor')) {
      const inner: unknown = (value as Record<string, unknown>)['constructor']
      if (typeof inner === 'object' && inner !== null && Object.hasOwn(inner, 'prototype')) {
        throw new UndecodableBody('the body has a member "constructor.prototype"')
      }
    }
    for (const member of Object.values(value)) open.push(member)
  }
}
