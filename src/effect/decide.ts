/**
 * Decide: what to do next about an effect. Pure: no clock, no I/O.
 *
 * The one question is doubt: can an attempt have happened whose fate nobody knows? A crash, a time-out and a 5xx leave
 * doubt; an answer that speaks for the attempt alone does not remove the doubt of an earlier one. Without doubt an effect
 * may be attempted. With doubt it depends on the delivery, and nothing else: the same key while the provider remembers
 * it, a question, or a person. (R17, I10, I11; PROTOCOL C2, C3)
 *
 * @module
 */

import type { Delivery } from './options.ts'
import type { AnswerKind } from './provider/index.ts'

export interface Situation {
  readonly delivery: Delivery
  readonly hasReconcile: boolean
  /** An attempt may have happened whose fate is not known. */
  readonly doubt: boolean
  /** The provider can still be expected to know the key. */
  readonly keyAlive: boolean
  /** A repeat with this key only gets a stored failure, or is refused as another payload. */
  readonly keySpoiled: boolean
}

/**
 * - `call`: attempt it, with the same key and bytes.
 * - `newKey`: record a new key first; only without doubt.
 * - `reconcile`: ask the provider.
 * - `unknown`: nothing that this process may do can decide it.
 */
export type NextAct = 'call' | 'newKey' | 'reconcile' | 'unknown'

export function nextAct({ delivery, hasReconcile, doubt, keyAlive, keySpoiled }: Situation): NextAct {
  const keyed = delivery === 'keyed'
  // Whatever is promised, a repeat with a key that only gets its stored failure again would never end (B86).
  if (!doubt) return keySpoiled || (keyed && !keyAlive) ? 'newKey' : 'call'
  if (delivery === 'at-least-once') return 'call'
  if (keyed && keyAlive && !keySpoiled) return 'call'
  return hasReconcile ? 'reconcile' : 'unknown'
}

/** What an attempt that did not give a result leaves behind. */
export interface Aftermath {
  /** A final "no" of the provider. */
  readonly refused: boolean
  readonly doubt: boolean
  readonly keySpoiled: boolean
}

/**
 * @param before - Whether there was doubt before this attempt.
 * @param decides - Whether the answer speaks of every attempt with the key, or of this one alone.
 * @param proven - Whether it was proven, and not only assumed, that no earlier attempt had done anything.
 */
export function aftermath(
  kind: AnswerKind,
  decides: 'effect' | 'attempt',
  before: boolean,
  proven: boolean,
): Aftermath {
  const settled = !before || decides === 'effect'
  switch (kind) {
    case 'refused':
      return { refused: settled, doubt: before, keySpoiled: false }
    case 'transient':
      return { refused: false, doubt: !settled, keySpoiled: false }
    // What is repeated is the failure of an attempt before the proof; this one did nothing.
    case 'storedFailure':
      return { refused: false, doubt: !proven, keySpoiled: true }
    case 'mismatch':
      return { refused: false, doubt: true, keySpoiled: true }
    // It has happened, but its result is not in this answer, nor will it be in the next one.
    case 'applied':
      return { refused: false, doubt: true, keySpoiled: true }
    case 'inProgress':
    case 'ambiguous':
      return { refused: false, doubt: true, keySpoiled: false }
  }
}

/**
 * Whether reconcile's "not applied" may be believed now.
 *
 * @returns `early`: the last attempt may still be under way; ask again in `waitMs`. `again`: look once more.
 */
export function judgeNotApplied(
  lookedAlready: number,
  facts: { readonly lastAttemptAgeMs: number; readonly settleAfterMs: number; readonly looks: number },
): { readonly kind: 'proven' } | { readonly kind: 'early' | 'again'; readonly waitMs: number } {
  const left = facts.settleAfterMs - facts.lastAttemptAgeMs
  if (left > 0) return { kind: 'early', waitMs: Math.ceil(left) }
  if (lookedAlready + 1 >= facts.looks) return { kind: 'proven' }
  return { kind: 'again', waitMs: facts.settleAfterMs }
}
