/**
 * Progress: one step of a stream or a schedule, as an operation whose key is the step's number.
 *
 * The gate of operations keeps two that go on from the same number apart, decides a lost answer to COMMIT, and tells one of
 * them that the step was done. What was read before may be old all the same; then the advance itself is fenced.
 *
 * @module
 */

import type { WorkContext } from '../operation/attempt.ts'
import type { Engine } from '../operation/engine.ts'
import { identify, type Scope } from '../operation/identity.ts'
import type { TransactionOptions } from '../operation/transaction.ts'
import { runTransaction } from '../operation/transaction.ts'
import type { ProgressIdentity, ProgressRecord } from '../store/progress.ts'

/** Where a work goes on from, and how. */
export interface Advance {
  /** JSON text of the next position; undefined = there is nothing to do, and what the work has written is rolled back. */
  readonly position: string | undefined
}

/**
 * - `advanced`: the work and the next position have committed.
 * - `idle`: the work found nothing to do; rolled back.
 * - `overtaken`: somebody else was faster; nothing of the work is there. Read again.
 */
export type Advanced = 'advanced' | 'idle' | 'overtaken'

/** Steps are told apart by their numbers for ever; their records are for whoever has not heard of the commit. */
const RECORD_MS = 3_600_000

export function progressOf(kind: string, scope: Scope, name: string): ProgressIdentity {
  const parts = typeof scope === 'string' ? [scope] : scope
  return { ...identify([kind, ...parts], name), name }
}

/** @throws what `once.transaction` throws. */
export async function advance<Tx>(
  engine: Engine<Tx>,
  identity: ProgressIdentity,
  { number }: Pick<ProgressRecord, 'number'>,
  work: (context: WorkContext<Tx>) => Promise<Advance>,
  options: Omit<TransactionOptions, 'retentionMs' | 'optimistic'> = {},
): Promise<Advanced> {
  const operation = { scope: ['effectively-once.progress', identity.id], key: String(number + 1), payload: null }
  let ended: Advanced = 'advanced'
  const step = async (context: WorkContext<Tx>): Promise<null> => {
    const { position } = await work(context)
    ended = position === undefined ? 'idle' : 'advanced'
    if (position === undefined) throw new Undone()
    const answer = await engine.store.progress.advanceIn(context.tx, identity, number, position)
    if (answer === 'fenced') {
      ended = 'overtaken'
      throw new Undone()
    }
    return null
  }
  try {
    const { replayed } = await runTransaction(engine, operation, step, { ...options, retentionMs: RECORD_MS })
    return replayed ? 'overtaken' : 'advanced'
  } catch (error) {
    if (error instanceof Undone) return ended
    throw error
  }
}

/** Rolls the step back without being anybody's failure. */
class Undone extends Error {}
