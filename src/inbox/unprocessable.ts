/**
 * Unprocessable: a handler's word that a message can never be applied.
 *
 * @module
 */

const BRAND = Symbol.for('effectively-once.Unprocessable')

/** Thrown by a handler: the message is quarantined at once instead of being tried again. Made by `unprocessable`. */
export class Unprocessable extends Error {
  override readonly name = 'Unprocessable'

  constructor(reason: string, options?: { readonly cause?: unknown }) {
    super(reason, options)
    Object.defineProperty(this, BRAND, { value: true })
  }

  /** Two installed copies of the package agree on it. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && BRAND in value
  }
}

/**
 * An error to throw from a handler when trying again cannot help: the message fails validation, names something that
 * cannot exist. Its writes are rolled back and the message is quarantined with `reason`. (R44)
 *
 * @example
 * if (!isOrder(message.body)) throw unprocessable('no order')
 */
export function unprocessable(reason: string, options?: { readonly cause?: unknown }): Unprocessable {
  return new Unprocessable(reason, options)
}
