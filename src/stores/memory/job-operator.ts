/**
 * What people and webhooks do to leased operations in memory; every act that changes something is audited.
 *
 * @module
 */

import {
  type Act,
  type EffectProof,
  type EffectReference,
  type JobEvent,
  type JobRecord,
  type JobSummary,
  LOOKS_PROVEN,
  type ResolveAnswer,
} from '../../store/job.ts'
import type { NewRecord } from '../../store/operation.ts'
import { changed, withStep } from './job-steps.ts'
import type { MemoryJobs } from './jobs.ts'
import { type JobRow, type MemoryRecords, recordOf, type StepRow } from './records.ts'

export type Audit = (act: string, subject: string, who: Act) => void

export class MemoryJobOperator {
  readonly #jobs: MemoryJobs
  readonly #audit: Audit

  constructor(jobs: MemoryJobs, audit: Audit) {
    this.#jobs = jobs
    this.#audit = audit
  }

  async resolveEffect(effect: EffectReference, proof: EffectProof, act: Act): Promise<ResolveAnswer> {
    const found = this.#effect(effect)
    if (found === undefined) return 'notFound'
    const { job, step } = found
    if (step.effect === undefined) return 'notFound'
    if (step.state === 'done' || step.state === 'refused') return 'decided'
    const isHeld = this.#jobs.isHeld(job)
    // An answer may overtake the owner's own call; a call that is still on its way can't be proven never to happen.
    if (isHeld && proof.state === 'notApplied') return 'busy'
    const resolved: StepRow =
      proof.state === 'notApplied'
        ? { ...step, state: 'intended', effect: { ...step.effect, looks: LOOKS_PROVEN, unknownSinceMs: null } }
        : changed(step, step.effect, { ...proof, to: proof.state }, this.#jobs.now)
    const detail = `${step.name}: ${proof.state}`
    const isDue = !isHeld && job.state !== 'parked'
    this.#jobs.put(withStep(isDue ? this.#due(job) : job, resolved), 'resolved', detail)
    this.#audit('effect.resolve', `${job.id}/${step.name}`, act)
    return 'resolved'
  }

  async resolveOperation(record: NewRecord, act: Act): Promise<ResolveAnswer> {
    if (this.#records.finished(record.id) !== undefined) return 'decided'
    const job = this.#records.unfinished(record.id)
    if (job === undefined) return 'notFound'
    if (this.#jobs.isHeld(job)) return 'busy'
    this.#jobs.put(job, 'resolved', record.notApplied === true ? 'notApplied' : record.state)
    this.#records.keep(record)
    this.#audit('operation.resolve', job.id, act)
    return 'resolved'
  }

  async redrive(id: string, act: Act): Promise<'redriven' | 'notFound' | 'busy'> {
    const job = this.#records.unfinished(id)
    if (job === undefined) return 'notFound'
    if (this.#jobs.isHeld(job)) return 'busy'
    this.#jobs.put({ ...this.#due(job), claims: 0, failures: 0 }, 'redriven', act.reason)
    this.#audit('operation.redrive', job.id, act)
    return 'redriven'
  }

  async list(filter: {
    readonly states: readonly JobRecord['state'][]
    readonly limit: number
    readonly after?: string | undefined
  }): Promise<readonly JobSummary[]> {
    const jobs = this.#records.jobs()
    // The one that `after` names may have been finished since.
    const after = filter.after === undefined ? undefined : this.#records.job(filter.after)
    const isAfter = ({ createdAtMs, id }: JobRow) =>
      after === undefined || createdAtMs > after.createdAtMs || (createdAtMs === after.createdAtMs && id > after.id)
    return jobs
      .filter((job) => filter.states.includes(job.state) && isAfter(job))
      .slice(0, filter.limit)
      .map((job) => summaryOf(job, this.#jobs.now))
  }

  async history(id: string): Promise<readonly JobEvent[]> {
    return this.#records.job(id)?.events ?? []
  }

  get #records(): MemoryRecords {
    return this.#jobs.operations.records
  }

  #effect(effect: EffectReference): { readonly job: JobRow; readonly step: StepRow } | undefined {
    if ('providerKey' in effect) {
      for (const job of this.#records.allJobs()) {
        const step = [...job.steps.values()].find((one) => one.effect?.providerKey === effect.providerKey)
        if (step !== undefined) return { job, step }
      }
      return undefined
    }
    const job = this.#records.job(effect.id)
    const step = job?.steps.get(effect.name)
    return job === undefined || step === undefined ? undefined : { job, step }
  }

  /** Nobody's, and ready to be taken. */
  #due(job: JobRow): JobRow {
    const dueAtMs = job.kind === null ? null : this.#jobs.now
    return { ...job, state: 'processing', leaseUntilMs: null, dueAtMs }
  }
}

function summaryOf(job: JobRow, nowMs: number): JobSummary {
  const { payload: _payload, fingerprint: _fingerprint, token: _token, ...told } = recordOf(job, nowMs)
  const unknownEffects = [...job.steps.values()].flatMap(({ name, state, effect }) =>
    state === 'unknown' ? [{ name, ageMs: nowMs - (effect?.unknownSinceMs ?? nowMs) }] : [],
  )
  return { ...told, unknownEffects }
}
