/**
 * Operations on PostgreSQL: the gate in front of the work's first statement, the record behind its last.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type {
  Attempt,
  CommitVerdict,
  FinishResult,
  FoundRecord,
  InnerClaim,
  NewRecord,
  OpenOperation,
  OpenOptions,
  OperationRecord,
  OperationStore,
  PurgedOperations,
  StatementResult,
  UnfinishedRecord,
  UserStatement,
  Verdict,
  WorkFailure,
} from '../../store/operation.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import type { PurgeBatch } from '../../store/retention.ts'
import { batchPort, sendBatch } from './batch.ts'
import { classify, sqlState, toOnceError, violatedConstraint } from './classify.ts'
import type { Connections } from './connections.ts'
import { GatedTransaction } from './gated-transaction.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { LookupGroup } from './lookup.ts'
import { outboxInsert, outboxInsertIf } from './outbox-insert.ts'
import { owned } from './own-types.ts'
import { overdueMs, purgeBatch, type RetentionStatements, retentionStatements } from './retention.ts'
import { OPERATION_CONSTRAINT, type OperationStatements, operationStatements } from './statements.ts'
import { inYourTransaction, requireTransaction } from './transaction-check.ts'
import { verifyCommit } from './verify-commit.ts'
import { isPlainValue } from './wire.ts'

export interface PostgresSettings {
  /** Quoted identifier. */
  readonly schema: string
  /** Longest wait for an answer to one of our own trips, milliseconds. */
  readonly answerTimeoutMs: number
  /** Prepared statements by name; switched off for good when a pooler turns out not to know them. */
  prepare: boolean
}

const VERDICTS: Readonly<Record<string, Exclude<Verdict, 'claimed'>>> = {
  EO001: 'busy',
  EO002: 'recorded',
  EO003: 'otherPayload',
}

export class PostgresOperations<C extends PgClient> implements OperationStore<C> {
  readonly #connections: Connections<C>
  readonly #settings: PostgresSettings
  readonly #sql: OperationStatements
  readonly #retention: RetentionStatements
  readonly #lookups: LookupGroup<FoundRecord>

  constructor(connections: Connections<C>, settings: PostgresSettings) {
    this.#connections = connections
    this.#settings = settings
    this.#sql = operationStatements(settings.schema)
    this.#retention = retentionStatements(settings.schema)
    this.#lookups = new LookupGroup((ids) => this.#fetch(ids))
  }

  open(attempt: Attempt, options: OpenOptions): Promise<OpenOperation<C>> {
    return this.#connections.acquire().then((client) => this.#opened(client, attempt, options))
  }

  #opened(client: C, attempt: Attempt, options: OpenOptions): OpenOperation<C> {
    const gate = options.gated ? this.#sql.gate(attempt, options.idleTimeoutMs) : this.#sql.open(options.idleTimeoutMs)
    // DEFERRABLE is what tells the gate that BEGIN has run (sql/postgres/0001_operation.sql).
    const begin =
      options.isolation === undefined ? 'begin deferrable' : `begin isolation level ${options.isolation}, deferrable`
    const transaction = new GatedTransaction(client, this.#connections, { begin, gate }, this.#settings)
    return new PostgresOpenOperation(transaction, this.#sql, this.#settings)
  }

  lookup(id: string): Promise<FoundRecord | undefined> {
    return this.#lookups.find(id)
  }

  async running(id: string): Promise<boolean> {
    try {
      const { rows } = await this.#connections.use(this.#settings.answerTimeoutMs, (client) =>
        client.query(owned(this.#sql.running(id))),
      )
      return rows[0]?.['running'] === true
    } catch (error) {
      throw toOnceError(error, 'asking whether an operation is running')
    }
  }

  verifyCommit(attempt: Attempt, boundMs: number): Promise<CommitVerdict> {
    return verifyCommit(this.#connections, this.#sql, attempt, boundMs)
  }

  async statement(
    record: Omit<NewRecord, 'outcome'>,
    user: UserStatement,
    outcomeBytesMax: number,
  ): Promise<StatementResult> {
    try {
      const { rows } = await this.#once(this.#sql.single(record, user, outcomeBytesMax))
      return { kind: 'stored', outcome: String(rows[0]?.['outcome']) }
    } catch (error) {
      return isOurConflict(error, this.#settings) ? await this.#lost(record.id) : this.#statementFailed(error)
    }
  }

  /** Somebody's record is there; an expired one makes room. */
  async #lost(id: string): Promise<StatementResult> {
    try {
      await this.#once(this.#sql.removeExpired(id))
      return { kind: 'lost' }
    } catch (error) {
      return this.#statementFailed(error)
    }
  }

  #statementFailed(error: unknown): StatementResult {
    if (error instanceof OnceError) throw error
    const kind = classify(error)
    if (kind === 'connection') return { kind: 'unresolved' }
    if (kind === 'retry') return { kind: 'retry' }
    if (kind === 'statement') {
      this.#settings.prepare = false
      return { kind: 'retry' }
    }
    // A table that is missing or forbidden may be one of the application's own. The server names tables without schema.
    const ours =
      String(error).includes(this.#settings.schema.replaceAll('"', '')) || String(error).endsWith(' operation')
    const own = (kind === 'schema' || kind === 'privilege') && !ours
    return { kind: 'failed', error: own ? error : toOnceError(error, 'running the statement') }
  }

  /** One statement on a client of its own: as a batch where its values allow, which asks the server for less. */
  #once(statement: PgStatement): Promise<PgResult> {
    const { answerTimeoutMs, prepare } = this.#settings
    return this.#connections.use(answerTimeoutMs, (client) => {
      const port = (statement.values ?? []).every(isPlainValue) ? batchPort(client) : null
      if (port === null) return client.query(owned(prepare ? statement : withoutName(statement)))
      return new Promise((resolve, reject) => {
        sendBatch(client, port, [statement], prepare, (error, [result]) => {
          if (error === null && result !== undefined) resolve(result)
          else reject(error ?? new Error('the statement gave no answer'))
        })
      })
    })
  }

  assertTransaction(tx: C): Promise<void> {
    return requireTransaction(tx, this.#settings.schema)
  }

  async addIn(tx: C, rows: readonly OutboxRow[]): Promise<void> {
    try {
      // A ROLLBACK may lie in front of this in the driver's queue; then both statements would commit by themselves, each
      // with an id of its own (B43).
      const { rows: ids } = await tx.query(owned({ text: 'select pg_catalog.pg_current_xact_id()::text as xid' }))
      const insert = outboxInsertIf(this.#settings.schema, rows, String(ids[0]?.['xid']))
      if ((await tx.query(withoutName(insert))).rowCount === rows.length) return
      throw new OnceError('NOT_A_TRANSACTION', 'the transaction of the handle ended before the messages were added')
    } catch (error) {
      throw inYourTransaction(error, 'adding messages')
    }
  }

  async claimIn(tx: C, attempt: Attempt): Promise<InnerClaim> {
    try {
      const { rows } = await tx.query(owned(this.#sql.claim(attempt)))
      const [verdict, transactionId] = String(rows[0]?.['answer']).split(' ')
      return { verdict: verdict as Verdict, transactionId }
    } catch (error) {
      throw inYourTransaction(error, 'claiming')
    }
  }

  async lookupIn(tx: C, id: string): Promise<FoundRecord | undefined> {
    try {
      const { rows } = await tx.query(owned(withoutName(this.#sql.lookup([id]))))
      return toRecords(rows)[0]
    } catch (error) {
      throw inYourTransaction(error, 'looking up an operation')
    }
  }

  async succeedIn(tx: C, record: NewRecord, transactionId: string): Promise<'stored' | 'lost' | 'fenced'> {
    try {
      const { rowCount } = await tx.query(withoutName(this.#sql.recordIf(record, transactionId)))
      return rowCount === 1 ? 'stored' : 'fenced'
    } catch (error) {
      if (isOurConflict(error, this.#settings)) return 'lost'
      throw inYourTransaction(error, 'recording')
    }
  }

  purge(batch: PurgeBatch): Promise<PurgedOperations> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.operations(batch)
    return purgeBatch(this.#connections, answerTimeoutMs, statement, batch, 'removing expired operations')
  }

  overdueMs(graceMs: number): Promise<number> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.operationsOverdue(graceMs)
    return overdueMs(this.#connections, answerTimeoutMs, statement, 'looking for expired operations')
  }

  failureOf(error: unknown): WorkFailure {
    return failureOf(error, this.#settings)
  }

  async #fetch(ids: readonly string[]): Promise<readonly FoundRecord[]> {
    const statement = this.#sql.lookup(ids)
    // As it is sent: another one may have switched it off by the time of the answer.
    const { prepare, answerTimeoutMs } = this.#settings
    try {
      const { rows } = await this.#connections.use(answerTimeoutMs, (client) =>
        client.query(owned(prepare ? statement : withoutName(statement))),
      )
      return toRecords(rows)
    } catch (error) {
      if (prepare && classify(error) === 'statement') {
        this.#settings.prepare = false
        return await this.#fetch(ids)
      }
      throw toOnceError(error, 'looking up operations')
    }
  }
}

const CLAIMED: Promise<Verdict> = Promise.resolve('claimed')

class PostgresOpenOperation<C extends PgClient> implements OpenOperation<C> {
  readonly tx: C
  readonly #transaction: GatedTransaction<C>
  readonly #sql: OperationStatements
  readonly #settings: PostgresSettings

  constructor(transaction: GatedTransaction<C>, sql: OperationStatements, settings: PostgresSettings) {
    this.tx = transaction.tx
    this.#transaction = transaction
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

  verdict(): Promise<Verdict> | undefined {
    if (this.#transaction.passed !== undefined) return CLAIMED
    const verdict = this.#transaction.gate?.then(
      () => 'claimed' as const,
      (error: unknown) => {
        const verdict = verdictOf(error)
        if (verdict !== undefined) return verdict
        if (sqlState(error) === '25001') throw inherited(error)
        throw toOnceError(error, 'opening the operation')
      },
    )
    // Who only looks whether there is one does not wait for it, and an unhandled rejection would end the process.
    verdict?.catch(() => {})
    return verdict
  }

  async decide(): Promise<Verdict> {
    this.#transaction.begin().catch(() => {})
    return (await this.verdict()) ?? 'claimed'
  }

  async finish(
    record: NewRecord | undefined,
    outbox: readonly OutboxRow[],
  ): Promise<FinishResult | Exclude<Verdict, 'claimed'>> {
    const { gate } = this.#transaction
    let statements: PgStatement[]
    if (record === undefined) {
      if (gate === undefined && outbox.length === 0) return 'stored'
      const transactionId = transactionIdOf(await this.#transaction.begin())
      statements = outbox.length === 0 ? [] : [outboxInsertIf(this.#settings.schema, outbox, transactionId)]
    } else if (gate === undefined) {
      // No statement of the user ran, so the transaction is certainly still the one that opens in this trip.
      statements = [this.#sql.record(record)]
      if (outbox.length > 0) statements.push(outboxInsert(this.#settings.schema, outbox))
    } else {
      const transactionId = transactionIdOf(this.#transaction.passed ?? (await gate))
      statements = [this.#sql.recordIf(record, transactionId)]
      if (outbox.length > 0) statements.push(outboxInsertIf(this.#settings.schema, outbox, transactionId))
    }
    const result = await this.#transaction.commit(statements)
    switch (result.kind) {
      case 'committed': {
        const written = record === undefined ? outbox.length : 1
        return statements.length === 0 || result.results[0]?.rowCount === written ? 'stored' : 'fenced'
      }
      case 'unknown':
        return 'unresolved'
      case 'rolledBack':
        return refusedFinish(result.error, this.#settings)
    }
  }

  untouched(): Promise<boolean> {
    return this.#transaction.untouched()
  }

  rollback(): Promise<'rolledBack' | 'lost'> {
    return this.#transaction.rollback()
  }

  abort(reason: Error): void {
    this.#transaction.abort(reason)
  }
}

/** What a certain refusal of the last trip means. Throws when it is no race. */
function refusedFinish(error: unknown, settings: PostgresSettings): FinishResult | Exclude<Verdict, 'claimed'> {
  const verdict = verdictOf(error)
  if (verdict !== undefined) return verdict
  if (sqlState(error) === '25001') throw inherited(error)
  if (isOurConflict(error, settings)) return 'lost'
  if (failureOf(error, settings) === 'retry') return 'retry'
  if (error === undefined || classify(error) === 'aborted') {
    throw new OnceError(
      'NOT_A_TRANSACTION',
      'a statement of the work failed and its error was swallowed, so the transaction was rolled back',
      { cause: error },
    )
  }
  throw toOnceError(error, 'recording the outcome')
}

/** How deep an error's causes are searched: query builders wrap the driver's error. */
const CAUSES_MAX = 5

/** What an error met inside a transaction of ours means for it. */
export function failureOf(error: unknown, settings: PostgresSettings): WorkFailure {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && current !== undefined && current !== null; depth++) {
    const state = sqlState(current)
    if (state !== undefined) {
      const kind = classify(current)
      if (kind === 'retry') return 'retry'
      if (kind === 'statement') {
        settings.prepare = false
        return 'retry'
      }
      return kind === 'connection' ? 'connectionLost' : 'other'
    }
    if (isDriverConnectionError(current)) return 'connectionLost'
    current = typeof current === 'object' && 'cause' in current ? current.cause : undefined
  }
  return 'other'
}

/** node-postgres reports a lost connection as a plain Error or a socket error. */
function isDriverConnectionError(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  if ('code' in error && typeof error.code === 'string') return /^(ECONN|EPIPE|ETIMEDOUT|EHOST|ENET)/.test(error.code)
  return /^(Connection terminated|Client has encountered a connection error|Client was closed)/.test(error.message)
}

function verdictOf(error: unknown): Exclude<Verdict, 'claimed'> | undefined {
  const state = sqlState(error)
  return state === undefined ? undefined : VERDICTS[state]
}

function isOurConflict(error: unknown, settings: PostgresSettings): boolean {
  return (
    classify(error) === 'conflict' &&
    violatedConstraint(error, settings.schema.replaceAll('"', '')) === OPERATION_CONSTRAINT
  )
}

/** DEFERRABLE is refused by a transaction in which statements ran; it is rolled back with the attempt. */
function inherited(cause: unknown): OnceError {
  return new OnceError('STORE_UNAVAILABLE', 'the pool handed out a connection inside a transaction of somebody else', {
    cause,
  })
}

function transactionIdOf(gate: PgResult): string {
  return String(gate.rows[0]?.['xid'])
}

export function withoutName(statement: PgStatement): PgStatement {
  return { text: statement.text, values: statement.values ?? [] }
}

/** One row without an id says that there is no record; a standby is refused whatever it has. */
function toRecords(rows: readonly Record<string, unknown>[]): FoundRecord[] {
  if (rows[0]?.['standby'] !== false) {
    throw new OnceError('REPLICA_REFUSED', 'looking up operations: the connection leads to a standby')
  }
  return rows.filter((row) => row['id'] !== null).map(toRecord)
}

function toRecord(row: Record<string, unknown>): FoundRecord {
  const { state, outcome } = row
  const named = {
    id: String(row['id']),
    token: String(row['token']),
    scope: String(row['scope']),
    fingerprint: {
      mode: row['fingerprint_mode'] as OperationRecord['fingerprint']['mode'],
      keyId: textOrNull(row['fingerprint_key']),
      value: row['fingerprint'] as Uint8Array,
    },
  }
  if (state !== 'succeeded' && state !== 'rejected') {
    const leaseLeftMs = Number(row['lease_left_ms'] ?? 0)
    return { ...named, state: state as UnfinishedRecord['state'], leaseLeftMs: leaseLeftMs > 0 ? leaseLeftMs : null }
  }
  return {
    ...named,
    state,
    ...(row['not_applied'] === true ? { notApplied: true } : {}),
    outcomeVersion: Number(row['outcome_version']),
    outcome: textOrNull(outcome),
    response: row['response'] instanceof Uint8Array ? row['response'] : undefined,
  }
}

function textOrNull(value: unknown): string | null {
  return typeof value === 'string' ? value : null
}
