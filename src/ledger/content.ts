/**
 * Content of an entry: what is checked before it is sent, and the fingerprint by which a repeat is recognised.
 *
 * @module
 */

import { createHash } from '../shared/crypto.ts'
import { describe, refuseUnknownOptions } from '../shared/options.ts'

/** Minor units (cents), exact: a `bigint`, or whole decimal digits as text. Never a `number`, which rounds. */
export type Amount = bigint | string

/** One line of an entry: what an account gains (positive) or loses (negative). */
export interface Movement {
  /** 1 to 255 bytes; accounts exist by being named. */
  readonly account: string
  /** Minor units, not 0, at most 9_223_372_036_854_775_807 either way. */
  readonly amount: Amount
  /** What is counted: `EUR`, `points`. Letters, digits, `.`, `_` and `-`, 1 to 32. */
  readonly currency: string
}

/** Something that happened, to be recorded once. */
export interface NewEntry {
  /** Names what happened, 1 to 255 bytes: `order-7/charge`. Made from the work's identity, never anew for each attempt. */
  readonly id: string
  /** 2 to 1_000 lines whose amounts sum up to zero in each currency. */
  readonly movements: readonly Movement[]
  /** For people, at most 2_000 bytes. Belongs to the content that a repeat must bring again. */
  readonly note?: string | undefined
}

/** The undoing of an entry. */
export interface NewReversal {
  /** Names the undoing, as for any entry: `order-7/refund`. */
  readonly id: string
  readonly note?: string | undefined
}

/** A line that has been checked. */
export interface CheckedMovement {
  readonly account: string
  readonly amount: bigint
  readonly currency: string
}

const AMOUNT_MAX = 9_223_372_036_854_775_807n
const AMOUNT_TEXT = /^-?\d{1,19}$/
const CURRENCY = /^[A-Za-z0-9._-]{1,32}$/
const NAME_BYTES_MAX = 255
const NOTE_BYTES_MAX = 2_000
const LINES_MAX = 1_000

/** The movements of an entry, checked. Throws a `TypeError` that names what is wrong. */
export function checkedMovements(entry: NewEntry): readonly CheckedMovement[] {
  refuseUnknownOptions('post', entry, ['id', 'movements', 'note'])
  const { movements } = entry
  if (!Array.isArray(movements) || movements.length < 2 || movements.length > LINES_MAX) {
    throw new TypeError(`post: movements takes 2 to ${LINES_MAX} lines`)
  }
  const checked = movements.map((movement: Movement, index) => {
    const where = `movements[${index}]`
    refuseUnknownOptions(where, movement, ['account', 'amount', 'currency'])
    return {
      account: checkedName(`${where}.account`, movement.account),
      amount: checkedAmount(`${where}.amount`, movement.amount),
      currency: checkedCurrency(`${where}.currency`, movement.currency),
    }
  })
  const sums = new Map<string, bigint>()
  for (const { amount, currency } of checked) sums.set(currency, (sums.get(currency) ?? 0n) + amount)
  for (const [currency, sum] of sums) {
    if (sum !== 0n) throw new TypeError(`post: the movements in ${currency} sum up to ${sum}, not to 0`)
  }
  return checked
}

/** An id or an account. PostgreSQL keeps no U+0000, and ill-formed text would become another one on its way. */
export function checkedName(where: string, name: unknown): string {
  if (typeof name !== 'string' || name === '' || name.includes('\0') || !name.isWellFormed()) {
    throw new TypeError(`${where} takes a non-empty string without U+0000 and lone surrogates, got ${describe(name)}`)
  }
  if (Buffer.byteLength(name) > NAME_BYTES_MAX) throw new TypeError(`${where} has more than ${NAME_BYTES_MAX} bytes`)
  return name
}

export function checkedCurrency(where: string, currency: unknown): string {
  if (typeof currency !== 'string' || !CURRENCY.test(currency)) {
    throw new TypeError(`${where} must match ${CURRENCY.source}, got ${describe(currency)}`)
  }
  return currency
}

export function checkedNote(note: unknown): string | null {
  if (note === undefined) return null
  const text = typeof note === 'string' && !note.includes('\0') && note.isWellFormed()
  if (!text || Buffer.byteLength(note) > NOTE_BYTES_MAX) {
    throw new TypeError(`note takes text of at most ${NOTE_BYTES_MAX} bytes without U+0000, got ${describe(note)}`)
  }
  return note
}

function checkedAmount(where: string, amount: unknown): bigint {
  const exact = typeof amount === 'string' && AMOUNT_TEXT.test(amount) ? BigInt(amount) : amount
  if (typeof exact !== 'bigint') {
    throw new TypeError(`${where} takes minor units as bigint or as whole decimal digits, got ${describe(amount)}`)
  }
  if (exact === 0n || exact > AMOUNT_MAX || exact < -AMOUNT_MAX) {
    throw new TypeError(`${where} takes minor units from 1 to ${AMOUNT_MAX} either way`)
  }
  return exact
}

/** Equal for entries that say the same; the order of their lines says nothing. */
export function entryFingerprint(movements: readonly CheckedMovement[], note: string | null): Buffer {
  const lines = movements.map(({ account, amount, currency }) => fields(account, currency, String(amount))).sort()
  return digest(fields('entry', note ?? '', note === null ? '' : 'note', ...lines))
}

export function reversalFingerprint(reversed: string, note: string | null): Buffer {
  return digest(fields('reversal', note ?? '', note === null ? '' : 'note', reversed))
}

/** Length-prefixed, so that no two lists are one text. */
function fields(...texts: readonly string[]): string {
  return texts.map((text) => `${Buffer.byteLength(text)}:${text}`).join('')
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
