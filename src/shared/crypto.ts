/**
 * Crypto: what the core uses of Node's crypto, which is loaded at its first use. Loading it is a fifth of what importing
 * the core costs, and a process that only asks for a type or a version never uses it.
 *
 * @module
 */

import type * as NodeCrypto from 'node:crypto'

let loaded: typeof NodeCrypto | undefined

function crypto(): typeof NodeCrypto {
  loaded ??= process.getBuiltinModule('node:crypto')
  return loaded
}

/**
 * One-shot hash of text or bytes, as text or as bytes. Bytes are copied out of a text into the pool of small buffers: with
 * memory of its own for each hash it takes twice as long, and the garbage collector has to keep account of it.
 */
export function hash(algorithm: string, data: NodeCrypto.BinaryLike, encoding: NodeCrypto.BinaryToTextEncoding): string
export function hash(algorithm: string, data: NodeCrypto.BinaryLike, encoding: 'buffer'): Buffer
export function hash(
  algorithm: string,
  data: NodeCrypto.BinaryLike,
  encoding: NodeCrypto.BinaryToTextEncoding | 'buffer',
): string | Buffer {
  if (encoding === 'buffer') return Buffer.from(crypto().hash(algorithm, data, 'binary'), 'binary')
  return crypto().hash(algorithm, data, encoding)
}

export const randomUUID = (): NodeCrypto.UUID => crypto().randomUUID()

export const createHash = (algorithm: string): NodeCrypto.Hash => crypto().createHash(algorithm)

export const createHmac = (algorithm: string, key: NodeCrypto.KeyObject): NodeCrypto.Hmac =>
  crypto().createHmac(algorithm, key)

export const createSecretKey = (key: NodeJS.ArrayBufferView): NodeCrypto.KeyObject => crypto().createSecretKey(key)

export const timingSafeEqual = (a: NodeJS.ArrayBufferView, b: NodeJS.ArrayBufferView): boolean =>
  crypto().timingSafeEqual(a, b)
