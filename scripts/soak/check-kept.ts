/**
 * What lies in the database in the end, against what callers and operators were told: effects that nobody knows (I11),
 * records that are gone (I13), instants of another clock (I14), what kills its process (I15), acts without trace (I16). Pure.
 */
import type { Entry } from './history.ts'

/** An outcome as it is stored. */
export interface KeptOutcome {
  readonly key: string
  /** By the database's clock, milliseconds. */
  readonly createdAt: number
  readonly expiresAt: number
}

/** An effect as it is stored. */
export interface KeptEffect {
  readonly reference: string
  readonly state: 'intended' | 'done' | 'refused' | 'unknown'
  /** The charge that the provider is said to have made. */
  readonly charge: string | undefined
  /** Whether its operation has an outcome. */
  readonly settled: boolean
}

export interface KeptFacts {
  readonly outcomes: readonly KeptOutcome[]
  readonly effects: readonly KeptEffect[]
  /** The provider's own word: the charges that it has made, by reference. */
  readonly charges: ReadonlyMap<string, readonly string[]>
  /** Messages that were applied and whose mark is not there. */
  readonly unmarked: readonly string[]
  /** The database's clock before everything and behind it, and how long outcomes are kept, milliseconds. */
  readonly from: number
  readonly to: number
  readonly retentionMs: number
  /** The job that kills whoever works on it. */
  readonly deadly: { readonly state: string; readonly claims: number; readonly claimsMax: number }
  /** Who did what, and why, as the audit has it. */
  readonly audit: readonly { readonly actor: string; readonly act: string; readonly reason: string }[]
}

/** Record and expiry are written within one transaction, and its statements read the clock one after the other. */
const SLACK_MS = 10_000

export function checkKept(history: readonly Entry[], facts: KeptFacts): readonly string[] {
  return [...effects(facts), ...records(history, facts), ...instants(facts), ...deadly(facts), ...acts(history, facts)]
}

function effects({ effects: kept, charges }: KeptFacts): readonly string[] {
  return kept.flatMap(({ reference, state, charge, settled }) => {
    if (!settled) return []
    if (state !== 'done') return [`I11: the charge of ${reference} is ${state}, and its operation is settled`]
    const made = charges.get(reference) ?? []
    return made.includes(charge ?? '') ? [] : [`I11: ${reference} is settled with a charge that was never made`]
  })
}

function records(history: readonly Entry[], { outcomes, unmarked }: KeptFacts): readonly string[] {
  const there = new Set(outcomes.map(({ key }) => key))
  const keys = new Map<number, string>()
  const gone = new Set<string>()
  for (const entry of history) {
    if (entry.kind === 'asked') keys.set(entry.call, entry.key)
    if (entry.kind !== 'answered' || entry.told !== 'outcome') continue
    const key = keys.get(entry.call)
    if (key !== undefined && !there.has(key)) gone.add(key)
  }
  return [
    ...[...gone].map((key) => `I13: ${key} was told its outcome, and the record is gone`),
    ...unmarked.map((message) => `I13: ${message} was applied, and its mark is gone`),
  ]
}

/** Clocks of the processes are wrong on purpose; what is stored must come from the one of the database. */
function instants({ outcomes, from, to, retentionMs }: KeptFacts): readonly string[] {
  return outcomes.flatMap(({ key, createdAt, expiresAt }) => {
    const found: string[] = []
    if (createdAt < from || createdAt > to) found.push(`I14: ${key} is dated outside of the time of the database`)
    if (expiresAt < from + retentionMs || expiresAt > to + retentionMs + SLACK_MS) {
      found.push(`I14: ${key} is kept by another clock than that of the database`)
    }
    return found
  })
}

function deadly({ deadly: { state, claims, claimsMax } }: KeptFacts): readonly string[] {
  if (state !== 'parked') return [`I15: the job that kills its process is ${state}, and not set aside`]
  return claims === claimsMax ? [] : [`I15: what kills its process was claimed ${claims} times, not ${claimsMax}`]
}

/** An act whose answer was lost may have happened; its audit row says which. */
function acts(history: readonly Entry[], { audit }: KeptFacts): readonly string[] {
  const asked = history.filter((entry) => entry.kind === 'acted')
  const rowsOf = (reason: string): number => audit.filter((row) => row.reason === reason).length
  const reasons = new Set(asked.map(({ reason }) => reason))
  return [
    ...asked
      .filter(({ reason, told }) => told === 'done' && rowsOf(reason) === 0)
      .map(({ reason }) => `I16: an operator was told that it is done, and no row says so: ${reason}`),
    ...asked
      .filter(({ reason, told }) => (told === 'refused' ? rowsOf(reason) > 0 : rowsOf(reason) > 1))
      .map(({ reason }) => `I16: there are more rows than acts: ${reason}`),
    ...audit.filter(({ reason }) => !reasons.has(reason)).map(({ reason }) => `I16: nobody did this: ${reason}`),
  ]
}
