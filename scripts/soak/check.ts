/**
 * Check: what the callers were told, against what is there in the end. Pure.
 *
 * A key is a register that is written once: (payload, outcome). The calls of a key are linearizable if there is one
 * order of them, agreeing with the moments of asking and being answered, in which the first decided call writes the
 * register and every other reads it. With one write this comes down to four rules: all outcomes are one; each was told
 * to the payload that wrote it; that payload was asked before anybody was told; and a mismatch was told to another
 * payload, while some other one had been asked.
 */
import { judge } from '../../test/torture/oracle.ts'
import type { Answered, Asked, Entry, Route } from './history.ts'

/** What was found after the last call. */
export interface Facts {
  /** Rows of the application for each key: the outcome that each stands for. */
  readonly rows: ReadonlyMap<string, readonly string[]>
  /** How often the provider has applied each charge. */
  readonly effects: ReadonlyMap<string, number>
  /** Operations and messages that wait although nothing is left to wait for. */
  readonly stuck: readonly string[]
  /** The last number that was committed for each ordering key; they count from 1. */
  readonly committed: ReadonlyMap<string, number>
  /** Messages as they came off the broker, in order. */
  readonly arrivals: readonly { readonly key: string; readonly n: number }[]
  /** Messages as the consumer has applied them, in order. */
  readonly projected: readonly { readonly key: string; readonly n: number }[]
}

interface Call {
  readonly asked: Asked
  readonly answer: Answered | undefined
}

/** Violations, each with the guarantee that it breaks. */
export function check(history: readonly Entry[], facts: Facts): readonly string[] {
  const calls = new Map<string, Call[]>()
  const answers = new Map<number, Answered>()
  for (const entry of history) if (entry.kind === 'answered') answers.set(entry.call, entry)
  for (const entry of history) {
    if (entry.kind !== 'asked') continue
    const known = calls.get(entry.key) ?? []
    known.push({ asked: entry, answer: answers.get(entry.call) })
    calls.set(entry.key, known)
  }
  return [
    ...[...calls].flatMap(([key, ofKey]) => checkKey(key, ofKey, facts)),
    ...[...facts.rows.keys()].filter((key) => !calls.has(key)).map((key) => `I1: ${key} was never asked and is there`),
    ...facts.stuck.map((what) => `I12: ${what}`),
    ...checkMessages(facts),
  ]
}

function checkKey(key: string, calls: readonly Call[], { rows, effects }: Facts): readonly string[] {
  const found: string[] = []
  const route = calls[0]?.asked.route as Route
  const decided = calls.filter(({ answer }) => answer?.told === 'outcome')
  const outcomes = [...new Set(decided.map(({ answer }) => answer?.outcome ?? ''))]
  const there = rows.get(key) ?? []
  if (outcomes.length > 1) found.push(`I3: ${key} was answered in two ways: ${outcomes.join(' and ')}`)
  if (decided.length === 0) found.push(`I12: ${key} has no outcome`)
  if (there.length > 1) found.push(`I1: ${key} took effect ${there.length} times`)
  if (decided.length > 0 && there.length === 0) found.push(`I2: ${key} was acknowledged and is not there`)
  const [outcome] = outcomes
  if (outcome !== undefined && there.length === 1 && there[0] !== outcome) {
    found.push(`I3: ${key} was answered ${outcome}, and ${there[0]} is there`)
  }
  found.push(...checkPayloads(key, calls, decided))
  const applied = effects.get(key) ?? 0
  if (route !== 'order' && applied > 1) found.push(`I10: ${key} was charged ${applied} times`)
  if (route !== 'order' && there.length > 0 && applied === 0) found.push(`I10: ${key} is booked and was never charged`)
  return found
}

function checkPayloads(key: string, calls: readonly Call[], decided: readonly Call[]): readonly string[] {
  const found: string[] = []
  const payloads = [...new Set(decided.map(({ asked }) => asked.payload))]
  const [winner] = payloads
  if (payloads.length > 1) found.push(`I4: ${key} gave its outcome to two payloads`)
  const first = Math.min(...decided.map(({ answer }) => answer?.at ?? Number.POSITIVE_INFINITY))
  if (winner !== undefined && !calls.some(({ asked }) => asked.payload === winner && asked.at <= first)) {
    found.push(`I1: ${key} was answered before it was asked`)
  }
  for (const { asked, answer } of calls) {
    if (answer?.told !== 'mismatch') continue
    const others = calls.some((other) => other.asked.payload !== asked.payload && other.asked.at <= answer.at)
    if (!others) found.push(`I4: ${key} was called a mismatch with nothing`)
    // Until it is decided the holder of the key may still give it up.
    if (asked.payload === winner && answer.at >= first) found.push(`I4: ${key} called its own payload a mismatch`)
  }
  return found
}

/** Order is promised where messages are published (I8); a consumer that died leaves some that come again behind others. */
function checkMessages({ arrivals, projected, committed }: Facts): readonly string[] {
  const timeless = arrivals.map((arrival) => ({ ...arrival, atMs: 0 }))
  const published = judge(timeless, committed, [0], 0)
  const applied = judge(
    projected.map((row) => ({ ...row, atMs: 0 })),
    committed,
    [],
    0,
  )
  const times = new Map<string, number>()
  for (const { key, n } of projected) times.set(`${key}#${n}`, (times.get(`${key}#${n}`) ?? 0) + 1)
  return [
    ...published.skipped.map((name) => `I7: ${name} was committed and never published`),
    ...published.invented.map((name) => `I6: ${name} was published and never committed`),
    ...published.outOfOrder.map((name) => `I8: ${name} was published behind a later one of its key`),
    ...applied.skipped.map((name) => `I9: ${name} was never applied`),
    ...applied.invented.map((name) => `I9: ${name} was applied and never committed`),
    ...[...times].filter(([, count]) => count > 1).map(([name, count]) => `I9: ${name} was applied ${count} times`),
  ]
}
