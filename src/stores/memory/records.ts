/**
 * The table of records: one row for each key, finished or leased, with what goes with the row.
 *
 * @module
 */

import type { JobEvent, JobRecord, NewJob, NewStep, StoredEffect } from '../../store/job.ts'
import type { NewRecord, OperationRecord, PurgedOperations } from '../../store/operation.ts'
import type { PurgeBatch } from '../../store/retention.ts'
import type { MemoryDatabase } from './database.ts'
import { batchOf, overdueMs } from './retention.ts'

/** A record with an outcome. */
export interface Finished extends OperationRecord {
  readonly expiresAtMs: number
  readonly responseExpiresAtMs: number
}

/** What an effect has besides its step; instants instead of ages. */
export interface EffectRow extends Omit<StoredEffect, 'firstAttemptAgeMs' | 'lastAttemptAgeMs' | 'unknownAgeMs'> {
  readonly firstAttemptAtMs: number
  readonly lastAttemptAtMs: number
  /** Stays while it is attempted again: the doubt is as old as its beginning. */
  readonly unknownSinceMs: number | null
  /** The next attempt is the first with its key. */
  readonly unused: boolean
}

export interface StepRow extends Omit<NewStep, 'effect'> {
  readonly fence: bigint
  readonly effect?: EffectRow | undefined
}

/** A leased operation. It stays with its record when it is finished: steps and history go when the record goes. */
export interface JobRow extends NewJob, Pick<JobRecord, 'state' | 'fence' | 'claims' | 'failures' | 'reason'> {
  readonly createdAtMs: number
  readonly leaseUntilMs: number | null
  readonly dueAtMs: number | null
  readonly steps: ReadonlyMap<string, StepRow>
  readonly events: readonly JobEvent[]
}

interface Row {
  readonly finished?: Finished | undefined
  readonly job?: JobRow | undefined
}

export class MemoryRecords {
  readonly #database: MemoryDatabase
  readonly #rows: Map<string, Row> = new Map()

  constructor(database: MemoryDatabase) {
    this.#database = database
  }

  /** Whether the key is taken. An expired record frees it at once. */
  has(id: string): boolean {
    if (this.finished(id) !== undefined || this.unfinished(id) !== undefined) return true
    this.#rows.delete(id)
    return false
  }

  /** The live record, by the store's clock. */
  finished(id: string): Finished | undefined {
    const record = this.#rows.get(id)?.finished
    if (record === undefined || record.expiresAtMs <= this.#database.now()) return undefined
    return record.responseExpiresAtMs > this.#database.now() ? record : { ...record, response: undefined }
  }

  unfinished(id: string): JobRow | undefined {
    const row = this.#rows.get(id)
    return row?.finished === undefined ? row?.job : undefined
  }

  /** All leased operations that are not finished, oldest first. */
  jobs(): JobRow[] {
    return this.allJobs().filter(({ id }) => this.unfinished(id) !== undefined)
  }

  allJobs(): JobRow[] {
    return [...this.#rows.keys()]
      .flatMap((id) => this.job(id) ?? [])
      .sort((one, other) => one.createdAtMs - other.createdAtMs || (one.id < other.id ? -1 : 1))
  }

  /** The leased operation, also when it has its outcome. */
  job(id: string): JobRow | undefined {
    return this.has(id) ? this.#rows.get(id)?.job : undefined
  }

  /** Stores or changes a leased operation. */
  put(job: JobRow): void {
    this.#rows.set(job.id, { ...this.#rows.get(job.id), job })
  }

  /** Stores an outcome. A leased operation has it in its own row. */
  keep(record: NewRecord): void {
    const now = this.#database.now()
    const responseExpiresAtMs = now + (record.responseRetentionMs ?? 0)
    const finished = { ...record, expiresAtMs: now + record.retentionMs, responseExpiresAtMs }
    this.#rows.set(record.id, { job: this.unfinished(record.id), finished })
  }

  /** Removes expired records, and erases expired responses of others; not of those that are busy. */
  purge(batch: PurgeBatch, busy: (id: string) => boolean): PurgedOperations {
    const before = this.#database.now() - batch.graceMs
    const free = new Map([...this.#finished()].filter(([id]) => !busy(id)))
    const { taken, after } = batchOf(free, dueAtMs, before, batch)
    let erased = 0
    for (const [id, finished] of taken) {
      if (finished.expiresAtMs <= before) this.#rows.delete(id)
      else this.#rows.set(id, { ...this.#rows.get(id), finished: { ...finished, response: undefined } })
      if (finished.expiresAtMs > before) erased += 1
    }
    return { removed: taken.length - erased, erased, after }
  }

  overdueMs(graceMs: number): number {
    return overdueMs(this.#finished().values(), dueAtMs, this.#database.now() - graceMs)
  }

  /** All records with an outcome, expired ones too. */
  #finished(): Map<string, Finished> {
    return new Map([...this.#rows].flatMap(([id, { finished }]) => (finished === undefined ? [] : [[id, finished]])))
  }
}

/** When the record has to be looked at next. */
function dueAtMs(record: Finished): number {
  return record.response === undefined ? record.expiresAtMs : Math.min(record.expiresAtMs, record.responseExpiresAtMs)
}

/** Milliseconds until an instant; null when it is over, or there is none. */
export function leftMs(untilMs: number | null, nowMs: number): number | null {
  return untilMs !== null && untilMs > nowMs ? untilMs - nowMs : null
}

/** An operation as it is told. */
export function recordOf(job: JobRow, nowMs: number): JobRecord {
  const { createdAtMs, leaseUntilMs, dueAtMs, steps: _steps, events: _events, ...told } = job
  return {
    ...told,
    leaseLeftMs: leftMs(leaseUntilMs, nowMs),
    dueInMs: dueAtMs === null ? null : Math.max(0, dueAtMs - nowMs),
    ageMs: nowMs - createdAtMs,
  }
}
