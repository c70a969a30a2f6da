/**
 * The most frequent entry: one amount from one account to another.
 *
 * @module
 */

import type { Amount, Movement } from './content.ts'

/** Movements that take `amount` (minor units, positive) from one account and give it to another. */
export function transfer(
  from: string,
  to: string,
  amount: Amount,
  currency: string,
): readonly [taken: Movement, given: Movement] {
  const text = String(amount)
  if (typeof amount !== 'bigint' && typeof amount !== 'string') {
    throw new TypeError('transfer takes minor units as bigint or as whole decimal digits')
  }
  if (text.startsWith('-') || /^0*$/.test(text)) throw new TypeError('transfer takes an amount above 0')
  return [
    { account: from, amount: `-${text}`, currency },
    { account: to, amount, currency },
  ]
}
