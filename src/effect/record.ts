/**
 * Record: an effect's steps in the store, as the owner of a lease writes them. Every write compares the fence.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { HeldLease } from '../job/lease.ts'
import { OnceError } from '../shared/errors.ts'
import { pause } from '../shared/waiting.ts'
import type { EffectChange, JobStore, NewStep, StepRecord } from '../store/job.ts'

export interface EffectPort {
  readonly operationId: string
  readonly held: HeldLease
  readonly store: Pick<JobStore<unknown>, 'writeStep' | 'changeEffect' | 'steps'>
  /** Largest result, bytes. */
  readonly resultBytesMax: number
}

/** How long a write whose answer was lost is repeated, as long as the lease lasts. Milliseconds. */
const WRITE_MS = 60_000
const PAUSE_MS = 200

/** Stores a new step. `exists` = an earlier write of it has come through; read it. */
export async function writeStep(port: EffectPort, step: NewStep): Promise<'stored' | 'exists'> {
  return await untilAnswered(port, () => port.store.writeStep(port.held.lease, step))
}

/** Changes a stored effect. `decided` = it has its answer already; `expired` = the key may not be sent again. */
export async function changeEffect(
  port: EffectPort,
  name: string,
  change: EffectChange,
): Promise<'stored' | 'decided' | 'expired'> {
  return await untilAnswered(port, () => port.store.changeEffect(port.held.lease, name, change))
}

/** The step as it is stored. */
export async function readStep(port: EffectPort, name: string): Promise<StepRecord | undefined> {
  const steps = await untilAnswered(port, () => port.store.steps(port.operationId))
  return steps.find((step) => step.name === name)
}

/**
 * Repeats a write until the store has answered: an answer of a provider that is only in this process's memory is not
 * given up while the lease lasts. Repeating is safe: each write says what it found.
 */
async function untilAnswered<Answer>(
  port: EffectPort,
  write: () => Promise<Answer>,
): Promise<Exclude<Answer, 'fenced' | 'unresolved'>> {
  const untilMs = performance.now() + WRITE_MS
  for (;;) {
    port.held.check()
    let failure: unknown
    try {
      const answer = await write()
      if (answer === 'fenced') {
        port.held.lose('the store has refused a write of this owner')
        port.held.check()
      } else if (answer !== 'unresolved') return answer as Exclude<Answer, 'fenced' | 'unresolved'>
    } catch (error) {
      if (!(error instanceof OnceError) || !error.retryable || error.code === 'LEASE_LOST') throw error
      failure = error
    }
    if (performance.now() > untilMs) {
      throw new OnceError('STORE_UNAVAILABLE', 'a step could not be recorded', { cause: failure })
    }
    await pause(PAUSE_MS)
  }
}
