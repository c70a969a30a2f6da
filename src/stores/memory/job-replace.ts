/**
 * Replacing in memory. What is decided in a transaction of the caller is kept from owners until that ends.
 *
 * @module
 */

import type { NewJob } from '../../store/job.ts'
import { LOOKS_PROVEN } from '../../store/job.ts'
import type { EndAnswer, JobReplacing, ReplaceAnswer } from '../../store/job-replace.ts'
import type { NewRecord } from '../../store/operation.ts'
import type { MemoryTx } from './database.ts'
import type { MemoryJobs } from './jobs.ts'
import type { JobRow } from './records.ts'

export class MemoryJobReplacing implements JobReplacing<MemoryTx> {
  readonly #jobs: MemoryJobs
  readonly #locked: Set<string> = new Set()

  constructor(jobs: MemoryJobs) {
    this.#jobs = jobs
  }

  /** Whether a transaction that is open has decided about it. */
  isLocked(id: string): boolean {
    return this.#locked.has(id)
  }

  async replace(job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    const found = this.#waiting(job)
    if (typeof found === 'object') this.#replace(found, job, delayMs)
    return typeof found === 'object' ? 'replaced' : found
  }

  async replaceIn(tx: MemoryTx, job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    // Enqueued by this very transaction: it is there when that commits.
    const isOwn = this.#jobs.operations.hasKey(tx, job.id)
    const found = isOwn ? undefined : this.#waiting(job)
    if (typeof found === 'string') return found
    this.#atCommit(tx, job.id, () => {
      const waiting = found ?? this.#jobs.operations.records.unfinished(job.id)
      if (waiting !== undefined) this.#replace(waiting, job, delayMs)
    })
    return 'replaced'
  }

  async endIn(tx: MemoryTx, record: NewRecord, by: string): Promise<EndAnswer> {
    await this.#jobs.operations.assertTransaction(tx)
    const { records } = this.#jobs.operations
    if (records.finished(record.id) !== undefined) return 'decided'
    const job = records.unfinished(record.id)
    if (job === undefined) return 'missing'
    const inDoubt = [...job.steps.values()].some(
      ({ state, effect }) => state === 'unknown' || (state === 'intended' && (effect?.looks ?? 0) < LOOKS_PROVEN),
    )
    if (job.state === 'parked' || inDoubt) return 'kept'
    this.#atCommit(tx, record.id, () => {
      this.#jobs.put(job, 'replaced', by)
      records.keep(record)
    })
    return 'ended'
  }

  #waiting(job: NewJob): JobRow | Exclude<ReplaceAnswer, 'replaced'> {
    const { records } = this.#jobs.operations
    if (this.#jobs.operations.isRunning(job.id) || this.isLocked(job.id)) return 'busy'
    const found = records.unfinished(job.id)
    if (found === undefined) return records.finished(job.id) === undefined ? 'missing' : 'started'
    return found.state === 'processing' && found.fence === 0n && found.kind === job.kind ? found : 'started'
  }

  #replace(found: JobRow, { token, fingerprint, version, payload }: NewJob, delayMs: number | null): void {
    const dueAtMs = delayMs === null ? found.dueAtMs : this.#jobs.now + delayMs
    this.#jobs.put({ ...found, token, fingerprint, version, payload, dueAtMs }, 'replaced')
  }

  #atCommit(tx: MemoryTx, id: string, act: () => void): void {
    this.#locked.add(id)
    this.#jobs.operations.atEnd(tx, (committed) => {
      this.#locked.delete(id)
      if (committed) act()
    })
  }
}
