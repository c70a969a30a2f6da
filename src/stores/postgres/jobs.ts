/**
 * Leased operations on PostgreSQL.
 *
 * What thousands do at once (claim, enqueue, write a step, complete) goes in groups; the rest is one statement each.
 * How they keep out of each other's way: ./job-statements.ts.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type {
  Act,
  ClaimAnswer,
  ClaimableKind,
  DueJob,
  EffectAnswer,
  EffectChange,
  EffectProof,
  EffectReference,
  FencedAnswer,
  JobEvent,
  JobRecord,
  JobStore,
  JobSummary,
  Lease,
  NewJob,
  NewStep,
  OpenStep,
  Release,
  RenewAnswer,
  ResolveAnswer,
  StepRecord,
  TakeOverAnswer,
} from '../../store/job.ts'
import type { EndAnswer, JobReplacing, ReplaceAnswer } from '../../store/job-replace.ts'
import type { NewRecord } from '../../store/operation.ts'
import { sqlState, violatedConstraint } from './classify.ts'
import type { Connections } from './connections.ts'
import { GatedTransaction } from './gated-transaction.ts'
import { Group } from './group.ts'
import type { PgClient, PgPool, PgResult } from './handle.ts'
import { type JobOperatorStatements, jobOperatorStatements } from './job-operator.ts'
import { JobRenewals } from './job-renewals.ts'
import { PostgresJobReplacing } from './job-replace.ts'
import { fromPrimary, toDueJob, toEvent, toJob, toStep, toSummary } from './job-rows.ts'
import { JobRunner } from './job-run.ts'
import { positionsOf } from './job-sql.ts'
import { type Completion, type JobInsert, type JobStatements, jobStatements } from './job-statements.ts'
import { BEGIN_STEP, PostgresOpenStep } from './job-step.ts'
import { type StepStatements, type StepWrite, stepStatements } from './job-step-statements.ts'
import { LookupGroup } from './lookup.ts'
import type { PostgresSettings } from './operations.ts'
import { owned } from './own-types.ts'
import { inYourTransaction, requireTransaction } from './transaction-check.ts'

type Told<A> = A | Promise<A>
type StepAnswer = FencedAnswer | 'exists'
type InsertAnswer = 'stored' | 'exists' | 'busy' | 'unresolved'

/** Letters of the statements over several rows. */
const INSERTED: Readonly<Record<string, InsertAnswer | 'expired'>> = {
  s: 'stored',
  b: 'busy',
  e: 'exists',
  x: 'expired',
}
const CLAIMING = 'claiming operations'
/** How many groups of claims expect repeats when one was met. */
const REPEATS = 32
const WRITTEN: Readonly<Record<string, StepAnswer>> = { s: 'stored', e: 'exists' }

export class PostgresJobs<C extends PgClient> implements JobStore<C> {
  readonly #connections: Connections<C>
  readonly #settings: PostgresSettings
  readonly #sql: JobStatements & StepStatements & JobOperatorStatements
  readonly #runner: JobRunner<C>
  readonly #renewals: JobRenewals
  readonly #replacing: JobReplacing<C>
  readonly #finds: LookupGroup<JobRecord>
  readonly #inserts: Group<JobInsert, InsertAnswer | 'expired'>
  readonly #steps: Group<StepWrite, StepAnswer>
  readonly #completions: Group<Completion, FencedAnswer>
  #repeats = 0

  /** @param poolMax - Most connections of the pool. */
  constructor(pool: PgPool, poolMax: number, connections: Connections<C>, settings: PostgresSettings) {
    this.#connections = connections
    this.#settings = settings
    const { schema } = settings
    this.#sql = { ...jobStatements(schema), ...stepStatements(schema), ...jobOperatorStatements(schema) }
    this.#runner = new JobRunner(connections, settings)
    this.#renewals = new JobRenewals(pool, poolMax, settings, this.#sql)
    this.#replacing = new PostgresJobReplacing(this.#runner, schema)
    this.#finds = new LookupGroup((ids) => this.#find(ids))
    this.#inserts = new Group({
      keyOf: ({ job }) => job.id,
      sizeOf: ({ job }) => job.scope.length + (job.payload?.length ?? 0),
      run: (items) => this.#insert(items),
    })
    this.#steps = new Group({
      keyOf: ({ lease, step }) => `${lease.id} ${step.name}`,
      sizeOf: ({ step }) => (step.result?.length ?? 0) + (step.effect?.request.length ?? 0),
      run: (items) => this.#writeSteps(items),
    })
    this.#completions = new Group({
      keyOf: ({ lease }) => lease.id,
      sizeOf: ({ record }) => (record.outcome?.length ?? 0) + 2 * (record.response?.byteLength ?? 0),
      run: (items) => this.#complete(items),
    })
  }

  async claim(job: NewJob, leaseMs: number): Promise<ClaimAnswer> {
    const answer = await this.#inserted({ job, leaseMs, delayMs: 0 })
    return answer === 'stored' ? { kind: 'claimed', fence: 1n } : { kind: answer }
  }

  enqueue(job: NewJob, delayMs: number): Promise<InsertAnswer> {
    return this.#inserted({ job, leaseMs: null, delayMs })
  }

  async enqueueIn(tx: C, job: NewJob, delayMs: number): Promise<'stored' | 'exists' | 'busy'> {
    await requireTransaction(tx, this.#settings.schema)
    let answer: unknown
    try {
      // As with messages: a ROLLBACK may lie in front of this in the driver's queue (B43).
      const { rows: ids } = await tx.query(owned({ text: 'select pg_catalog.pg_current_xact_id()::text as xid' }))
      const insert = this.#sql.enqueueIn({ job, leaseMs: null, delayMs }, String(ids[0]?.['xid']))
      answer = (await tx.query(owned(insert))).rows[0]?.['answer']
    } catch (error) {
      throw inYourTransaction(error, 'enqueuing a job')
    }
    if (answer === 'stored' || answer === 'exists' || answer === 'busy') return answer
    throw new OnceError('NOT_A_TRANSACTION', 'the transaction of the handle ended before the job was enqueued')
  }

  replace(job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    return this.#replacing.replace(job, delayMs)
  }

  replaceIn(tx: C, job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    return this.#replacing.replaceIn(tx, job, delayMs)
  }

  endIn(tx: C, record: NewRecord, by: string): Promise<EndAnswer> {
    return this.#replacing.endIn(tx, record, by)
  }

  find(id: string): Promise<JobRecord | undefined> {
    return this.#finds.find(id)
  }

  async takeOver(job: {
    readonly id: string
    readonly fence: bigint
    readonly token: string
    readonly leaseMs: number
    readonly claimsMax: number
  }): Promise<TakeOverAnswer> {
    const result = await this.#runner.write(this.#sql.takeOver(job), 'taking over an operation')
    if (result === 'unresolved') return { kind: 'unresolved' }
    const [row] = result.rows
    if (row === undefined) return { kind: 'busy' }
    if (row['state'] === 'parked') return { kind: 'parked' }
    return { kind: 'claimed', fence: BigInt(String(row['fence'])), claims: Number(row['claims']) }
  }

  async claimDue(
    kinds: readonly ClaimableKind[],
    limit: number,
  ): Promise<{
    readonly claimed: readonly DueJob[]
    readonly parked: readonly JobRecord[]
    readonly nextDueInMs: number | null
  }> {
    if (kinds.length === 0) return { claimed: [], parked: [], nextDueInMs: null }
    const { rows } = await this.#runner.ask(this.#sql.claimDue(kinds, limit), 'claiming jobs that are due')
    const taken = rows.filter((row) => row['id'] !== null)
    const claimed = taken.filter((row) => row['state'] === 'processing').map(toDueJob)
    const parked = taken.filter((row) => row['state'] === 'parked').map(toJob)
    const next = rows[0]?.['next_due_in_ms']
    const waits = [
      ...claimed.flatMap(({ dueInMs }) => dueInMs ?? []),
      ...(typeof next === 'number' ? [Math.max(0, next)] : []),
    ]
    return { claimed, parked, nextDueInMs: waits.length === 0 ? null : Math.min(...waits) }
  }

  renew(leases: readonly { readonly lease: Lease; readonly leaseMs: number }[]): Promise<readonly RenewAnswer[]> {
    return this.#renewals.renew(leases)
  }

  async steps(id: string): Promise<readonly StepRecord[]> {
    const doing = 'reading the steps of an operation'
    const { rows } = await this.#runner.ask(this.#sql.steps(id), doing)
    return fromPrimary(rows, 'name', doing).map(toStep)
  }

  async openStep(lease: Lease, { idleTimeoutMs }: { readonly idleTimeoutMs: number }): Promise<OpenStep<C>> {
    const client = await this.#connections.acquire()
    const opening = { begin: BEGIN_STEP, gate: this.#sql.gate(lease, idleTimeoutMs) }
    const transaction = new GatedTransaction(client, this.#connections, opening, this.#settings)
    return new PostgresOpenStep(transaction, lease, this.#sql, this.#settings)
  }

  writeStep(lease: Lease, step: NewStep): Promise<FencedAnswer | 'exists'> {
    return this.#steps.add({ lease, step })
  }

  async changeEffect(lease: Lease, name: string, change: EffectChange): Promise<EffectAnswer> {
    const result = await this.#runner.write(this.#sql.changeEffect(lease, name, change), 'changing an effect')
    if (result === 'unresolved') return 'unresolved'
    const answer = result.rows[0]?.['answer']
    if (answer === 'missing') throw new Error(`operation ${lease.id} has no effect of this name`)
    return answer as EffectAnswer
  }

  complete(lease: Lease, record: NewRecord): Promise<FencedAnswer> {
    return this.#completions.add({ lease, record })
  }

  async release(lease: Lease, release: Release): Promise<FencedAnswer> {
    const result = await this.#runner.write(this.#sql.release(lease, release), 'giving an operation back')
    if (result === 'unresolved') return 'unresolved'
    return result.rows.length === 1 ? 'stored' : 'fenced'
  }

  async resolveEffect(effect: EffectReference, proof: EffectProof, act: Act): Promise<ResolveAnswer> {
    const { rows } = await this.#runner.ask(this.#sql.resolveEffect(effect, proof, act), 'resolving an effect')
    return rows[0]?.['answer'] as ResolveAnswer
  }

  async resolveOperation(record: NewRecord, act: Act): Promise<ResolveAnswer> {
    const { rows } = await this.#runner.ask(this.#sql.resolveOperation(record, act), 'resolving an operation')
    return rows[0]?.['answer'] as ResolveAnswer
  }

  async redrive(id: string, act: Act): Promise<'redriven' | 'notFound' | 'busy'> {
    const { rows } = await this.#runner.ask(this.#sql.redrive(id, act), 'redriving an operation')
    return rows[0]?.['answer'] as 'redriven' | 'notFound' | 'busy'
  }

  async list(filter: {
    readonly states: readonly JobRecord['state'][]
    readonly limit: number
    readonly after?: string | undefined
  }): Promise<readonly JobSummary[]> {
    const { rows } = await this.#runner.ask(this.#sql.list(filter), 'listing operations')
    return rows.map(toSummary)
  }

  async history(id: string): Promise<readonly JobEvent[]> {
    const { rows } = await this.#runner.ask(this.#sql.history(id), 'reading the history of an operation')
    return rows.map(toEvent)
  }

  async #find(ids: readonly string[]): Promise<readonly JobRecord[]> {
    const doing = 'finding operations'
    const { rows } = await this.#runner.ask(this.#sql.find(ids), doing)
    return fromPrimary(rows, 'id', doing).map(toJob)
  }

  /** An expired record in the way makes room, once. */
  async #inserted(insert: JobInsert): Promise<InsertAnswer> {
    const answer = await this.#inserts.add(insert)
    if (answer !== 'expired') return answer
    await this.#runner.ask(this.#sql.removeExpired(insert.job.id), 'removing an expired record')
    const second = await this.#inserts.add(insert)
    return second === 'expired' ? 'exists' : second
  }

  async #insert(items: readonly JobInsert[]): Promise<readonly (InsertAnswer | 'expired')[]> {
    const [only] = items
    if (only !== undefined && items.length === 1) {
      const one = await this.#runner.write(this.#sql.insertOne(only), CLAIMING)
      if (one === 'unresolved') return [one]
      if (one.rows.length === 1) return ['stored']
      // The rare case asks again, for why.
      this.#repeats ||= 1
    }
    const result = await this.#insertMany(items)
    if (result === 'unresolved') return items.map(() => 'unresolved')
    const flags = flagsOf(result)
    return items.map((_, n) => INSERTED[flags[n] ?? ''] ?? 'exists')
  }

  /** As if all were new, which costs the server less; where one was there lately, whatever is new. */
  async #insertMany(items: readonly JobInsert[]): Promise<PgResult | 'unresolved'> {
    if (this.#repeats === 0) {
      try {
        return await this.#runner.write(this.#sql.insert(items), CLAIMING)
      } catch (error) {
        if (!this.#isThere(error)) throw error
        this.#repeats = REPEATS
      }
    }
    this.#repeats -= 1
    return await this.#runner.write(this.#sql.insertNew(items), CLAIMING)
  }

  /** The first constraint of a row that is there: the whole statement was undone. */
  #isThere(error: unknown): boolean {
    const constraint = violatedConstraint(error, this.#settings.schema.replaceAll('"', ''))
    return sqlState(error) === '23505' && constraint === 'operation_pkey'
  }

  async #writeSteps(items: readonly StepWrite[]): Promise<readonly Told<StepAnswer>[]> {
    const [only] = items
    if (only !== undefined && items.length === 1) return [await this.#writeStep(only)]
    const result = await this.#runner.write(this.#sql.writeSteps(items), 'storing steps')
    if (result === 'unresolved') return items.map(() => 'unresolved')
    const flags = flagsOf(result)
    // Fenced, or locked at that moment: alone it waits for the row.
    return items.map((item, n) => WRITTEN[flags[n] ?? ''] ?? this.#writeStep(item))
  }

  async #writeStep(item: StepWrite): Promise<StepAnswer> {
    const result = await this.#runner.write(this.#sql.writeStep(item), 'storing a step')
    return result === 'unresolved' ? 'unresolved' : (WRITTEN[flagsOf(result)] ?? 'fenced')
  }

  async #complete(items: readonly Completion[]): Promise<readonly Told<FencedAnswer>[]> {
    const [only] = items
    if (only !== undefined && items.length === 1) return [await this.#completeOne(only)]
    const result = await this.#runner.write(this.#sql.complete(items), 'completing operations')
    if (result === 'unresolved') return items.map(() => 'unresolved')
    const done = positionsOf(result.rows[0]?.['done'])
    // Not theirs, or locked at that moment: alone it waits for the row.
    return items.map((item, n) => (done.has(n + 1) ? 'stored' : this.#completeOne(item)))
  }

  async #completeOne(item: Completion): Promise<FencedAnswer> {
    const result = await this.#runner.write(this.#sql.completeOne(item), 'completing an operation')
    return result === 'unresolved' ? 'unresolved' : result.rows.length === 1 ? 'stored' : 'fenced'
  }
}

function flagsOf({ rows }: PgResult): string {
  return String(rows[0]?.['flags'])
}
