/**
 * Replacing on PostgreSQL: one function each, in the store's own transaction or in the caller's.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type { NewJob } from '../../store/job.ts'
import type { EndAnswer, JobReplacing, ReplaceAnswer } from '../../store/job-replace.ts'
import type { NewRecord } from '../../store/operation.ts'
import type { PgClient, PgStatement } from './handle.ts'
import type { JobRunner } from './job-run.ts'
import { keyLockOf } from './locks.ts'
import { owned } from './own-types.ts'
import { inYourTransaction, requireTransaction } from './transaction-check.ts'

export class PostgresJobReplacing<C extends PgClient> implements JobReplacing<C> {
  readonly #runner: JobRunner<C>
  readonly #schema: string
  readonly #sql: JobReplaceStatements

  /** @param schema - The quoted identifier. */
  constructor(runner: JobRunner<C>, schema: string) {
    this.#runner = runner
    this.#schema = schema
    this.#sql = jobReplaceStatements(schema)
  }

  async replace(job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    const { rows } = await this.#runner.ask(this.#sql.replace(job, delayMs), 'replacing a job')
    return rows[0]?.['answer'] as ReplaceAnswer
  }

  async replaceIn(tx: C, job: NewJob, delayMs: number | null): Promise<ReplaceAnswer> {
    return (await this.#in(tx, this.#sql.replace(job, delayMs), 'replacing a job')) as ReplaceAnswer
  }

  async endIn(tx: C, record: NewRecord, by: string): Promise<EndAnswer> {
    return (await this.#in(tx, this.#sql.end(record, by), 'ending a job')) as EndAnswer
  }

  async #in(tx: C, statement: PgStatement, doing: string): Promise<string> {
    await requireTransaction(tx, this.#schema)
    let answer: unknown
    try {
      // As with messages: a ROLLBACK may lie in front of this in the driver's queue (B43).
      const { rows: ids } = await tx.query(owned({ text: 'select pg_catalog.pg_current_xact_id()::text as xid' }))
      const xid = String(ids[0]?.['xid'])
      const { rows } = await tx.query(owned(inTransaction(statement, xid)))
      answer = rows[0]?.['answer']
    } catch (error) {
      throw inYourTransaction(error, doing)
    }
    if (typeof answer === 'string') return answer
    throw new OnceError('NOT_A_TRANSACTION', `the transaction of the handle ended before ${doing}`)
  }
}

/** Does nothing, and answers with no row, in any other transaction than this one. */
function inTransaction({ text, values = [] }: PgStatement, xid: string): PgStatement {
  return {
    // sql-built: texts of this file only; every value is a parameter.
    text: `${text} where pg_catalog.pg_current_xact_id_if_assigned() = $${values.length + 1}::xid8`,
    values: [...values, xid],
  }
}

/** The SQL of one schema; `schema` is the quoted identifier. */
export function jobReplaceStatements(schema: string): JobReplaceStatements {
  const mode = `${schema}.operation_fingerprint_mode`
  const state = `${schema}.operation_state`
  return {
    replace: (job, delayMs) => ({
      text:
        `/* effectively-once:job.replace */ select ${schema}.job_replace($1::uuid, $2::bigint, $3::uuid, $4::${mode}, ` +
        `$5::text, $6::bytea, $7::text, $8::integer, $9::text, $10::bigint) as answer`,
      values: [
        job.id,
        keyLockOf(job.id),
        job.token,
        job.fingerprint.mode,
        job.fingerprint.keyId,
        job.fingerprint.value,
        job.kind,
        job.version,
        job.payload,
        delayMs,
      ],
    }),
    end: ({ id, token, state: to, outcomeVersion, outcome, retentionMs }, by) => ({
      text:
        `/* effectively-once:job.end */ select ${schema}.job_end($1::uuid, $2::uuid, $3::${state}, $4::integer, $5::text, ` +
        `$6::bigint, $7::text) as answer`,
      values: [id, token, to, outcomeVersion, outcome, retentionMs, by],
    }),
  }
}

export interface JobReplaceStatements {
  replace(job: NewJob, delayMs: number | null): PgStatement
  end(record: NewRecord, by: string): PgStatement
}
