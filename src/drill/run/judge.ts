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
    /** Told for good that it will not be done, or that it is in conflict with something, as long as it was asked. */
    | 'refused'
    /** Told when to come again, and that is later than the drill waits. */
    | 'pending'
    | 'unsettled'
  /** What it was told when it was done or refused. */
  readonly answer?: string | undefined
  /** So long it was asked again although that was the answer already, milliseconds. */
  readonly vainMs?: number | undefined
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
  /** How a delivery ends without any fault; undefined = nobody knows yet. */
  readonly usually: (delivery: number) => Ended['kind'] | undefined
  /** Another payload under the same key was told that it is done. */
  readonly otherDone?: boolean | undefined
}

export function judge({ ended, counts, expected, sameAnswers, usually, otherDone = false }: Evidence): Verdict {
  const differences = Object.entries(counts).map(([name, count]) => count - (expected[name] ?? 0))
  const all = (...kinds: readonly Ended['kind'][]): boolean => ended.every(({ kind }) => kinds.includes(kind))
  if (differences.some((more) => more > 0)) return 'DUPLICATE'
  if (differences.some((more) => more < 0)) {
    if (all('done')) return 'LOST'
    return all('done', 'pending') ? 'retry pending' : 'STUCK'
  }
  // Its sender believes that something has happened which has not.
  if (otherDone) return 'LOST'
  if (!all('done', 'refused', 'pending')) return 'STUCK'
  return !sameAnswers || (all('done', 'refused') && agree(ended, usually)) ? 'one effect' : 'RESPONSE DIFFERS'
}

/** Whether all senders of a delivery were told the same, and as without any fault that it is done or that it is not. */
function agree(ended: readonly Ended[], usually: Evidence['usually']): boolean {
  const first = new Map<number, string | undefined>()
  return ended.every(({ delivery, kind, answer }) => {
    if (!first.has(delivery)) first.set(delivery, answer)
    return first.get(delivery) === answer && (usually(delivery) ?? kind) === kind
  })
}

/** Whether nothing is wrong with it. */
export const isGood = (verdict: Verdict): boolean => verdict === 'one effect' || verdict === 'retry pending'
