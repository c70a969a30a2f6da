/**
 * Steps in memory: every write compares the lease, and a step's writes become true together with the step.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type {
  EffectAnswer,
  EffectChange,
  EffectIntent,
  FencedAnswer,
  Lease,
  NewStep,
  OpenStep,
  StepFinish,
  StepRecord,
  StoredEffect,
} from '../../store/job.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import { MemoryTransaction, type MemoryTx } from './database.ts'
import type { MemoryJobs } from './jobs.ts'
import type { EffectRow, JobRow, StepRow } from './records.ts'

export class MemorySteps {
  readonly jobs: MemoryJobs

  constructor(jobs: MemoryJobs) {
    this.jobs = jobs
  }

  async steps(id: string): Promise<readonly StepRecord[]> {
    const job = this.jobs.operations.records.job(id)
    return [...(job?.steps.values() ?? [])]
      .sort((one, other) => one.position - other.position)
      .map(({ effect, ...step }) =>
        effect === undefined ? step : { ...step, effect: effectOf(effect, step.state === 'unknown', this.jobs.now) },
      )
  }

  async openStep(lease: Lease): Promise<OpenStep<MemoryTx>> {
    return new MemoryOpenStep(this, lease)
  }

  async writeStep(lease: Lease, step: NewStep): Promise<FencedAnswer | 'exists'> {
    return this.add(lease, step)
  }

  async changeEffect(lease: Lease, name: string, change: EffectChange): Promise<EffectAnswer> {
    const job = this.jobs.owned(lease)
    if (job === undefined) return 'fenced'
    if (this.jobs.isLocked(lease.id)) return 'unresolved'
    const step = job.steps.get(name)
    if (step?.effect === undefined) throw new Error(`operation ${lease.id} has no effect of this name`)
    if (step.state === 'done' || step.state === 'refused') return 'decided'
    if (change.to === 'attempt' && !step.effect.unused && change.keyAgeMaxMs !== null) {
      if (this.jobs.now - step.effect.firstAttemptAtMs > change.keyAgeMaxMs) return 'expired'
    }
    this.jobs.put(withStep(job, { ...changed(step, step.effect, change, this.jobs.now), fence: lease.fence }))
    return 'stored'
  }

  /** Adds a step that is not there yet; `write` is what becomes true with it. */
  add(lease: Lease, step: NewStep, write: () => void = () => {}): FencedAnswer | 'exists' {
    const job = this.jobs.owned(lease)
    if (job === undefined) return 'fenced'
    if (this.jobs.isLocked(lease.id)) return 'unresolved'
    if (job.steps.has(step.name)) return 'exists'
    const { effect, ...rest } = step
    const row = { ...rest, fence: lease.fence }
    this.jobs.put(
      withStep(job, effect === undefined ? row : { ...row, effect: firstAttempt(step, effect, this.jobs.now) }),
    )
    write()
    return 'stored'
  }
}

class MemoryOpenStep implements OpenStep<MemoryTx> {
  readonly tx: MemoryTx
  readonly conflict: undefined = undefined
  readonly #steps: MemorySteps
  readonly #lease: Lease
  readonly #transaction: MemoryTransaction
  #held: boolean | undefined

  constructor(steps: MemorySteps, lease: Lease) {
    this.#steps = steps
    this.#lease = lease
    this.#transaction = new MemoryTransaction(steps.jobs.operations.database)
    this.tx = {
      get: (name) => this.#opened().get(name),
      put: (name, value) => this.#opened().put(name, value),
    }
  }

  async now(): Promise<Date> {
    this.#opened()
    return new Date(this.#steps.jobs.now)
  }

  held(): Promise<boolean> | undefined {
    return this.#held === undefined ? undefined : Promise.resolve(this.#held)
  }

  async finish(step: NewStep, outbox: readonly OutboxRow[]): Promise<StepFinish> {
    if (!this.#begin()) return 'fenced'
    if (this.#transaction.ended) return 'ended'
    const answer = this.#steps.add(this.#lease, step, () => {
      this.#transaction.commit()
      if (outbox.length > 0) this.#steps.jobs.operations.insert(outbox)
    })
    if (answer !== 'stored') this.#transaction.rollback()
    return answer === 'unresolved' ? 'retry' : answer
  }

  async rollback(): Promise<'rolledBack'> {
    this.#transaction.rollback()
    return 'rolledBack'
  }

  abort(): void {
    this.#transaction.rollback()
  }

  #begin(): boolean {
    this.#held ??= this.#steps.jobs.owned(this.#lease) !== undefined
    return this.#held
  }

  #opened(): MemoryTransaction {
    if (!this.#begin()) throw new OnceError('LEASE_LOST', 'the lease was over before the step began')
    if (this.#transaction.ended) {
      throw new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended')
    }
    return this.#transaction
  }
}

export function withStep(job: JobRow, step: StepRow): JobRow {
  return { ...job, steps: new Map(job.steps).set(step.name, step) }
}

/** The effect with a new state. */
export function changed(step: StepRow, effect: EffectRow, change: EffectChange, nowMs: number): StepRow {
  switch (change.to) {
    case 'attempt': {
      const firstAttemptAtMs = effect.unused ? nowMs : effect.firstAttemptAtMs
      const started = { unused: false, firstAttemptAtMs, lastAttemptAtMs: nowMs }
      const counted = { attempts: effect.attempts + 1, looks: 0 }
      // The doubt goes on, from the instant at which it began, unless the last look has ended it.
      const unknownSinceMs = effect.looks > 0 ? null : effect.unknownSinceMs
      return { ...step, state: 'intended', effect: { ...effect, ...started, ...counted, unknownSinceMs } }
    }
    case 'newKey': {
      const { providerKey } = change
      const keyGeneration = effect.keyGeneration + 1
      const fresh = { providerKey, keyGeneration, looks: 0, unused: true, unknownSinceMs: null }
      return { ...step, state: 'intended', effect: { ...effect, ...fresh } }
    }
    case 'looked':
      return { ...step, effect: { ...effect, looks: change.looks } }
    case 'unknown':
      return { ...step, state: 'unknown', effect: { ...effect, unknownSinceMs: effect.unknownSinceMs ?? nowMs } }
    case 'done':
    case 'refused': {
      const { to: state, result, resultVersion } = change
      return { ...step, state, result, resultVersion, effect: { ...effect, unknownSinceMs: null } }
    }
  }
}

function firstAttempt({ state }: NewStep, intent: EffectIntent, nowMs: number): EffectRow {
  const counts = { attempts: 1, keyGeneration: 0, looks: 0, unused: false }
  const unknownSinceMs = state === 'unknown' ? nowMs : null
  return { ...intent, ...counts, firstAttemptAtMs: nowMs, lastAttemptAtMs: nowMs, unknownSinceMs }
}

function effectOf(effect: EffectRow, isUnknown: boolean, nowMs: number): StoredEffect {
  const { firstAttemptAtMs, lastAttemptAtMs, unknownSinceMs, unused, ...told } = effect
  return {
    ...told,
    firstAttemptAgeMs: unused ? 0 : nowMs - firstAttemptAtMs,
    lastAttemptAgeMs: nowMs - lastAttemptAtMs,
    unknownAgeMs: isUnknown && unknownSinceMs !== null ? nowMs - unknownSinceMs : null,
  }
}
