/**
 * Coding: a stored answer in a form that the caller of a repeat reads.
 *
 * What compresses an answer may work behind the guard: the handler itself, hooks of Fastify, middleware of Koa. Then the
 * compressed bytes are what is stored, and a repeat may come from somebody who cannot read them (RFC 9110, section 12.5.3).
 *
 * @module
 */

import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate } from 'node:zlib'
import type { RequestHeaders } from '../fingerprint/request.ts'
import { headerOf, type WholeResponse } from './response.ts'

type Decode = (bytes: Uint8Array, options: { readonly maxOutputLength: number }) => Promise<Buffer>

const DECODERS: ReadonlyMap<string, Decode> = new Map<string, Decode>([
  ['gzip', promisify(gunzip)],
  ['x-gzip', promisify(gunzip)],
  ['deflate', promisify(inflate)],
  ['br', promisify(brotliDecompress)],
])

/** Most bytes of a decoded answer. */
const DECODED_BYTES_MAX = 64 * 1_024 * 1_024

/** The answer as it is where the caller takes its coding, or where nobody can undo that; else decoded. */
export async function readableFor(headers: RequestHeaders, response: WholeResponse): Promise<WholeResponse> {
  const field = headerOf(response.headers, 'content-encoding')
  if (field === undefined) return response
  const codings = listOf(field)
  const accepted = acceptEncoding(headers)
  if (accepted === undefined || codings.every((coding) => accepts(accepted, coding))) return response
  let { body } = response
  for (const coding of codings.reverse()) {
    const decoded = await DECODERS.get(coding)?.(body, { maxOutputLength: DECODED_BYTES_MAX }).catch(() => undefined)
    if (decoded === undefined) return response
    body = decoded
  }
  return { ...response, headers: response.headers.filter(([name]) => name !== 'content-encoding'), body }
}

function listOf(field: string): string[] {
  return field
    .split(',')
    .map((part) => part.trim().toLowerCase())
    .filter((part) => part !== '' && part !== 'identity')
}

function acceptEncoding(headers: RequestHeaders): string | undefined {
  if (headers instanceof Headers) return headers.get('accept-encoding') ?? undefined
  const entries = Symbol.iterator in headers ? headers : Object.entries(headers)
  for (const [name, value] of entries) {
    if (name.toLowerCase() === 'accept-encoding' && value !== undefined) return String(value)
  }
  return undefined
}

const REFUSED = /;\s*q\s*=\s*0(?:\.0{0,3})?\s*$/

/** A coding that is named counts as named, else as `*` does. */
function accepts(accepted: string, coding: string): boolean {
  let byStar = false
  for (const part of listOf(accepted)) {
    const name = (part.split(';')[0] ?? '').trim()
    if (name === coding) return !REFUSED.test(part)
    if (name === '*') byStar = !REFUSED.test(part)
  }
  return byStar
}
