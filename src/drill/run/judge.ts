/**
 * Judge: what a run has shown, from how its deliveries ended and how often the effect is there.
 *
 * @module
 */

export type Verdict = 'one effect' | 'retry pending' | 'DUPLICATE' | 'LOST' | 'STUCK' | 'RESPONSE DIFFERS'

/** How one delivery ended. */
export interface Ended {
  /** `pending`: it was told when to come again, and that is later than the drill waits. */
  readonly kind: 'done' | 'refused' | 'pending' | 'unsettled'
  /** Different answers that said "done". */
  readonly answers: readonly string[]
  /** Last reason why it did not end. */
  readonly reason: string
}

export interface Evidence {
  readonly ended: readonly Ended[]
  readonly counts: Readonly<Record<string, number>>
  readonly expected: number
  /** Whether every answer to the same delivery must be the same. */
  readonly sameAnswers: boolean
}

export function judge({ ended, counts, expected, sameAnswers }: Evidence): Verdict {
  const numbers = Object.values(counts)
  const all = (...kinds: readonly Ended['kind'][]): boolean => ended.every(({ kind }) => kinds.includes(kind))
  if (numbers.some((count) => count > expected)) return 'DUPLICATE'
  if (numbers.some((count) => count < expected)) {
    if (all('done')) return 'LOST'
    return all('done', 'pending') ? 'retry pending' : 'STUCK'
  }
  if (!all('done', 'refused', 'pending')) return 'STUCK'
  if (!sameAnswers) return 'one effect'
  return all('done') && ended.every(({ answers }) => new Set(answers).size <= 1) ? 'one effect' : 'RESPONSE DIFFERS'
}

/** Whether nothing is wrong with it. */
export const isGood = (verdict: Verdict): boolean => verdict === 'one effect' || verdict === 'retry pending'
