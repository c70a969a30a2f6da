/**
 * Operations in memory: the same decisions as on a database, readable in one go.
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
  OperationStore,
  PurgedOperations,
  StatementResult,
  Verdict,
  WorkFailure,
} from '../../store/operation.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import type { PurgeBatch } from '../../store/retention.ts'
import { type MemoryDatabase, MemoryTransaction, type MemoryTx } from './database.ts'
import { leftMs, type MemoryRecords } from './records.ts'

/** Takes the rows of a commit. */
export type InsertRows = (rows: readonly OutboxRow[]) => void

export class MemoryOperations implements OperationStore<MemoryTx> {
  readonly database: MemoryDatabase
  readonly records: MemoryRecords
  readonly insert: InsertRows
  /** Who works on a key at the moment, and on which payload. */
  readonly #owners: Map<string, { readonly token: string; readonly payload: string }> = new Map()
  /** Transactions that belong to the caller, by their handle. */
  readonly #inner: WeakMap<object, InnerTransaction> = new WeakMap()
  #transactions = 0

  constructor(database: MemoryDatabase, records: MemoryRecords, insert: InsertRows) {
    this.database = database
    this.records = records
    this.insert = insert
  }

  async open(attempt: Attempt, options: OpenOptions): Promise<OpenOperation<MemoryTx>> {
    return new MemoryOpenOperation(this, attempt, options, (tx, transaction) => this.#join(tx, transaction))
  }

  async lookup(id: string): Promise<FoundRecord | undefined> {
    return this.find(id)
  }

  async running(id: string): Promise<boolean> {
    return this.isRunning(id)
  }

  /** Whether a transaction works under this key. */
  isRunning(id: string): boolean {
    return this.#owners.has(id)
  }

  async verifyCommit(attempt: Attempt): Promise<CommitVerdict> {
    const record = this.find(attempt.id)
    if (record !== undefined) return record.token === attempt.token ? 'committed' : 'other'
    return this.#owners.get(attempt.id)?.token === attempt.token ? 'unresolved' : 'notCommitted'
  }

  async statement(): Promise<StatementResult> {
    throw new TypeError('the memory store has no statements; use once.transaction')
  }

  failureOf(): WorkFailure {
    return 'other'
  }

  /** Starts a transaction of the caller, for `once.in(tx)`. */
  begin(): MemoryTx & { commit(): void; rollback(): void } {
    const transaction = new MemoryTransaction(this.database)
    const handle = {
      get: (name: string) => transaction.get(name),
      put: (name: string, value: unknown) => transaction.put(name, value),
      commit: () => transaction.commit(),
      rollback: () => transaction.rollback(),
    }
    this.#join(handle, transaction)
    return handle
  }

  async assertTransaction(tx: MemoryTx): Promise<void> {
    this.#innerOf(tx)
  }

  async addIn(tx: MemoryTx, rows: readonly OutboxRow[]): Promise<void> {
    this.#innerOf(tx).atCommit.push(() => this.insert(rows))
  }

  async claimIn(tx: MemoryTx, attempt: Attempt): Promise<InnerClaim> {
    const inner = this.#innerOf(tx)
    const verdict = this.decide(attempt)
    if (verdict === 'claimed') inner.claims.push(attempt)
    return { verdict, transactionId: inner.id }
  }

  /** Does `act` when the caller's transaction commits, and holds the key until it ends. */
  enlist(tx: MemoryTx, attempt: Attempt, act: () => void): 'stored' | 'exists' | 'busy' {
    const inner = this.#innerOf(tx)
    if (inner.claims.some(({ id }) => id === attempt.id)) return 'exists'
    const verdict = this.decide(attempt)
    if (verdict !== 'claimed') return verdict === 'recorded' ? 'exists' : 'busy'
    inner.claims.push(attempt)
    inner.atCommit.push(act)
    return 'stored'
  }

  /** Whether the caller's transaction has this key for itself. */
  hasKey(tx: MemoryTx, id: string): boolean {
    return this.#innerOf(tx).claims.some((claim) => claim.id === id)
  }

  /** Does `act` when the caller's transaction has ended, and what it has enlisted before. */
  atEnd(tx: MemoryTx, act: (committed: boolean) => void): void {
    this.#innerOf(tx).transaction.atEnd(act)
  }

  async lookupIn(_tx: MemoryTx, id: string): Promise<FoundRecord | undefined> {
    return this.find(id)
  }

  async succeedIn(tx: MemoryTx, record: NewRecord, transactionId: string): Promise<'stored' | 'lost' | 'fenced'> {
    const inner = this.#innerOf(tx)
    if (inner.id !== transactionId) return 'fenced'
    if (this.find(record.id) !== undefined) return 'lost'
    inner.atCommit.push(() => this.records.keep(record))
    return 'stored'
  }

  async purge(batch: PurgeBatch): Promise<PurgedOperations> {
    // Of those that are worked on the owner is about to replace the record.
    return this.records.purge(batch, (id) => this.#owners.has(id))
  }

  async overdueMs(graceMs: number): Promise<number> {
    return this.records.overdueMs(graceMs)
  }

  /** The live record, by the store's clock, or the leased operation that holds the key. */
  find(id: string): FoundRecord | undefined {
    const job = this.records.unfinished(id)
    if (job === undefined) return this.records.finished(id)
    const { scope, token, state, fingerprint } = job
    return { id, scope, token, state, fingerprint, leaseLeftMs: leftMs(job.leaseUntilMs, this.database.now()) }
  }

  /** The gate. */
  decide(attempt: Attempt): Verdict {
    const payload = Buffer.from(attempt.fingerprint.value).toString('hex')
    const owner = this.#owners.get(attempt.id)
    if (owner !== undefined) return owner.payload === payload ? 'busy' : 'otherPayload'
    if (this.find(attempt.id) !== undefined) return 'recorded'
    this.#owners.set(attempt.id, { token: attempt.token, payload })
    return 'claimed'
  }

  release(attempt: Attempt): void {
    if (this.#owners.get(attempt.id)?.token === attempt.token) this.#owners.delete(attempt.id)
  }

  /** Lets `tx` be used with `once.in(tx)`: what is added there is done with the commit, and keys are held until the end. */
  #join(tx: MemoryTx, transaction: MemoryTransaction): void {
    this.#transactions += 1
    const inner: InnerTransaction = { transaction, id: String(this.#transactions), atCommit: [], claims: [] }
    this.#inner.set(tx, inner)
    transaction.atEnd((committed) => {
      if (committed) for (const act of inner.atCommit) act()
      for (const attempt of inner.claims) this.release(attempt)
    })
  }

  #innerOf(tx: MemoryTx): InnerTransaction {
    const inner = this.#inner.get(tx)
    if (inner === undefined || inner.transaction.ended) {
      throw new OnceError('NOT_A_TRANSACTION', 'the handle has no open transaction of this memory store')
    }
    return inner
  }
}

interface InnerTransaction {
  readonly transaction: MemoryTransaction
  readonly id: string
  readonly atCommit: (() => void)[]
  readonly claims: Attempt[]
}

class MemoryOpenOperation implements OpenOperation<MemoryTx> {
  readonly tx: MemoryTx
  readonly conflict: undefined = undefined
  readonly #store: MemoryOperations
  readonly #attempt: Attempt
  readonly #gated: boolean
  readonly #transaction: MemoryTransaction
  #verdict: Verdict | undefined

  constructor(
    store: MemoryOperations,
    attempt: Attempt,
    options: OpenOptions,
    join: (tx: MemoryTx, transaction: MemoryTransaction) => void,
  ) {
    this.#store = store
    this.#attempt = attempt
    this.#gated = options.gated
    this.#transaction = new MemoryTransaction(store.database)
    this.tx = {
      get: (name) => this.#opened().get(name),
      put: (name, value) => this.#opened().put(name, value),
    }
    join(this.tx, this.#transaction)
  }

  async now(): Promise<Date> {
    this.#opened()
    return new Date(this.#store.database.now())
  }

  verdict(): Promise<Verdict> | undefined {
    return this.#verdict === undefined ? undefined : Promise.resolve(this.#verdict)
  }

  async decide(): Promise<Verdict> {
    return this.#begin()
  }

  async finish(
    record: NewRecord | undefined,
    outbox: readonly OutboxRow[],
  ): Promise<FinishResult | Exclude<Verdict, 'claimed'>> {
    const verdict = this.#begin()
    if (verdict !== 'claimed') return verdict
    if (this.#transaction.ended) return 'fenced'
    if (record !== undefined && this.#store.find(record.id) !== undefined) {
      await this.rollback()
      return 'lost'
    }
    this.#transaction.commit()
    if (record !== undefined) this.#store.records.keep(record)
    if (outbox.length > 0) this.#store.insert(outbox)
    this.#store.release(this.#attempt)
    return 'stored'
  }

  async untouched(): Promise<boolean> {
    return !this.#transaction.ended
  }

  async rollback(): Promise<'rolledBack'> {
    this.#transaction.rollback()
    this.#store.release(this.#attempt)
    return 'rolledBack'
  }

  abort(): void {
    this.#transaction.rollback()
    this.#store.release(this.#attempt)
  }

  #begin(): Verdict {
    this.#verdict ??= this.#gated ? this.#store.decide(this.#attempt) : 'claimed'
    return this.#verdict
  }

  #opened(): MemoryTransaction {
    if (this.#begin() !== 'claimed' || this.#transaction.ended) {
      throw new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended')
    }
    return this.#transaction
  }
}
