/**
 * Checked: a drill file with its defaults filled in, or a TypeError that names what is wrong with it.
 *
 * @module
 */

import { basename } from 'node:path'
import type { Count, Delivery, DrillFile, JobDelivery, MessageDelivery, RequestDelivery } from './format.ts'

/** A drill file, ready to be run. */
export interface Drill {
  readonly name: string
  readonly path: string
  readonly setUp: DrillFile['setUp']
  readonly queues: readonly string[]
  readonly provider: DrillFile['provider']
  readonly deliveries: readonly Delivery[]
  readonly counts: readonly (readonly [name: string, count: Count])[]
  readonly expected: number
  readonly expire: DrillFile['expire']
  readonly otherPayload: Delivery | undefined
  readonly sameResponse: boolean | undefined
  readonly leaseMs: number
  readonly settleMs: number
}

const LEASE_MS = 1_000
const SETTLE_MS = 3_000
const LONGEST_MS = 600_000

/** @throws {TypeError} when the module's default export is no drill. */
export function checkedDrill(module: unknown, path: string): Drill {
  const file = (module as { readonly default?: unknown }).default
  const wrong = (what: string): never => {
    throw new TypeError(`${path}: ${what}`)
  }
  if (typeof file !== 'object' || file === null) return wrong('a drill file exports { start, effects } by default')
  const {
    name,
    setUp,
    queues = [],
    provider,
    start,
    deliver = { job: {} },
    effects,
    expect,
    leaseMs,
    settleMs,
  } = file as DrillFile
  if (typeof start !== 'function') wrong('`start` must be the function that starts the handler')
  if (effects === undefined) wrong('`effects` must say what is counted')
  const deliveries = Array.isArray(deliver) ? (deliver as readonly Delivery[]) : [deliver as Delivery]
  if (deliveries.length === 0) wrong('`deliver` must hold at least one delivery')
  for (const delivery of deliveries) {
    if (!isRequest(delivery) && !isMessage(delivery) && !isJob(delivery)) {
      wrong('a delivery has `path` (a request), `queue` (a message) or `job`')
    }
  }
  const counts = countsOf(effects)
  if (counts.length === 0) wrong('`effects` must say what is counted')
  for (const [which, count] of counts) {
    if (!isCount(count)) wrong(`\`effects\` (${which}) must be SQL, a function or { queue }`)
  }
  const lease = milliseconds(leaseMs, LEASE_MS, '`leaseMs`', wrong)
  const named = [
    ...deliveries.filter(isMessage).map(({ queue }) => queue),
    ...counts.flatMap(([, count]) => queueOf(count)),
  ]
  return {
    name: name ?? basename(path).replace(/(\.drill)?\.[cm]?[jt]sx?$/, ''),
    path,
    setUp,
    queues: [...new Set([...queues, ...named])],
    provider,
    deliveries,
    counts,
    expected: expect ?? deliveries.length,
    expire: (file as DrillFile).expire,
    otherPayload: (file as DrillFile).otherPayload,
    sameResponse: (file as DrillFile).sameResponse,
    leaseMs: lease,
    settleMs: milliseconds(settleMs, Math.max(SETTLE_MS, 3 * lease), '`settleMs`', wrong),
  }
}

export const isRequest = (delivery: Delivery): delivery is RequestDelivery => 'path' in delivery
export const isMessage = (delivery: Delivery): delivery is MessageDelivery => 'queue' in delivery
export const isJob = (delivery: Delivery): delivery is JobDelivery => 'job' in delivery

function countsOf(effects: DrillFile['effects']): readonly (readonly [string, Count])[] {
  return isCount(effects) ? [['effects', effects]] : Object.entries(effects)
}

function isCount(effects: unknown): effects is Count {
  if (typeof effects === 'string' || typeof effects === 'function') return true
  return typeof effects === 'object' && effects !== null && typeof (effects as { queue?: unknown }).queue === 'string'
}

function queueOf(count: Count): readonly string[] {
  return typeof count === 'object' ? [count.queue] : []
}

function milliseconds(
  value: number | undefined,
  otherwise: number,
  name: string,
  wrong: (what: string) => never,
): number {
  if (value === undefined) return otherwise
  if (Number.isFinite(value) && value >= 0 && value <= LONGEST_MS) return value
  return wrong(`${name} must be 0 to ${LONGEST_MS} milliseconds`)
}
