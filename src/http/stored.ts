/**
 * Stored: an answer as bytes for the database, plain or encrypted, and back.
 *
 *   version 1 | form 0 | headers and body                                plain
 *   version 1 | form 1 | key id | nonce | headers and body | tag         AES-256-GCM
 *
 * The record's id is part of the authenticated data. It is a hash of scope and key, so bytes that were moved to another
 * row, key or tenant do not open (T2). Whatever cannot be read, for whatever reason, is `undefined`: the caller then
 * says that the result is unavailable, and never invents an empty answer. Each record has a key of its own, derived from
 * the ring's key and the record's id, so that random nonces never come near their limit.
 *
 * @module
 */

import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'
import { describe, refuseUnknownOptions } from '../shared/options.ts'
import type { HeaderList, WholeResponse } from './response.ts'

/** Keys that stored answers are encrypted with. Rotate: add a key, make it current, keep the old one for `responseRetentionMs`. */
export interface EncryptionKeys {
  /** Id of the key for new records. */
  readonly current: string
  /** Keys by id, 32 bytes each; ids are 1 to 32 letters, digits, `.`, `_`, `-`. */
  readonly keys: Readonly<Record<string, Uint8Array>>
}

/** A checked key ring. A Map: no id from a row reaches a prototype (T10). */
export interface KeyRing {
  readonly current: string
  readonly keys: ReadonlyMap<string, Uint8Array>
}

/** Format written now. A higher one comes with a reader of each earlier one, and with stored rows (test/fixtures/stored). */
export const RESPONSE_VERSION = 1

const PLAIN = 0
const ENCRYPTED = 1
const KEY_BYTES = 32
const NONCE_BYTES = 12
const TAG_BYTES = 16
const KEY_ID = /^[A-Za-z0-9._-]{1,32}$/
const LABEL = 'effectively-once stored response 1\n'

/**
 * Checks a key ring where it is configured.
 *
 * @throws {TypeError} naming the option, never a key.
 */
export function keyRing(encryption: EncryptionKeys): KeyRing {
  refuseUnknownOptions('encryption', encryption, ['current', 'keys'])
  if (typeof encryption.keys !== 'object' || encryption.keys === null) {
    throw new TypeError(`encryption.keys takes an object of bytes by key id, got ${describe(encryption.keys)}`)
  }
  const keys = new Map<string, Uint8Array>()
  for (const [id, key] of Object.entries(encryption.keys)) {
    if (!KEY_ID.test(id)) throw new TypeError(`encryption.keys: ids must match ${KEY_ID.source}, got ${describe(id)}`)
    if (!(key instanceof Uint8Array) || key.byteLength !== KEY_BYTES) {
      throw new TypeError(`encryption.keys.${id} takes ${KEY_BYTES} bytes`)
    }
    keys.set(id, Uint8Array.from(key))
  }
  if (typeof encryption.current !== 'string' || !keys.has(encryption.current)) {
    throw new TypeError('encryption.current must be the id of one of encryption.keys')
  }
  return { current: encryption.current, keys }
}

/** The answer as bytes for the record with this id. */
export function encodeResponse(response: WholeResponse, id: string, ring: KeyRing | undefined): Uint8Array {
  const head = Buffer.from(JSON.stringify({ status: response.status, headers: response.headers }), 'utf8')
  const length = Buffer.alloc(4)
  length.writeUInt32BE(head.byteLength)
  const content = [length, head, response.body]
  if (ring === undefined) return Buffer.concat([Buffer.of(RESPONSE_VERSION, PLAIN), ...content])
  const keyId = Buffer.from(ring.current, 'utf8')
  const start = Buffer.concat([
    Buffer.of(RESPONSE_VERSION, ENCRYPTED, keyId.byteLength),
    keyId,
    randomBytes(NONCE_BYTES),
  ])
  const cipher = createCipheriv('aes-256-gcm', recordKey(ring.keys.get(ring.current), id), start.subarray(-NONCE_BYTES))
  cipher.setAAD(associated(start, id))
  return Buffer.concat([start, ...content.map((part) => cipher.update(part)), cipher.final(), cipher.getAuthTag()])
}

/** The answer back; undefined when it cannot be read: another version, a key that is gone, bytes of another record. */
export function decodeResponse(bytes: Uint8Array, id: string, ring: KeyRing | undefined): WholeResponse | undefined {
  try {
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    return READERS.get(buffer[0] ?? 0)?.(buffer, id, ring)
  } catch {
    return undefined
  }
}

/** Readers by format. */
const READERS: ReadonlyMap<
  number,
  (buffer: Buffer, id: string, ring: KeyRing | undefined) => WholeResponse | undefined
> = new Map([[1, readFirst]])

function readFirst(buffer: Buffer, id: string, ring: KeyRing | undefined): WholeResponse | undefined {
  if (buffer[1] === PLAIN) return readContent(buffer.subarray(2))
  if (buffer[1] === ENCRYPTED && ring !== undefined) return readContent(decrypt(buffer, id, ring))
  return undefined
}

function decrypt(buffer: Buffer, id: string, ring: KeyRing): Buffer {
  const idEnd = 3 + (buffer[2] ?? 0)
  const start = buffer.subarray(0, idEnd + NONCE_BYTES)
  const decipher = createDecipheriv(
    'aes-256-gcm',
    recordKey(ring.keys.get(buffer.toString('utf8', 3, idEnd)), id),
    start.subarray(-NONCE_BYTES),
    { authTagLength: TAG_BYTES },
  )
  decipher.setAAD(associated(start, id))
  decipher.setAuthTag(buffer.subarray(-TAG_BYTES))
  return Buffer.concat([decipher.update(buffer.subarray(start.byteLength, -TAG_BYTES)), decipher.final()])
}

function recordKey(key: Uint8Array | undefined, id: string): Uint8Array {
  if (key === undefined) throw new Error('the key is not in the ring')
  return new Uint8Array(hkdfSync('sha256', key, id, LABEL, KEY_BYTES))
}

function associated(start: Buffer, id: string): Buffer {
  return Buffer.concat([Buffer.from(LABEL, 'utf8'), Buffer.from(id, 'utf8'), start])
}

function readContent(content: Buffer): WholeResponse | undefined {
  const headEnd = 4 + content.readUInt32BE(0)
  if (headEnd > content.byteLength) return undefined
  const head: unknown = JSON.parse(content.toString('utf8', 4, headEnd))
  if (!isHead(head)) return undefined
  return { status: head.status, headers: head.headers, body: content.subarray(headEnd) }
}

function isHead(head: unknown): head is { readonly status: number; readonly headers: HeaderList } {
  if (typeof head !== 'object' || head === null || !('status' in head) || !('headers' in head)) return false
  return (
    typeof head.status === 'number' &&
    Array.isArray(head.headers) &&
    head.headers.every((pair) => Array.isArray(pair) && pair.length === 2 && pair.every((p) => typeof p === 'string'))
  )
}
