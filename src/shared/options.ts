/**
 * Options: wrong arguments are told at once, as a `TypeError` that names the option.
 *
 * @module
 */

import type { Backoff } from './waiting.ts'

/** Refuses members that are not in `known`, so that a misspelt option is never ignored silently. */
export function refuseUnknownOptions(where: string, options: object, known: readonly string[]): void {
  // A signal has no members of its own, so it would pass for "no options" and be ignored.
  if (options instanceof AbortSignal) {
    const instead = known.includes('signal') ? 'takes it as { signal }' : 'takes none'
    throw new TypeError(`${where} got an AbortSignal in place of its options; it ${instead}`)
  }
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TypeError(`${where} takes an object of options, got ${describe(options)}`)
  }
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) {
      throw new TypeError(`${where}: unknown option "${name.slice(0, 64)}"; known: ${known.join(', ')}`)
    }
  }
}

/** A whole number within bounds, or the default when the option is absent. */
export function integerOption(
  where: string,
  value: number | undefined,
  bounds: { readonly min: number; readonly max: number; readonly default: number },
): number {
  if (value === undefined) return bounds.default
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < bounds.min || value > bounds.max) {
    throw new TypeError(`${where} takes a whole number from ${bounds.min} to ${bounds.max}, got ${describe(value)}`)
  }
  return value
}

/** One of a closed list of words, or the default when the option is absent. */
export function choiceOption<T extends string>(
  where: string,
  value: T | undefined,
  choices: readonly T[],
  byDefault: T,
): T {
  if (value === undefined) return byDefault
  if (!choices.includes(value)) throw new TypeError(`${where} takes ${choices.join(' | ')}, got ${describe(value)}`)
  return value
}

/** true or false, or the default when the option is absent. */
export function booleanOption(where: string, value: boolean | undefined, byDefault: boolean): boolean {
  if (value === undefined) return byDefault
  if (typeof value !== 'boolean') throw new TypeError(`${where} takes true or false, got ${describe(value)}`)
  return value
}

/** An AbortSignal, when there is one. */
export function signalOption(where: string, value: AbortSignal | undefined): AbortSignal | undefined {
  if (value !== undefined && !(value instanceof AbortSignal)) {
    throw new TypeError(`${where} takes an AbortSignal, got ${describe(value)}`)
  }
  return value
}

/**
 * Options of a wait: an AbortSignal alone stands for `{ signal }`, so that a bound is never ignored silently.
 *
 * @throws {TypeError} Neither options nor a signal, an unknown option, or a signal that is none.
 */
export function waitOptions<O extends { readonly signal?: AbortSignal | undefined }>(
  where: string,
  given: O | AbortSignal | undefined,
  known: readonly string[],
): Partial<O> & { readonly signal?: AbortSignal | undefined } {
  if (given === undefined) return {}
  if (given instanceof AbortSignal) return { signal: given } as Partial<O>
  refuseUnknownOptions(where, given, known)
  signalOption(`${where}: signal`, given.signal)
  return given
}

/**
 * Refuses a signal or options given to a call that takes none: they would be a bound that nobody keeps. Other values are
 * let through, since a listener is called with whatever its event brings: `process.once('SIGTERM', stop)`.
 *
 * @param instead - What bounds the call.
 */
export function refuseBound(where: string, given: readonly unknown[], instead: string): void {
  const [first] = given
  if (typeof first !== 'object' || first === null) return
  const what = first instanceof AbortSignal ? 'an AbortSignal' : describe(first)
  throw new TypeError(`${where} takes nothing, got ${what}; ${instead}`)
}

/** A function, when there is one. */
export function functionOption<F extends (...args: never[]) => unknown>(
  where: string,
  value: F | undefined,
): F | undefined {
  if (value !== undefined && typeof value !== 'function') {
    throw new TypeError(`${where} takes a function, got ${describe(value)}`)
  }
  return value
}

/** A backoff, each half with its default. `maxMs` is never below `minMs`. */
export function backoffOption(where: string, value: Partial<Backoff> | undefined, byDefault: Backoff): Backoff {
  if (value === undefined) return byDefault
  if (typeof value !== 'object' || value === null) {
    throw new TypeError(`${where} takes { minMs, maxMs }, got ${describe(value)}`)
  }
  refuseUnknownOptions(where, value, ['minMs', 'maxMs'])
  const minMs = integerOption(`${where}.minMs`, value.minMs, { min: 1, max: 3_600_000, default: byDefault.minMs })
  const maxMs = integerOption(`${where}.maxMs`, value.maxMs, {
    min: minMs,
    max: 86_400_000,
    default: Math.max(minMs, byDefault.maxMs),
  })
  return { minMs, maxMs }
}

/** Names a value's kind for a message without showing its content. */
export function describe(value: unknown): string {
  if (value === null) return 'null'
  if (typeof value === 'number') return String(value)
  if (typeof value === 'object') return Array.isArray(value) ? 'an array' : 'an object'
  return typeof value === 'string' ? `a string of ${value.length} characters` : typeof value
}
