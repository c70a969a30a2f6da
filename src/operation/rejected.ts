/**
 * Rejected: a stable business "no". It is an outcome: stored, and replayed to every retry (R13).
 *
 * @module
 */

const BRAND = Symbol.for('effectively-once.Rejected')

/** Made by `rejected(...)`; return it from a work. */
export class Rejected<R> {
  readonly rejection: R

  constructor(rejection: R) {
    this.rejection = rejection
    Object.defineProperty(this, BRAND, { value: true })
  }

  /** Two installed copies of the package agree on what a Rejected is. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && BRAND in value
  }
}

/**
 * Says that the work is refused for good, for a reason that a retry will not change. The work's writes and outbox
 * messages are rolled back; the rejection is then stored in a second short transaction, and only told when stored.
 *
 * @param rejection - Plain JSON data, for instance `{ code: 'CREDIT_LIMIT' }`.
 * @example
 * if (amount > limit) return rejected({ code: 'CREDIT_LIMIT' })
 */
export function rejected<const R>(rejection: R): Rejected<R> {
  return new Rejected(rejection)
}
