/**
 * Leased operations in memory: the same decisions as on a database, readable in one go.
 *
 * @module
 */

import { randomUUID } from '../../shared/crypto.ts'
import type {
  ClaimAnswer,
  ClaimableKind,
  DueJob,
  FencedAnswer,
  JobEvent,
  JobRecord,
  JobStore,
  Lease,
  NewJob,
  Release,
  RenewAnswer,
  TakeOverAnswer,
} from '../../store/job.ts'
import type { JobReplacing } from '../../store/job-replace.ts'
import type { NewRecord } from '../../store/operation.ts'
import type { MemoryTx } from './database.ts'
import { type Audit, MemoryJobOperator } from './job-operator.ts'
import { MemoryJobReplacing } from './job-replace.ts'
import { MemorySteps } from './job-steps.ts'
import type { MemoryOperations } from './operations.ts'
import { type JobRow, leftMs, recordOf } from './records.ts'

type Steps = Pick<JobStore<MemoryTx>, 'steps' | 'openStep' | 'writeStep' | 'changeEffect'>
type Replacing = JobReplacing<MemoryTx>
type Operator = Pick<JobStore<MemoryTx>, 'resolveEffect' | 'resolveOperation' | 'redrive' | 'list' | 'history'>

export class MemoryJobs implements JobStore<MemoryTx> {
  readonly operations: MemoryOperations
  readonly #steps: Steps
  readonly #operator: Operator
  readonly #replacing: MemoryJobReplacing

  constructor(operations: MemoryOperations, audit: Audit) {
    this.operations = operations
    this.#steps = new MemorySteps(this)
    this.#operator = new MemoryJobOperator(this, audit)
    this.#replacing = new MemoryJobReplacing(this)
  }

  async claim(job: NewJob, leaseMs: number): Promise<ClaimAnswer> {
    if (this.#records.has(job.id)) return { kind: 'exists' }
    if (this.operations.isRunning(job.id)) return { kind: 'busy' }
    this.#own({ ...unclaimed(job, this.now), fence: 0n }, job.token, leaseMs)
    return { kind: 'claimed', fence: 1n }
  }

  async enqueue(job: NewJob, delayMs: number): Promise<'stored' | 'exists' | 'busy'> {
    if (this.#records.has(job.id)) return 'exists'
    if (this.operations.isRunning(job.id)) return 'busy'
    this.#enqueue(job, delayMs)
    return 'stored'
  }

  async enqueueIn(tx: MemoryTx, job: NewJob, delayMs: number): Promise<'stored' | 'exists' | 'busy'> {
    return this.operations.enlist(tx, job, () => this.#enqueue(job, delayMs))
  }

  async find(id: string): Promise<JobRecord | undefined> {
    const job = this.#records.unfinished(id)
    return job === undefined ? undefined : recordOf(job, this.now)
  }

  async takeOver(job: {
    readonly id: string
    readonly fence: bigint
    readonly token: string
    readonly leaseMs: number
    readonly claimsMax: number
  }): Promise<TakeOverAnswer> {
    const found = this.#records.unfinished(job.id)
    if (found === undefined || found.fence !== job.fence || this.isHeld(found)) return { kind: 'busy' }
    if (this.isLocked(job.id)) return { kind: 'busy' }
    if (found.state === 'parked') return { kind: 'parked' }
    if (found.claims >= job.claimsMax) {
      this.#park(found)
      return { kind: 'parked' }
    }
    const { fence, claims } = this.#own(found, job.token, job.leaseMs)
    return { kind: 'claimed', fence, claims }
  }

  async claimDue(
    kinds: readonly ClaimableKind[],
    limit: number,
  ): Promise<{
    readonly claimed: readonly DueJob[]
    readonly parked: readonly JobRecord[]
    readonly nextDueInMs: number | null
  }> {
    const kindOf = (job: JobRow) => kinds.find(({ kind, version }) => job.kind === kind && job.version === version)
    const waiting = () =>
      this.#records
        .jobs()
        .filter((job) => job.dueAtMs !== null && kindOf(job) !== undefined)
        .sort((one, other) => Number(one.dueAtMs) - Number(other.dueAtMs))
    const claimed: DueJob[] = []
    const parked: JobRecord[] = []
    for (const job of waiting()
      .filter(({ id }) => !this.isLocked(id))
      .slice(0, limit)) {
      const kind = kindOf(job)
      if (kind === undefined || Number(job.dueAtMs) > this.now) break
      if (job.claims >= kind.claimsMax) {
        parked.push(recordOf(this.#park(job), this.now))
        continue
      }
      const owned = this.#own(job, randomUUID(), kind.leaseMs)
      const { id, token, fence } = owned
      claimed.push({ ...recordOf(owned, this.now), lease: { id, token, fence }, leaseMs: kind.leaseMs })
    }
    const next = waiting()[0]?.dueAtMs ?? null
    return { claimed, parked, nextDueInMs: next === null ? null : Math.max(0, next - this.now) }
  }

  async renew(leases: readonly { readonly lease: Lease; readonly leaseMs: number }[]): Promise<readonly RenewAnswer[]> {
    return leases.map(({ lease, leaseMs }) => {
      const job = this.owned(lease)
      if (job === undefined) return 'lost'
      if (this.isLocked(lease.id)) return 'locked'
      const leaseUntilMs = this.now + leaseMs
      this.put({ ...job, leaseUntilMs, dueAtMs: job.kind === null ? null : leaseUntilMs })
      return 'renewed'
    })
  }

  steps: Steps['steps'] = (id) => this.#steps.steps(id)
  openStep: Steps['openStep'] = (lease, options) => this.#steps.openStep(lease, options)
  writeStep: Steps['writeStep'] = (lease, step) => this.#steps.writeStep(lease, step)
  changeEffect: Steps['changeEffect'] = (lease, name, change) => this.#steps.changeEffect(lease, name, change)

  async complete(lease: Lease, record: NewRecord): Promise<FencedAnswer> {
    if (this.owned(lease) === undefined) return 'fenced'
    if (this.isLocked(lease.id)) return 'unresolved'
    this.#records.keep(record)
    return 'stored'
  }

  async release(lease: Lease, { failed, reason, ...release }: Release): Promise<FencedAnswer> {
    const job = this.owned(lease)
    if (job === undefined) return 'fenced'
    if (this.isLocked(lease.id)) return 'unresolved'
    const proven = job.events.some(({ event, fence }) => event === 'resolved' && fence === lease.fence)
    const { state, dueInMs } =
      release.state === 'unknown' && proven ? { state: 'processing' as const, dueInMs: 0 } : release
    const event = state === 'processing' ? (failed ? 'failed' : 'released') : state
    this.put(
      {
        ...job,
        state,
        reason,
        leaseUntilMs: null,
        dueAtMs: job.kind === null || dueInMs === null ? null : this.now + dueInMs,
        claims: Math.max(0, job.claims - 1),
        failures: job.failures + (failed ? 1 : 0),
      },
      event,
      reason,
    )
    return 'stored'
  }

  replace: Replacing['replace'] = (job, delayMs) => this.#replacing.replace(job, delayMs)
  replaceIn: Replacing['replaceIn'] = (tx, job, delayMs) => this.#replacing.replaceIn(tx, job, delayMs)
  endIn: Replacing['endIn'] = (tx, record, by) => this.#replacing.endIn(tx, record, by)
  resolveEffect: Operator['resolveEffect'] = (effect, proof, act) => this.#operator.resolveEffect(effect, proof, act)
  resolveOperation: Operator['resolveOperation'] = (record, act) => this.#operator.resolveOperation(record, act)
  redrive: Operator['redrive'] = (id, act) => this.#operator.redrive(id, act)
  list: Operator['list'] = (filter) => this.#operator.list(filter)
  history: Operator['history'] = (id) => this.#operator.history(id)

  get now(): number {
    return this.operations.database.now()
  }

  get #records(): MemoryOperations['records'] {
    return this.operations.records
  }

  /** The operation, when the lease is live, its newest, and it is not finished. */
  owned({ id, token, fence }: Lease): JobRow | undefined {
    const job = this.#records.unfinished(id)
    return job?.token === token && job.fence === fence && this.isHeld(job) ? job : undefined
  }

  /** Whether an open transaction is about to replace or end it: an owner's write waits for that. */
  isLocked(id: string): boolean {
    return this.#replacing.isLocked(id)
  }

  isHeld(job: JobRow): boolean {
    return leftMs(job.leaseUntilMs, this.now) !== null
  }

  /** Stores the operation, and what happened to it. */
  put(job: JobRow, event?: JobEvent['event'], detail: string | null = null): JobRow {
    const happened = event === undefined ? [] : [{ atMs: this.now, fence: job.fence, event, detail }]
    const stored = { ...job, events: [...job.events, ...happened] }
    this.#records.put(stored)
    return stored
  }

  /** A new ownership. Only the first one of all takes nothing over. */
  #own(job: JobRow, token: string, leaseMs: number): JobRow {
    const leaseUntilMs = this.now + leaseMs
    return this.put(
      {
        ...job,
        token,
        state: 'processing',
        fence: job.fence + 1n,
        leaseUntilMs,
        dueAtMs: job.kind === null ? null : leaseUntilMs,
        claims: job.claims + 1,
      },
      job.fence === 0n ? undefined : 'takenOver',
    )
  }

  #park(job: JobRow): JobRow {
    const reason = 'claims'
    return this.put({ ...job, state: 'parked', reason, leaseUntilMs: null, dueAtMs: null }, 'parked', reason)
  }

  #enqueue(job: NewJob, delayMs: number): void {
    this.put({ ...unclaimed(job, this.now), dueAtMs: job.kind === null ? null : this.now + delayMs })
  }
}

function unclaimed(job: NewJob, nowMs: number): JobRow {
  const counts = { fence: 0n, claims: 0, failures: 0 }
  const instants = { createdAtMs: nowMs, leaseUntilMs: null, dueAtMs: null }
  return { ...job, ...counts, ...instants, state: 'processing', reason: null, steps: new Map(), events: [] }
}
