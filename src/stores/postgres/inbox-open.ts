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
import type { Endings } from './endings.ts'
import type { GatedTransaction } from './gated-transaction.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import type { InboxStatements } from './inbox-statements.ts'
import type { PostgresSettings } from './operations.ts'
import { outboxInsertIf } from './outbox-insert.ts'

/** Letters of the statement `verdicts`. */
const LETTERS: Readonly<Record<string, InboxVerdict>> = {
  n: 'new',
  d: 'duplicate',
  m: 'mismatch',
  e: 'expired',
  b: 'behind',
  // There when the mark was refused, and purged since: another look will tell.
  g: 'busy',
}

const ONE_NEW: readonly InboxVerdict[] = ['new']

/** What the marks came to: the transaction they are in (undefined when none is new) and the verdicts. */
interface MarksAnswer {
  readonly transactionId: string | undefined
  readonly verdicts: readonly InboxVerdict[]
}

/** What the transaction is for. */
export interface InboxWork {
  readonly runs: readonly InboxRun[]
  /** The first run of each mark. */
  readonly distinct: readonly InboxRun[]
  /** The verdict on a single run, from outside. */
  readonly lookup: () => Promise<readonly InboxVerdict[]>
  /** Of the connection, where they can be watched. */
  readonly endings: Endings | undefined
}

export class PostgresOpenInbox<C extends PgClient> implements OpenInbox<C> {
  readonly tx: C
  readonly #transaction: GatedTransaction<C>
  readonly #work: InboxWork
  readonly #sql: InboxStatements
  readonly #settings: PostgresSettings
  /** Endings seen on the connection before the transaction. */
  readonly #endedBefore: number
  #answer: Promise<MarksAnswer> | undefined

  constructor(transaction: GatedTransaction<C>, work: InboxWork, sql: InboxStatements, settings: PostgresSettings) {
    this.tx = transaction.tx
    this.#transaction = transaction
    this.#work = work
    this.#sql = sql
    this.#settings = settings
    this.#endedBefore = work.endings?.seen ?? 0
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
    const { passed } = this.#transaction
    const taken = passed === undefined || this.#answer !== undefined ? undefined : this.#allTaken(passed)
    const { transactionId, verdicts } = taken ?? (await this.#read(this.#transaction.begin()))
    if (transactionId === undefined) {
      await this.rollback()
      return verdicts
    }
    const claim = this.#work.runs[0]?.claim
    const untouched = claim === undefined && this.#endedSince() === 0
    const statements: PgStatement[] = untouched ? [] : [this.#sql.seal(transactionId, claim)]
    if (outbox.length > 0) statements.push(outboxInsertIf(this.#settings.schema, outbox, transactionId))
    const result = await this.#transaction.commit(statements)
    switch (result.kind) {
      case 'committed':
        // Ours alone, or a statement that the work did not wait for was another: then the marks decide.
        return untouched && this.#endedSince() !== 1 ? 'unresolved' : 'committed'
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

  /** Endings that were seen since the transaction began; undefined where that is not known, or never worked so far. */
  #endedSince(): number | undefined {
    const { endings } = this.#work
    return endings === undefined || this.#endedBefore === 0 ? undefined : endings.seen - this.#endedBefore
  }

  #read(gate: Promise<PgResult>): Promise<MarksAnswer> {
    this.#answer ??= this.#marksTaken(gate)
    return this.#answer
  }

  async #marksTaken(gate: Promise<PgResult>): Promise<MarksAnswer> {
    try {
      return this.#allTaken(await gate) ?? (await this.#verdicts())
    } catch (error) {
      return await this.#refused(error)
    }
  }

  /** What the gate's answer comes to when every mark was taken; undefined when some were not. */
  #allTaken({ rows: [answer] }: PgResult): MarksAnswer | undefined {
    const { runs, distinct } = this.#work
    // Absent where a mark that is there fails the statement.
    const taken = answer?.['marks']
    if (taken !== undefined && Number(taken) !== distinct.length) return undefined
    return {
      transactionId: String(answer?.['xid']),
      verdicts: runs.length === 1 ? ONE_NEW : this.#spread(distinct.map(() => 'new')),
    }
  }

  /** A statement of its own: its snapshot is younger than the rows that the insert has met (B83). */
  async #verdicts(): Promise<MarksAnswer> {
    const { rows } = await this.#transaction.query(this.#sql.verdicts(this.#work.distinct))
    const letters = String(rows[0]?.['letters']).split('')
    const verdicts = letters.map((letter) => LETTERS[letter] ?? 'busy')
    const transactionId = verdicts.includes('new') ? String(rows[0]?.['xid']) : undefined
    return { transactionId, verdicts: this.#spread(verdicts) }
  }

  async #refused(error: unknown): Promise<MarksAnswer> {
    const { runs, lookup } = this.#work
    const state = sqlState(error)
    // Which of many it was is asked with their marks first.
    if (state === '23505' && runs.length === 1) {
      await this.#transaction.rollback()
      const [verdict] = await lookup()
      return { transactionId: undefined, verdicts: [verdict === undefined || verdict === 'new' ? 'busy' : verdict] }
    }
    const kind = classify(error)
    if (kind === 'statement') this.#settings.prepare = false
    // Worked on elsewhere, or a race that the database ended: another look will tell.
    if (state === '23505' || state === '23502' || state === '55P03' || kind === 'retry' || kind === 'statement') {
      return { transactionId: undefined, verdicts: runs.map(() => 'busy') }
    }
    throw toOnceError(error, 'taking marks')
  }

  /** Verdicts of the distinct runs spread over all: a repeated mark is judged against the first. */
  #spread(verdicts: readonly InboxVerdict[]): readonly InboxVerdict[] {
    const { runs, distinct } = this.#work
    if (distinct.length === runs.length) return verdicts
    const first = new Map(distinct.map((run, index) => [run.mark.id, { run, verdict: verdicts[index] ?? 'busy' }]))
    return runs.map((run) => {
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
