/**
 * Progress on PostgreSQL: one row a line, compared and replaced in the caller's transaction.
 *
 * @module
 */

import type { ProgressIdentity, ProgressRecord, ProgressStore } from '../../store/progress.ts'
import type { Connections } from './connections.ts'
import type { PgClient } from './handle.ts'
import { fromPrimary } from './job-rows.ts'
import { JobRunner } from './job-run.ts'
import { ageMs, CLOCK, type Prepared, prepared, valued } from './job-sql.ts'
import type { PostgresSettings } from './operations.ts'
import { owned } from './own-types.ts'
import { inYourTransaction, requireTransaction } from './transaction-check.ts'

export class PostgresProgress<C extends PgClient> implements ProgressStore<C> {
  readonly #runner: JobRunner<C>
  readonly #settings: PostgresSettings
  readonly #sql: ProgressStatements

  constructor(connections: Connections<C>, settings: PostgresSettings) {
    this.#runner = new JobRunner(connections, settings)
    this.#settings = settings
    this.#sql = progressStatements(settings.schema)
  }

  async read(id: string): Promise<ProgressRecord> {
    const { rows } = await this.#runner.ask(valued(this.#sql.read, [id]), 'reading progress')
    fromPrimary(rows, 'now_ms', 'reading progress')
    const [row] = rows
    const number = row?.['number'] ?? null
    return {
      number: number === null ? 0 : Number(number),
      position: number === null ? null : String(row?.['position']),
      nowMs: Number(row?.['now_ms']),
      ageMs: number === null ? null : Number(row?.['age_ms']),
    }
  }

  async advanceIn(tx: C, identity: ProgressIdentity, from: number, position: string): Promise<'advanced' | 'fenced'> {
    await requireTransaction(tx, this.#settings.schema)
    const { id, scope, name } = identity
    const { text } = from === 0 ? this.#sql.first : this.#sql.next
    const values = from === 0 ? [id, position, scope, name] : [id, position, from]
    try {
      // Without a name: in the application's transaction no prepared statement of ours may get lost or fail.
      const { rows } = await tx.query(owned({ text, values }))
      return rows.length === 1 ? 'advanced' : 'fenced'
    } catch (error) {
      throw inYourTransaction(error, 'advancing progress')
    }
  }
}

interface ProgressStatements {
  readonly read: Prepared
  readonly first: Prepared
  readonly next: Prepared
}

/** The SQL of one schema; `schema` is the quoted identifier. */
export function progressStatements(schema: string): ProgressStatements {
  const progress = `${schema}.progress`
  return {
    read: prepared(
      schema,
      'progress_read',
      // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
      `select s.standby, s.now_ms, p.number::text as number, p.position, ${ageMs('p.advanced_at')} as age_ms ` +
        `from (select pg_catalog.pg_is_in_recovery() as standby, ` +
        `(extract(epoch from ${CLOCK}) * 1000)::float8 as now_ms) s left join ${progress} p on p.id = $1::uuid`,
    ),
    first: prepared(
      schema,
      'progress_first',
      // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
      `insert into ${progress} (id, position, scope, name, number) values ($1::uuid, $2::text, $3::text, $4::text, 1) ` +
        'on conflict (id) do nothing returning number::text',
    ),
    next: prepared(
      schema,
      'progress_next',
      // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
      `update ${progress} set number = number + 1, position = $2::text, advanced_at = ${CLOCK} ` +
        'where id = $1::uuid and number = $3::bigint returning number::text',
    ),
  }
}
