/** 200,000 hostile requests, made from a seed that is printed: only typed answers come back, and none takes long. */
import { expect, test } from 'vitest'
import type { Exchange } from '../../src/http/exchange.ts'
import { Guard } from '../../src/http/guard.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'

const REQUESTS = 200_000
const SEED = Number(process.env['FUZZ_SEED'] ?? 20_261_130)

/** mulberry32 */
function random(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

const PIECES = [
  '"',
  '\\',
  '\\"',
  ',',
  ';',
  '=',
  ' ',
  '\t',
  '\u0000',
  '\u007f',
  'é',
  '\ud800',
  'k',
  'key-1',
  '8e03978e-40d5-43e8-bc93-6894a57f9324',
  '*',
  ':',
  '?1',
  '@1',
  '%"',
  '(',
  ')',
  '__proto__',
  'constructor',
  '1.5',
  ';a=1',
  ';a="x"',
  'k'.repeat(300),
  '"'.repeat(50),
]
const TYPES = [
  'application/json',
  'application/json; charset=utf-16',
  'application/x-www-form-urlencoded',
  'multipart/form-data; boundary=b',
  'multipart/form-data',
  'text/plain;;;',
  '',
  'application/vnd.x+json',
  ';',
  'a/b; c="',
  'application/json, text/plain',
]
const BODIES = [
  '{',
  '}',
  '[',
  ']',
  '"',
  ':',
  ',',
  '{"__proto__":{"x":1}}',
  '1e999',
  '-0',
  '9007199254740993',
  '\\ud800',
  '\ufeff',
  '{"a":1,"a":2}',
  '--b\r\n',
  '--b--',
  'a=1&a=2&%zz',
  '\u0000',
  'null',
  'true',
  '[[[[[[[[',
  '\u2028',
]
const TARGETS = [
  '/orders',
  '/orders?a=1',
  '/orders?%zz=%',
  'http://x/orders',
  '//',
  '/?',
  '/orders?__proto__=1',
  '/\u00e9?&&=',
]

test('T6, T10, T16, SC16: hostile headers and bodies get typed answers only', { timeout: 120_000 }, async () => {
  const next = random(SEED)
  const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)] as T
  const some = (list: readonly string[], most: number) =>
    Array.from({ length: Math.floor(next() * most) }, () => pick(list)).join('')
  const options = { scope: () => 'acme', operation: 'POST /orders', onError: () => {} }
  const guard = new Guard<unknown, null>('fuzz', createOnce({ store: memory() }), options)
  const seen = new Map<string, number>()
  for (let at = 0; at < REQUESTS; at++) {
    const key = next() < 0.3 ? `k${Math.floor(next() * 500)}` : some(PIECES, 6)
    const keyLines = next() < 0.05 ? [key, key] : [key]
    const body = next() < 0.2 ? Uint8Array.from({ length: 20 }, () => next() * 256) : Buffer.from(some(BODIES, 8))
    const exchange: Exchange<unknown, null> = {
      request: null,
      method: 'POST',
      target: pick(TARGETS),
      headers: { 'content-type': pick(TYPES), 'content-encoding': pick(['', 'gzip', ',,', 'identity']) },
      keyLines,
      template: undefined,
      body: async () => ({ bytes: body, contentDecoded: false }),
      run: async () => ({ kind: 'whole', response: { status: 201, headers: [], body } }),
    }
    const answer = await guard.handle(exchange).catch((error: unknown) => {
      throw new Error(`seed ${SEED}, request ${at}: ${JSON.stringify(keyLines)}`, { cause: error })
    })
    const what =
      answer.kind === 'instead'
        ? answer.response.status === 201
          ? 'replay'
          : String((JSON.parse(Buffer.from(answer.response.body).toString()) as { code?: string }).code)
        : answer.kind
    seen.set(what, (seen.get(what) ?? 0) + 1)
  }
  expect([...seen.keys()].sort()).toEqual(['IDEMPOTENCY_KEY_INVALID', 'IDEMPOTENCY_KEY_REUSED', 'handler', 'replay'])
  expect(({} as Record<string, unknown>)['x']).toBeUndefined()
})
