/**
 * Judge: what a run has shown, from how its deliveries ended and how often the effect is there.
 *
 * @module
 */

export type Verdict = 'one effect' | 'retry pending' | 'DUPLICATE' | 'LOST' | 'STUCK' | 'RESPONSE DIFFERS'

/** How one delivery ended for one of its senders. */
export interface Ended {
  /** Which delivery of the drill, from 0. */
  readonly delivery: number
  readonly kind:
    | 'done'
    /** Told for good that it will not be done. */
    | 'refused'
    /** Told when to come again, and that is later than the drill waits. */
    | 'pending'
    /** The last answer was a conflict: somebody else is said to have done it, or to be doing it. */
    | 'conflict'
    | 'unsettled'
  /** What it was told when it was done. */
  readonly answer?: string | undefined
  /** Why it did not end, or not well. */
  readonly reason: string
}

export interface Evidence {
  readonly ended: readonly Ended[]
  readonly counts: Readonly<Record<string, number>>
  /** What is promised, for each count. */
  readonly expected: Readonly<Record<string, number>>
  /** Whether every answer to the same delivery must be the same. */
  readonly sameAnswers: boolean
  /** Another payload under the same key was told that it is done. */
  readonly otherDone?: boolean | undefined
}

export function judge({ ended, counts, expected, sameAnswers, otherDone = false }: Evidence): Verdict {
  const differences = Object.entries(counts).map(([name, count]) => count - (expected[name] ?? 0))
  const all = (...kinds: readonly Ended['kind'][]): boolean => ended.every(({ kind }) => kinds.includes(kind))
  if (differences.some((more) => more > 0)) return 'DUPLICATE'
  if (differences.some((more) => more < 0)) {
    if (all('done')) return 'LOST'
    return all('done', 'pending') ? 'retry pending' : 'STUCK'
  }
  // Its sender believes that something has happened which has not.
  if (otherDone) return 'LOST'
  if (!all('done', 'refused', 'pending', 'conflict')) return 'STUCK'
  return !sameAnswers || (all('done') && agree(ended)) ? 'one effect' : 'RESPONSE DIFFERS'
}

function agree(ended: readonly Ended[]): boolean {
  const first = new Map<number, string | undefined>()
  return ended.every(({ delivery, answer }) => {
    if (!first.has(delivery)) first.set(delivery, answer)
    return first.get(delivery) === answer
  })
}

/** Whether nothing is wrong with it. */
export const isGood = (verdict: Verdict): boolean => verdict === 'one effect' || verdict === 'retry pending'
