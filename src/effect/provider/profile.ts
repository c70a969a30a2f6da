/**
 * Provider profile: what one provider of an API promises about keys, as data.
 *
 * A profile answers five questions that decide whether a call may be repeated: where does the key go and what fits there,
 * how long is it remembered, what does a replay look like, which answers mean "not yet" or "never", and how is the
 * truth looked up when no answer came. Everything else is code that reads profiles: `./key.ts` and `./classify.ts`.
 *
 * Yours differs from one of ours? `{ ...providers.paypal, keyLifetimeMs: 21_600_000 }`.
 *
 * @module
 */

import { describe } from '../../shared/options.ts'

/** What the characters of a key may be. All are ASCII, so a character is a byte. */
export type KeyCharset =
  /** U+0021 to U+007E. */
  | 'visible-ascii'
  /** The same without `"`, `,`, `;` and `\\`, which mean something in a header that is parsed as a structured field. */
  | 'bare'
  /** Letters, digits, `-` and `_`. */
  | 'token'
  /** The 36 characters of a UUID in lower case. */
  | 'uuid'

/** Where a request carries the key. */
export interface KeyPlace {
  /**
   * - `header`: the header `name`.
   * - `body`: the member `name` of the body; dots lead into it.
   * - `directive`: a directive of the GraphQL mutation; `name` is `@directive(argument:)`.
   * - `none`: the provider takes no key.
   */
  readonly in: 'header' | 'body' | 'directive' | 'none'
  readonly name: string
  /** Most characters of a key. */
  readonly lengthMax: number
  readonly charset: KeyCharset
}

/** What an answer says about the effect. */
export type AnswerKind =
  /** It has happened, by this attempt or an earlier one with the same key. */
  | 'applied'
  /** It has not happened, and the same request will not make it happen: an outcome. */
  | 'refused'
  /** This attempt did nothing for certain; the same request may succeed later. */
  | 'transient'
  /** Another attempt with this key is still running: wait with the same key and adopt its result. */
  | 'inProgress'
  /** The provider repeats a failure that it stored for this key; it will do so for ever, so ask instead of repeating. */
  | 'storedFailure'
  /** The key was used with another payload. */
  | 'mismatch'
  /** It may or may not have happened. */
  | 'ambiguous'

/** One line of a profile: an answer that has all of these properties has this meaning. The first line that fits counts. */
export interface AnswerRule {
  readonly kind: AnswerKind
  /** Statuses, one or `[from, to]`. Absent: any. */
  readonly status?: number | readonly [from: number, to: number] | undefined
  /** One of these is among the codes that the body holds (see `codesAt`). Compared exactly. */
  readonly codes?: readonly string[] | undefined
  /** A header that must be there, and its value where that matters. Names in lower case. */
  readonly header?: { readonly name: string; readonly value?: string | undefined } | undefined
  /** The body holds something at this path: tells errors from data where the status is 200 for both. */
  readonly has?: string | undefined
  /**
   * Whether the answer speaks of every attempt with this key (`effect`) or of the one that it answers (`attempt`). A
   * refusal from before the key was looked up says nothing about an earlier attempt whose answer was lost. Default:
   * `effect` for applied, storedFailure and mismatch, `attempt` for all others.
   */
  readonly decides?: 'effect' | 'attempt' | undefined
}

/** How the truth is looked up when no answer came. */
export interface LookUp {
  /**
   * - `key`: by repeating the request, or by a filter on the key.
   * - `reference`: by a reference of ours that the request carried.
   * - `list`: by going through a list since the first attempt.
   * - `none`: it cannot be asked.
   */
  readonly by: 'key' | 'reference' | 'list' | 'none'
  /** What to call and what to compare, for whoever writes `reconcile`. */
  readonly how: string
}

export interface ProviderProfile {
  /** Short name, in lower case; stored with effects. */
  readonly name: string
  readonly title: string
  readonly key: KeyPlace
  /**
   * How long the provider remembers a key, milliseconds since its first use. `null`: for ever. Absent: not published,
   * or different from call to call; see {@link keyLifetimeOf}.
   */
  readonly keyLifetimeMs?: number | null | undefined
  /**
   * What the provider does with a failure (5xx) of a first attempt when the key comes again.
   *
   * - `replays`: gives the same failure again.
   * - `continues`: goes on with the work, or starts it again.
   * - `refuses`: says that the first attempt failed and wants a new key.
   * - `unknown`: not published.
   */
  readonly storedFailures: 'replays' | 'continues' | 'refuses' | 'unknown'
  /**
   * What a replay of a success is: the `first` answer again, or the state that the object has by now (`current`), in
   * which an amount may since have been refunded.
   */
  readonly replays: 'first' | 'current' | 'reference'
  /** Header that marks a replay, in lower case; its value where one is promised. */
  readonly replayMarker?: { readonly name: string; readonly value?: string | undefined } | undefined
  /** Paths in the body where codes stand; `*` is every element or member. Text that is no JSON is searched for `<Code>`. */
  readonly codesAt: readonly string[]
  /** First line that fits counts; then the general rules of `classifyAnswer`. */
  readonly rules: readonly AnswerRule[]
  /** Path of the id of an object that exists already, in an answer that is `applied` without being one of success. */
  readonly existingIdAt?: string | undefined
  readonly lookUp: LookUp
  /** What is easy to get wrong with this provider. */
  readonly notes: readonly string[]
  /** Where each fact stands. */
  readonly sources: readonly { readonly fact: string; readonly at: string }[]
}

/**
 * What is assumed about a provider that does not publish how long it remembers keys: the shortest time that one of the
 * payment providers here publishes. Milliseconds: three hours.
 */
export const KEY_LIFETIME_ASSUMED_MS = 10_800_000

/**
 * How long a key of this provider is safe to be sent again, milliseconds since its first use; `null` = for ever. After
 * that a repeat may be a second effect, so only a look-up or a person can decide. (B90)
 */
export function keyLifetimeOf(profile: ProviderProfile): number | null {
  return profile.keyLifetimeMs === undefined ? KEY_LIFETIME_ASSUMED_MS : profile.keyLifetimeMs
}

/** Below this, a hashed key would have fewer than 128 random bits. */
export const KEY_LENGTH_MIN = 26

/** Refuses a profile that cannot be right, as a `TypeError` that names the member. */
export function checkProfile(profile: ProviderProfile): ProviderProfile {
  if (typeof profile !== 'object' || profile === null) {
    throw new TypeError(`a provider profile is an object, got ${describe(profile)}`)
  }
  const { name, key, keyLifetimeMs } = profile
  if (typeof name !== 'string' || !/^[a-z][a-z0-9-]{0,62}$/.test(name)) {
    throw new TypeError(`profile.name must match /^[a-z][a-z0-9-]{0,62}$/, got ${describe(name)}`)
  }
  const { lengthMax, charset } = key
  if (!Number.isSafeInteger(lengthMax) || lengthMax < KEY_LENGTH_MIN || lengthMax > 4_096) {
    throw new TypeError(
      `profile.key.lengthMax takes a whole number from ${KEY_LENGTH_MIN} to 4096, got ${describe(lengthMax)}`,
    )
  }
  if (!['visible-ascii', 'bare', 'token', 'uuid'].includes(charset)) {
    throw new TypeError(`profile.key.charset takes visible-ascii | bare | token | uuid, got ${describe(charset)}`)
  }
  if (charset === 'uuid' && lengthMax < 36) {
    throw new TypeError(`profile.key.lengthMax: a UUID has 36 characters, got ${lengthMax}`)
  }
  // 0 is not "unset" (B16): a provider that remembers nothing takes no key.
  const bounded = typeof keyLifetimeMs === 'number' && Number.isSafeInteger(keyLifetimeMs) && keyLifetimeMs > 0
  if (keyLifetimeMs !== undefined && keyLifetimeMs !== null && !bounded) {
    throw new TypeError(
      `profile.keyLifetimeMs takes whole milliseconds above 0 or null, got ${describe(keyLifetimeMs)}`,
    )
  }
  return profile
}
