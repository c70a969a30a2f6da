/**
 * Growth of hostile input (T6): the time in which a route has dealt with a key, a header or a body of n, 2n, 4n and 8n
 * bytes, of kinds that make careless parsers quadratic. The result is the largest exponent: 1 = linear.
 *
 * @module
 */

import { randomUUID } from 'node:crypto'
import type * as FetchDoor from '../src/frameworks/fetch/index.ts'
import type * as Testing from '../src/testing/index.ts'
import { median, quartiles } from './paired.ts'
import { type Result, type Say, valueResult } from './report.ts'
import { growth } from './statistics.ts'
import { core, DIST } from './subject.ts'

const door = (await import(new URL('frameworks/fetch/index.js', DIST).href)) as typeof FetchDoor
const { memory } = (await import(new URL('testing/index.js', DIST).href)) as typeof Testing

/** Above 256 KiB bodies are compared as they are, which is one hash. */
const BODY_BYTES = 32_000
const HEADER_BYTES = 4_000
const FACTORS = [1, 2, 4, 8]
const SAMPLES = 15
const EXPONENT_LIMIT = 1.3

interface Sent {
  readonly key?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string
  readonly target?: string
}

/** `piece` again and again, cut at `bytes`. */
const times = (piece: string, bytes: number): string => piece.repeat(Math.ceil(bytes / piece.length)).slice(0, bytes)
/** Numbered members or items up to `bytes`. */
function counted(item: (at: number) => string, bytes: number): string {
  const items: string[] = []
  for (let at = 0, size = 0; size < bytes; at++) {
    const next = item(at)
    items.push(next)
    size += next.length + 1
  }
  return items.join(',')
}

const HEADERS: Readonly<Record<string, (bytes: number) => Sent>> = {
  'key of backslashes': (n) => ({ key: `"${times('\\\\', n)}"` }),
  'key of open quotes': (n) => ({ key: times('"', n) }),
  'key with parameters': (n) => ({ key: `"k"${times(';a=1', n)}` }),
  'key of spaces': (n) => ({ key: `k${times(' ', n)}k` }),
  'media type with parameters': (n) => ({ headers: { 'content-type': `application/json${times('; a="b\\""', n)}` } }),
  'media type of spaces': (n) => ({ headers: { 'content-type': `application/json;${times(' ', n)}x` } }),
  'query of separators': (n) => ({ target: `/orders?${times('&=', n)}` }),
  'query of broken escapes': (n) => ({ target: `/orders?a=${times('%zz%', n)}` }),
}
const form = { 'content-type': 'application/x-www-form-urlencoded' }
const multipart = { 'content-type': 'multipart/form-data; boundary=b' }
const BODIES: Readonly<Record<string, (bytes: number) => Sent>> = {
  'open brackets': (n) => ({ body: times('[', n) }),
  'nested lists': (n) => ({ body: times('[', n / 2) + times(']', n / 2) }),
  'many members': (n) => ({ body: `{${counted((at) => `"${at}":${at}`, n)}}` }),
  'members in reverse': (n) => ({ body: `{${counted((at) => `"${1e6 - at}":0`, n)}}` }),
  'one name twice, many times': (n) => ({ body: `{${counted(() => '"a":1', n)}}` }),
  'a long number': (n) => ({ body: times('9', n) }),
  'a long fraction': (n) => ({ body: `0.${times('0', n)}1` }),
  'many numbers': (n) => ({ body: `[${counted((at) => `${at}.10e-3`, n)}]` }),
  escapes: (n) => ({ body: `"${times('\\u0041', n - (n % 6))}"` }),
  'lone surrogates': (n) => ({ body: `"${times('\\ud800', n - (n % 6))}"` }),
  'white space': (n) => ({ body: `[${times(' \n\t', n)}]` }),
  'an open string': (n) => ({ body: `"${times('\\"', n)}` }),
  'form of separators': (n) => ({ headers: form, body: times('&=', n) }),
  'form of escapes': (n) => ({ headers: form, body: times('%zz', n) }),
  'form of one name': (n) => ({ headers: form, body: times('a=1&', n) }),
  'multipart of boundaries': (n) => ({ headers: multipart, body: times('--b\r\n', n) }),
  'multipart of headers': (n) => ({ headers: multipart, body: `--b\r\n${times('a: b\r\n', n)}` }),
}

/** The largest exponent of all kinds. */
export async function fuzzGrowth(say: Say): Promise<Result> {
  const exponents: number[] = []
  for (const [kinds, least] of [
    [HEADERS, HEADER_BYTES],
    [BODIES, BODY_BYTES],
  ] as const) {
    for (const [name, make] of Object.entries(kinds)) {
      // What is measured first would pay for the compiler, and the exponent would look smaller.
      await timeOf(make(least))
      const points = []
      for (const factor of FACTORS) {
        const size = least * factor
        points.push({ size, time: await timeOf(make(size)) })
      }
      const exponent = growth(points)
      exponents.push(exponent)
      const perByte = points.map(({ size, time }) => ((time * 1e6) / size).toFixed(2)).join(', ')
      say(`  ${name}: exponent ${exponent.toFixed(2)}; ns a byte ${perByte}`)
    }
  }
  return valueResult(
    {
      name: 'http-fuzz-growth',
      value: Math.max(...exponents),
      unit: 'exponent',
      direction: 'lower',
      quartiles: quartiles(exponents),
      pairs: exponents.length,
      limit: EXPONENT_LIMIT,
    },
    say,
  )
}

/** Milliseconds of one request, in the median. Each has a key of its own, unless the key is what is sent. */
async function timeOf({ key, headers = {}, body = '{}', target = '/orders' }: Sent): Promise<number> {
  const once = core.createOnce({ store: memory() })
  const options = { scope: () => 'acme', operation: 'POST /orders', onError: () => {} }
  const route = door.idempotency(once, options, () => new Response('made'))
  const samples: number[] = []
  for (let at = 0; at < SAMPLES; at++) {
    const request = new Request(`http://bench${target}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers, 'idempotency-key': key ?? randomUUID() },
      body,
    })
    const startedAt = performance.now()
    await route(request)
    samples.push(performance.now() - startedAt)
  }
  return median(samples)
}
