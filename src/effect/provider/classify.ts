/**
 * Classify: what the answer to an attempt says about the effect.
 *
 * Two questions are kept apart. What happened (`kind`), and to which attempts that applies (`decides`): a 401 proves that
 * *this* attempt did nothing, and nothing about an earlier one whose answer was lost. An effect with such an earlier
 * attempt is over only by an answer that decides the effect. (B86, B87, R44)
 *
 * Pure: no clock, no I/O, nothing from the answer is kept but codes and the id of an object.
 *
 * @module
 */

import { codesIn, readBody, valuesAt } from './body.ts'
import type { AnswerKind, AnswerRule, ProviderProfile } from './profile.ts'
import { retryAfterOf } from './retry-after.ts'

/** Headers as fetch gives them, or as an object in any spelling. */
export type AnswerHeaders =
  | { get(name: string): string | null }
  | Readonly<Record<string, string | readonly string[] | number | undefined>>

/** An answer of a provider. */
export interface ProviderAnswer {
  readonly status: number
  readonly headers?: AnswerHeaders | undefined
  /** Text, bytes, or already parsed. */
  readonly body?: unknown
}

/** What an attempt's end means. */
export interface Classified {
  readonly kind: AnswerKind
  /** `effect`: it holds for every attempt with this key. `attempt`: only for the one that ended so. */
  readonly decides: 'effect' | 'attempt'
  /** The provider says that this is the stored answer of an earlier attempt. */
  readonly replayed: boolean
  /** Status of the answer; undefined when none came. */
  readonly status: number | undefined
  /** Codes of the provider, at most 64; of a failed connection, its error code. */
  readonly codes: readonly string[]
  /** How long the provider wants to be left alone, milliseconds; undefined when it does not say. */
  readonly retryAfterMs: number | undefined
  /** The answer is the effect's result. False for an effect that is applied: it exists and has to be read. */
  readonly isResult: boolean
  /** Id of the object that exists already, when the answer names it instead of giving it: read that. */
  readonly existingId: string | undefined
}

/** What holds for a provider of which nothing else is known. */
const GENERAL: readonly AnswerRule[] = [
  { kind: 'applied', status: [200, 299] },
  // A redirect is no answer to the request; where it leads may have been called.
  { kind: 'ambiguous', status: [300, 399] },
  // Sent by proxies too, about a request that the provider may have in full.
  { kind: 'ambiguous', status: 408 },
  { kind: 'inProgress', status: 409 },
  { kind: 'transient', status: 425 },
  { kind: 'transient', status: 429 },
  { kind: 'refused', status: [400, 499] },
]

/**
 * What an answer means. The profile's rules come first, then general ones: 2xx applied, 409 in progress, 425 and 429
 * transient, other 4xx refused, everything else ambiguous. A 5xx with the profile's replay marker is a stored failure.
 */
export function classifyAnswer(profile: ProviderProfile, answer: ProviderAnswer): Classified {
  const header = headerReader(answer.headers)
  const body = readBody(answer.body)
  const codes = codesIn(body, profile.codesAt)
  const replayed = profile.replayMarker !== undefined && carries(header, profile.replayMarker)
  const rule =
    profile.rules.find((candidate) => fits(candidate, answer.status, header, codes, body)) ??
    (replayed && answer.status >= 500 ? STORED : undefined) ??
    GENERAL.find((candidate) => fits(candidate, answer.status, header, codes, body)) ??
    UNDECIDED
  const existing = profile.existingIdAt === undefined ? [] : valuesAt(body, profile.existingIdAt)
  const id = existing.find((value) => typeof value === 'string')
  return {
    kind: rule.kind,
    // A replay is what became of the first attempt, so it speaks for all of them.
    decides: rule.decides ?? (replayed || SPEAKS_FOR_ALL.has(rule.kind) ? 'effect' : 'attempt'),
    replayed,
    status: answer.status,
    codes,
    retryAfterMs: retryAfterOf(header),
    isResult: rule.kind === 'applied' && answer.status < 300,
    existingId: rule.kind === 'applied' ? id : undefined,
  }
}

const STORED: AnswerRule = { kind: 'storedFailure' }
const UNDECIDED: AnswerRule = { kind: 'ambiguous' }
const SPEAKS_FOR_ALL: ReadonlySet<AnswerKind> = new Set(['applied', 'storedFailure', 'mismatch'])

type HeaderReader = (name: string) => string | undefined

function fits(
  rule: AnswerRule,
  status: number,
  header: HeaderReader,
  codes: readonly string[],
  body: unknown,
): boolean {
  if (rule.status !== undefined) {
    const [from, to] = typeof rule.status === 'number' ? [rule.status, rule.status] : rule.status
    if (status < from || status > to) return false
  }
  if (rule.codes !== undefined && !rule.codes.some((code) => codes.includes(code))) return false
  if (rule.header !== undefined && !carries(header, rule.header)) return false
  return rule.has === undefined || valuesAt(body, rule.has).length > 0
}

function carries(
  header: HeaderReader,
  wanted: { readonly name: string; readonly value?: string | undefined },
): boolean {
  const value = header(wanted.name)
  return value !== undefined && (wanted.value === undefined || value.trim().toLowerCase() === wanted.value)
}

function headerReader(headers: AnswerHeaders | undefined): HeaderReader {
  if (headers === undefined) return () => undefined
  if (isHeaders(headers)) return (name) => headers.get(name) ?? undefined
  const byName = new Map<string, string>()
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined) byName.set(name.toLowerCase(), String(Array.isArray(value) ? value[0] : value))
  }
  return (name) => byName.get(name)
}

function isHeaders(headers: AnswerHeaders): headers is { get(name: string): string | null } {
  return typeof Reflect.get(headers, 'get') === 'function'
}
