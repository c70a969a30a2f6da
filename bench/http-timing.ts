/**
 * Timing of mismatches (T4): whether the time in which a reused key is refused tells in what the stored payload differs.
 *
 * One request, byte for byte the same, is sent under keys whose stored payloads differ from it in one respect each; the
 * samples are interleaved in random order. What the caller chooses himself (how long his request is) is not looked
 * at: he learns nothing from it. The route is called as a function over the memory store, without sockets and
 * database, whose noise would hide a leak that many requests could still find.
 *
 * @module
 */

import type * as FetchDoor from '../src/frameworks/fetch/index.ts'
import type * as Testing from '../src/testing/index.ts'
import { median } from './paired.ts'
import { type Result, type Say, valueResult } from './report.ts'
import { welch } from './statistics.ts'
import { core, DIST } from './subject.ts'

const door = (await import(new URL('frameworks/fetch/index.js', DIST).href)) as typeof FetchDoor
const { memory } = (await import(new URL('testing/index.js', DIST).href)) as typeof Testing

const ROUNDS = 30_000
const WARM_UP = 5_000
/** Samples above this share of the pooled ones are collections of garbage and other work of the machine. */
const CROP = 0.9
/** Above it the means differ, as is usual for tests of constant time. */
const T_LIMIT = 4.5
const URL_OF_ROUTE = 'http://bench/orders'

const payload = (parts: { first?: string; deep?: string; last?: string; more?: object } = {}) => ({
  customer: `${parts.first ?? 'a'}${'c'.repeat(200)}`,
  lines: Array.from({ length: 20 }, (_, at) => ({ sku: `sku-${at}`, detail: { note: { text: 'n'.repeat(20) } } })),
  deep: { a: { b: { c: { d: { e: parts.deep ?? 'a' } } } } },
  note: `${'z'.repeat(200)}${parts.last ?? 'a'}`,
  ...parts.more,
})

/** What the stored payloads differ in from the request; `control` differs as `nothing alike` does, under another key. */
const STORED: Readonly<Record<string, { readonly body: string; readonly type?: string }>> = {
  'nothing alike': { body: JSON.stringify({ nothing: 'alike' }) },
  control: { body: JSON.stringify({ nothing: 'alike' }) },
  'first byte': { body: JSON.stringify(payload({ first: 'b' })) },
  'last byte': { body: JSON.stringify(payload({ last: 'b' })) },
  'deep member': { body: JSON.stringify(payload({ deep: 'b' })) },
  'one member more': { body: JSON.stringify(payload({ more: { one: 1 } })) },
  'a hundred times longer': { body: JSON.stringify(payload({ more: { long: 'l'.repeat(100_000) } })) },
  'raw fingerprint': { body: JSON.stringify(payload()), type: 'application/octet-stream' },
}
const REFERENCE = 'nothing alike'
const CONTROL = 'control'

/** The largest |t| of all ways to differ, with plain and with keyed fingerprints. */
export async function mismatchTiming(say: Say): Promise<Result> {
  const secrets = { current: 'k', keys: { k: new Uint8Array(32).fill(7) } }
  const found: number[] = []
  const controls: number[] = []
  for (const [kind, options] of [
    ['plain', {}],
    ['keyed', { secrets }],
  ] as const) {
    const samples = await sampled(core.createOnce({ store: memory(), ...options }))
    const reference = samples.get(REFERENCE) ?? []
    for (const [name, own] of samples) {
      if (name === REFERENCE) continue
      const { t, error } = welch(own, reference)
      if (name === CONTROL) controls.push(Math.abs(t))
      else found.push(Math.abs(t))
      const [mine, its] = [median(own), median(reference)].map((ms) => (ms * 1_000).toFixed(2))
      const seen = (error * 1e6 * T_LIMIT).toFixed(0)
      say(
        `  ${kind}, ${name}: median ${mine} us against ${its} us, t ${t.toFixed(2)}; a difference of ${seen} ns would be seen`,
      )
    }
  }
  const value = Math.max(...found)
  const sorted = [...found].sort((a, b) => a - b)
  const quartile = (share: number) => sorted[Math.floor((sorted.length - 1) * share)] ?? value
  return valueResult(
    {
      name: 'http-mismatch-timing',
      value,
      unit: '|t|',
      direction: 'lower',
      baseline: Math.max(...controls),
      quartiles: [quartile(0.25), quartile(0.75)],
      pairs: ROUNDS,
      limit: T_LIMIT,
    },
    say,
  )
}

/** Times of refusals in milliseconds, by what the stored payload differs in. */
async function sampled(once: ReturnType<typeof core.createOnce>): Promise<ReadonlyMap<string, readonly number[]>> {
  const route = door.idempotency(once, { scope: () => 'acme', operation: 'POST /orders' }, () => new Response('made'))
  const call = (key: string, body: string, type = 'application/json') =>
    route(
      new Request(URL_OF_ROUTE, { method: 'POST', body, headers: { 'idempotency-key': key, 'content-type': type } }),
    )
  const names = Object.keys(STORED)
  for (const [at, { body, type }] of Object.values(STORED).entries()) {
    const { status } = await call(`key-${at}`, body, type)
    if (status !== 200) throw new Error(`a first request was answered ${status}`)
  }
  const asked = JSON.stringify(payload())
  const all = names.map((name) => ({ name, times: [] as number[] }))
  for (let round = 0; round < WARM_UP + ROUNDS; round++) {
    for (const at of shuffled(names.length)) {
      const key = `key-${at}`
      const startedAt = performance.now()
      const { status } = await call(key, asked)
      const took = performance.now() - startedAt
      if (status !== 422) throw new Error(`${names[at]} was answered ${status}`)
      if (round >= WARM_UP) all[at]?.times.push(took)
    }
  }
  const pooled = all.flatMap(({ times }) => times).sort((a, b) => a - b)
  const most = pooled[Math.floor(pooled.length * CROP)] ?? Number.POSITIVE_INFINITY
  return new Map(all.map(({ name, times }) => [name, times.filter((time) => time <= most)]))
}

function shuffled(length: number): number[] {
  const order = Array.from({ length }, (_, at) => at)
  for (let at = length - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1))
    ;[order[at], order[other]] = [order[other] ?? 0, order[at] ?? 0]
  }
  return order
}
