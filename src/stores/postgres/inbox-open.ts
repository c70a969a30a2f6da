/**
 * One inbox transaction: BEGIN and the marks in one trip (with the work's first statement), outputs, seal and COMMIT
 * in another.
 *
 * @module
 */

import { hash } from 'node:crypto'
import { OnceError } from '../../shared/errors.ts'
import type { InboxFinish, InboxRun, InboxVerdict, OpenInbox } from '../../store/inbox.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import { classify, sqlState, toOnceError } from './classify.ts'
import type { GatedTransaction } from './gated-transaction.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import type { InboxStatements } from './inbox-statements.ts'
import type { PostgresSettings } from './operations.ts'
import { outboxInsertIf } from './outbox-insert.ts'

/** Letters of inbox_gate_many. */
const LETTERS: Readonly<Record<string, InboxVerdict>> = {
  n: 'new',
  d: 'duplicate',
  m: 'mismatch',
  e: 'expired',
  b: 'behind',
}

/** What the gate said: the transaction it runs in (undefined when it refused the only message) and the verdicts. */
interface GateAnswer {
  readonly transactionId: string | undefined
  readonly verdicts: readonly InboxVerdict[]
}

export class PostgresOpenInbox<C extends PgClient> implements OpenInbox<C> {
  readonly tx: C
  readonly #transaction: GatedTransaction<C>
  readonly #runs: readonly InboxRun[]
  readonly #distinct: readonly InboxRun[]
  readonly #sql: InboxStatements
  readonly #settings: PostgresSettings
  #answer: Promise<GateAnswer> | undefined

  constructor(
    transaction: GatedTransaction<C>,
    runs: readonly InboxRun[],
    distinct: readonly InboxRun[],
    sql: InboxStatements,
    settings: PostgresSettings,
  ) {
    this.tx = transaction.tx
    this.#transaction = transaction
    this.#runs = runs
    this.#distinct = distinct
    this.#sql = sql
    this.#settings = settings
  }

  async now(): Promise<Date> {
    const { rows } = await this.#transaction.query({
      text: 'select (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::float8 as ms',
    })
    return new Date(Math.floor(Number(rows[0]?.['ms'])))
  }

  async begin(): Promise<readonly InboxVerdict[]> {
    return (await this.#read(this.#transaction.begin())).verdicts
  }

  verdicts(): Promise<readonly InboxVerdict[]> | undefined {
    const { gate } = this.#transaction
    return gate === undefined ? undefined : this.#read(gate).then((answer) => answer.verdicts)
  }

  async ifNewer(consumer: string, entity: string, version: bigint): Promise<boolean> {
    const id = versionId(consumer, entity)
    const { rowCount } = await this.#transaction.query(this.#sql.ifNewer(id, consumer, entity, version))
    return rowCount === 1
  }

  async finish(outbox: readonly OutboxRow[]): Promise<InboxFinish | readonly InboxVerdict[]> {
    const { transactionId, verdicts } = await this.#read(this.#transaction.begin())
    if (transactionId === undefined) {
      await this.rollback()
      return verdicts
    }
    const statements: PgStatement[] = [this.#sql.seal(transactionId, this.#runs[0]?.claim)]
    if (outbox.length > 0) statements.push(outboxInsertIf(this.#settings.schema, outbox, transactionId))
    const result = await this.#transaction.commit(statements)
    switch (result.kind) {
      case 'committed':
        return 'committed'
      case 'unknown':
        return 'unresolved'
      case 'rolledBack':
        return refusedFinish(result.error, this.#settings)
    }
  }

  rollback(): Promise<'rolledBack' | 'lost'> {
    return this.#transaction.rollback()
  }

  abort(reason: Error): void {
    this.#transaction.abort(reason)
  }

  #read(gate: Promise<PgResult>): Promise<GateAnswer> {
    this.#answer ??= gate.then(
      (result) => this.#parse(String(result.rows[0]?.['answer'])),
      (error: unknown) => this.#refused(error),
    )
    return this.#answer
  }

  #parse(answer: string): GateAnswer {
    const [first = '', second] = answer.split(' ')
    if (first === 'new') return { transactionId: second, verdicts: this.#spread(this.#distinct.map(() => 'new')) }
    if (second === undefined) return { transactionId: undefined, verdicts: this.#spread([first as InboxVerdict]) }
    const letters = second.split('').map((letter) => LETTERS[letter] ?? 'busy')
    const transactionId = letters.includes('new') ? first : undefined
    return { transactionId, verdicts: this.#spread(letters) }
  }

  #refused(error: unknown): GateAnswer {
    if (sqlState(error) === 'EO002') {
      const verdict = (error as { message: string }).message as InboxVerdict
      return { transactionId: undefined, verdicts: this.#spread([verdict]) }
    }
    // A batch met a message that another transaction holds for longer than it waits, or a race of the serializer.
    if (sqlState(error) === '55P03' || classify(error) === 'retry') {
      return { transactionId: undefined, verdicts: this.#runs.map(() => 'busy') }
    }
    if (classify(error) === 'statement') {
      this.#settings.prepare = false
      return { transactionId: undefined, verdicts: this.#runs.map(() => 'busy') }
    }
    throw toOnceError(error, 'taking marks')
  }

  /** Verdicts of the distinct runs spread over all: a repeated mark is judged against the first. */
  #spread(verdicts: readonly InboxVerdict[]): readonly InboxVerdict[] {
    if (this.#distinct.length === this.#runs.length) return verdicts
    const first = new Map(
      this.#distinct.map((run, index) => [run.mark.id, { run, verdict: verdicts[index] ?? 'busy' }]),
    )
    return this.#runs.map((run) => {
      const known = first.get(run.mark.id)
      if (known === undefined) return 'busy'
      if (known.run === run || known.verdict === 'behind' || known.verdict === 'busy') return known.verdict
      if (!sameBytes(known.run.mark.fingerprint, run.mark.fingerprint)) return 'mismatch'
      return known.verdict === 'new' ? 'duplicate' : known.verdict
    })
  }
}

/** What a certain refusal of the last trip means. Throws when it is no race. */
function refusedFinish(error: unknown, settings: PostgresSettings): InboxFinish {
  if (sqlState(error) === 'EO004') return (error as { message: string }).message === 'fenced' ? 'fenced' : 'ended'
  const kind = classify(error)
  if (error !== undefined && kind === 'retry') return 'retry'
  if (error !== undefined && kind === 'statement') {
    settings.prepare = false
    return 'retry'
  }
  if (error === undefined || kind === 'aborted') {
    throw new OnceError(
      'NOT_A_TRANSACTION',
      'a statement of the handler failed and its error was swallowed, so the transaction was rolled back',
      { cause: error },
    )
  }
  throw toOnceError(error, 'committing a message')
}

/** First 16 bytes of SHA-256 over length-prefixed consumer and entity. */
function versionId(consumer: string, entity: string): string {
  const text = `${Buffer.byteLength(consumer)}:${consumer}${Buffer.byteLength(entity)}:${entity}`
  const hex = hash('sha256', text, 'hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}

export function sameBytes(a: unknown, b: Uint8Array): boolean {
  return a instanceof Uint8Array && Buffer.compare(a, b) === 0
}
