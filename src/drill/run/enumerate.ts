/**
 * Enumerate: from the trace of a run without faults, every place and way in which the handler is going to be hurt.
 *
 * Two windows are equal when the world outside of the process cannot be told apart and the process does not go on: a
 * death in front of the commit leaves the same as a death in front of any other statement of that transaction. Equal
 * windows count as found, and what one of them shows holds for all. Where the process goes on, its own code decides what
 * happens next, so every place is a window of its own.
 *
 * @module
 */

import { type Drill, isRequest } from '../file/checked.ts'
import type { RequestDelivery } from '../file/format.ts'
import type { Side } from '../process/link.ts'
import type { Boundary } from './boundary.ts'
import type { Trace } from './execute.ts'
import { type BoundaryFault, type Fault, type Strike, type Window, windowName } from './window.ts'

export interface FoundWindow {
  readonly window: Window
  readonly name: string
  /** Name of the window whose run answers for this one too. */
  readonly equalTo?: string | undefined
}

/** Statements at which nothing has happened yet that the next one would not meet as well. */
const NOTHING = /^(BEGIN|ROLLBACK|set\b|select pg_|show\b|discard\b|listen\b|deallocate\b|savepoint\b|release\b)/
const LOCKING = /^(insert into|update|delete from|merge into)\b|for update$/
const KEY_HEADER = /^idempotency-key$/i

/** Most telling first, for drills whose time ends before they do. */
const ORDER: readonly Fault[] = [
  'kill',
  'at-once',
  'again',
  'other-payload',
  'retention',
  'reorder',
  'during',
  'lost',
  'timeout',
  'pause',
  'reset',
  'serialization',
  'deadlock',
  'restart',
]

export function windowsOf(drill: Drill, trace: readonly Boundary[]): readonly FoundWindow[] {
  const strikes = strikesOf(trace)
  const found = strikes.map(({ strike, state }) => ({ window: strike as Window, state }))
  for (const fault of deliveryFaults(drill)) found.push({ window: { fault }, state: undefined })
  found.sort((a, b) => ORDER.indexOf(a.window.fault) - ORDER.indexOf(b.window.fault))
  return withEquals(found)
}

/** Most deliveries of which every pair is tried; of more only neighbours are. */
const PAIRED_MAX = 5

/** Where to look when several deliveries go wrong without any fault: each alone, and each behind each. */
export function deliveryWindows({ deliveries }: Drill): readonly FoundWindow[] {
  if (deliveries.length < 2) return []
  const numbers = [...deliveries.keys()]
  const alone = numbers.map((number): Window => ({ fault: 'alone', deliveries: [number] }))
  const behind = numbers.flatMap((first) =>
    numbers
      .filter((second) => second > first && (deliveries.length <= PAIRED_MAX || second === first + 1))
      .map((second): Window => ({ fault: 'behind', deliveries: [first, second] })),
  )
  return [...alone, ...behind].map((window) => ({ window, name: windowName(window) }))
}

/** Second faults for whoever recovered from the first: a new process, or the same one behind the place of the fault. */
export function pairsOf(first: Window, traces: readonly Trace[]): readonly FoundWindow[] {
  return withEquals(
    traces.flatMap(({ actor, boundaries, struckAt }) => {
      const behind = struckAt === undefined ? boundaries : boundaries.slice(boundaries.indexOf(struckAt) + 1)
      return strikesOf(behind)
        .filter(({ strike: { fault } }) => fault === 'kill' || fault === 'lost')
        .map(({ strike, state }) => ({
          window: { ...first, second: { ...strike, actor } },
          state: state === undefined ? undefined : `${actor} ${state}`,
        }))
    }),
  )
}

function withEquals(found: readonly { window: Window; state: string | undefined }[]): readonly FoundWindow[] {
  const first = new Map<string, string>()
  return found.map(({ window, state }) => {
    const name = windowName(window)
    const equalTo = state === undefined ? undefined : first.get(state)
    if (state !== undefined && equalTo === undefined) first.set(state, name)
    return equalTo === undefined ? { window, name } : { window, name, equalTo }
  })
}

interface FoundStrike {
  readonly strike: Strike
  /** What the world looks like when the process ends here; undefined = it goes on. */
  readonly state?: string | undefined
}

function strikesOf(trace: readonly Boundary[]): readonly FoundStrike[] {
  const found: FoundStrike[] = []
  let lasting = 0
  for (const boundary of trace) {
    const { kind, label, nth, position, answer, toldBefore, toldAfter = toldBefore } = boundary
    const add = (fault: BoundaryFault, side: Side, state?: string): void => {
      found.push({ strike: { fault, at: { kind, label, nth, position, side } }, state })
    }
    const nothing = kind === 'sql' && NOTHING.test(label)
    add('kill', 'before', `dead ${lasting} ${toldBefore}`)
    if (!nothing) {
      add('reset', 'before')
      add('during', 'before')
      add('pause', 'before')
    }
    if (kind === 'sql' && !nothing && (answer?.inTransaction === true || label === 'COMMIT')) {
      add('serialization', 'before')
    }
    if (kind === 'sql' && LOCKING.test(label)) add('deadlock', 'before')
    if (answer === undefined) continue
    if (answer.durable) lasting += 1
    add('kill', 'after', `dead ${lasting} ${toldAfter}`)
    if (!answer.durable) continue
    // What goes one way has no answer that could be lost.
    if (answer.text !== 'sent') add('lost', 'after')
    if (kind === 'http') add('timeout', 'after')
    if (kind === 'sql') {
      add('restart', 'before')
      add('restart', 'after')
    }
  }
  return found
}

function deliveryFaults(drill: Drill): readonly Fault[] {
  const faults: Fault[] = ['at-once', 'again']
  if (drill.deliveries.length > 1) faults.push('reorder')
  if (drill.expire !== undefined) faults.push('retention')
  if (otherPayloadOf(drill) !== undefined) faults.push('other-payload')
  return faults
}

/** The first request with a key, and its body changed; undefined = nothing says what another payload would be. */
export function otherPayloadOf({ otherPayload, deliveries }: Drill): Drill['otherPayload'] {
  if (otherPayload !== undefined) return otherPayload
  const keyed = deliveries.find((delivery): delivery is RequestDelivery => isRequest(delivery) && hasKey(delivery))
  const body = keyed?.body
  if (keyed === undefined || typeof body !== 'object' || body === null || Array.isArray(body)) return undefined
  const changed = Object.entries(body).map(([name, value]): [string, unknown] => [name, otherThan(value)])
  return { ...keyed, body: Object.fromEntries(changed) }
}

/** Whether a request carries the key by which its repeats are known. */
export function hasKey({ headers = {} }: RequestDelivery): boolean {
  return Object.keys(headers).some((name) => KEY_HEADER.test(name))
}

function otherThan(value: unknown): unknown {
  if (typeof value === 'number') return value + 1
  return typeof value === 'string' ? `${value}-other` : value
}
