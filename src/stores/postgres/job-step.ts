/**
 * One step's transaction: BEGIN and the fence's check in one trip with the work's first statement; the seal, the step,
 * its outbox rows and COMMIT in another.
 *
 * READ COMMITTED, whatever the database's default is: the heartbeat renews the lease while the step works, and above it
 * the seal, which locks that row, would fail as often as it met a renewal.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type { Lease, NewStep, OpenStep, StepFinish } from '../../store/job.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import { classify, sqlState, toOnceError, violatedConstraint } from './classify.ts'
import type { GatedTransaction } from './gated-transaction.ts'
import type { PgClient, PgStatement } from './handle.ts'
import type { StepStatements } from './job-step-statements.ts'
import { failureOf, type PostgresSettings } from './operations.ts'
import { outboxInsert, outboxInsertIf } from './outbox-insert.ts'

/** DEFERRABLE is what tells the gate that BEGIN has run (sql/postgres/0001_operation.sql). */
export const BEGIN_STEP = 'begin isolation level read committed, deferrable'

const STEP_CONSTRAINT = 'step_pkey'
const UNIQUE_VIOLATION = '23505'
const FENCED = 'EO008'
const ENDED = 'EO004'

export class PostgresOpenStep<C extends PgClient> implements OpenStep<C> {
  readonly tx: C
  readonly #transaction: GatedTransaction<C>
  readonly #lease: Lease
  readonly #sql: StepStatements
  readonly #settings: PostgresSettings

  constructor(transaction: GatedTransaction<C>, lease: Lease, sql: StepStatements, settings: PostgresSettings) {
    this.tx = transaction.tx
    this.#transaction = transaction
    this.#lease = lease
    this.#sql = sql
    this.#settings = settings
  }

  get conflict(): unknown {
    return this.#transaction.conflict
  }

  async now(): Promise<Date> {
    const { rows } = await this.#transaction.query({
      text: 'select (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::float8 as ms',
    })
    return new Date(Math.floor(Number(rows[0]?.['ms'])))
  }

  held(): Promise<boolean> | undefined {
    return this.#transaction.gate?.then(
      () => true,
      (error: unknown) => {
        if (sqlState(error) === FENCED) return false
        throw toOnceError(error, 'opening a step')
      },
    )
  }

  async finish(step: NewStep, outbox: readonly OutboxRow[]): Promise<StepFinish> {
    const { gate, passed } = this.#transaction
    let transactionId: string | undefined
    if (gate !== undefined) {
      try {
        transactionId = String((passed ?? (await gate)).rows[0]?.['xid'])
      } catch (error) {
        await this.#transaction.rollback()
        return this.#refused(error)
      }
    }
    const statements: PgStatement[] = [
      this.#sql.seal(this.#lease, transactionId),
      this.#sql.storeStep(this.#lease, step),
    ]
    if (outbox.length > 0) {
      const { schema } = this.#settings
      statements.push(
        transactionId === undefined ? outboxInsert(schema, outbox) : outboxInsertIf(schema, outbox, transactionId),
      )
    }
    const result = await this.#transaction.commit(statements)
    switch (result.kind) {
      case 'committed':
        return 'stored'
      case 'unknown':
        return 'unresolved'
      case 'rolledBack':
        return this.#refused(result.error)
    }
  }

  rollback(): Promise<'rolledBack' | 'lost'> {
    return this.#transaction.rollback()
  }

  abort(reason: Error): void {
    this.#transaction.abort(reason)
  }

  /** What a certain refusal means. Throws when it is no race. */
  #refused(error: unknown): StepFinish {
    const code = sqlState(error)
    if (code === FENCED) return 'fenced'
    if (code === ENDED) return 'ended'
    const constraint = violatedConstraint(error, this.#settings.schema.replaceAll('"', ''))
    if (code === UNIQUE_VIOLATION && constraint === STEP_CONSTRAINT) return 'exists'
    if (error !== undefined && failureOf(error, this.#settings) === 'retry') return 'retry'
    if (error === undefined || classify(error) === 'aborted') {
      throw new OnceError(
        'NOT_A_TRANSACTION',
        'a statement of the step failed and its error was swallowed, so the transaction was rolled back',
        { cause: error },
      )
    }
    throw toOnceError(error, 'storing a step')
  }
}
