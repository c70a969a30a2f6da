/** Moment: a step of a path is begun or answered, and what it has changed outside of the process. */
import type { Boundary } from '../../src/drill/run/boundary.ts'

/** What lay outside behind a step. */
export interface Look {
  /** The same for the same rows. */
  readonly digest: string
  /** Tables with other rows than before. */
  readonly changed: readonly string[]
}

/** The moments of a run stand in the order in which they happened. */
export interface Moment {
  /** What is asked: as a statement calls itself, else its label. */
  readonly what: string
  readonly boundary: Boundary
  readonly side: 'before' | 'after'
  /** Undefined when it left the database as it was. */
  readonly look?: Look | undefined
}

/** What a step has changed for good, by its name; undefined when it has changed nothing, or nothing yet. */
export function changeOf({ what, boundary: { kind, answer }, side, look }: Moment): string | undefined {
  if (side === 'before') return undefined
  const lasts = kind === 'sql' ? look !== undefined : answer?.durable === true
  return lasts ? [kind, what, ...(look?.changed ?? [])].join(' ') : undefined
}
