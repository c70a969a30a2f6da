/**
 * Ends of an effect that are not a result.
 *
 * @module
 */

/**
 * The provider has said no, for good: an outcome. Stored, and thrown again whenever the operation is resumed. A handler
 * may catch it and go on; if it leaves the handler, the operation is rejected with `{ effect, status, codes }`.
 */
export class EffectRefused extends Error {
  readonly effect: string
  readonly refusal: Refusal

  constructor(effect: string, refusal: Refusal) {
    super(`effect "${effect}" was refused${refusal.status === null ? '' : ` with status ${refusal.status}`}`)
    this.name = 'EffectRefused'
    this.effect = effect
    this.refusal = refusal
  }
}

/** What is kept of a refusal: no text of the provider, which may name people. */
export interface Refusal {
  readonly status: number | null
  readonly codes: readonly string[]
}

/**
 * The operation cannot go on now and is given back: the provider is not available (`processing`), or nobody knows
 * whether the effect has happened (`unknown`). Never an outcome, even when the handler catches it.
 */
export class Suspended extends Error {
  readonly state: 'processing' | 'unknown'
  readonly effect: string
  /** When it is worth coming back, milliseconds; null = only a person or a webhook can help. */
  readonly dueInMs: number | null
  /** A code or a name, for people. */
  readonly reason: string

  constructor(
    effect: string,
    state: 'processing' | 'unknown',
    dueInMs: number | null,
    reason: string,
    options: { readonly cause?: unknown } = {},
  ) {
    super(`effect "${effect}" is ${state === 'unknown' ? 'unknown' : 'not done yet'}: ${reason}`, options)
    this.name = 'Suspended'
    this.effect = effect
    this.state = state
    this.dueInMs = dueInMs
    this.reason = reason
  }
}
