/**
 * What the ledger offers, as its callers see it.
 *
 * @module
 */

import type { PgResult, PgStatement } from '../stores/postgres/handle.ts'
import type { CheckedMovement, NewEntry, NewReversal } from './content.ts'
import type { Instant } from './instant.ts'

/** The subset of a `pg.Pool` or `pg.PoolClient` that the ledger calls. */
export interface LedgerConnection {
  query(statement: PgStatement): Promise<PgResult>
}

/** An entry that is in the ledger. `posted`: by this call. `existing`: the same was posted before, nothing was added. */
export interface Posted {
  readonly kind: 'posted' | 'existing'
  readonly id: string
  /** By the database's clock, ISO 8601 with microseconds, in UTC. */
  readonly recordedAt: string
}

/**
 * How undoing an entry ended. `missing`: there is no such entry. `reversed`: another entry has undone it before; `by` is
 * its id.
 */
export type Reversed =
  | Posted
  | { readonly kind: 'missing' }
  | { readonly kind: 'reversed'; readonly by: string; readonly recordedAt: string }

/** An entry as it was posted. */
export interface LedgerEntry {
  readonly id: string
  readonly recordedAt: string
  readonly note: string | undefined
  /** Id of the entry that this one undoes. */
  readonly reverses: string | undefined
  /** Id of the entry that has undone this one. */
  readonly reversedBy: string | undefined
  readonly movements: readonly CheckedMovement[]
}

/** The ledger inside a transaction of yours: what it posts commits or vanishes with it. */
export interface LedgerInTransaction {
  /**
   * Posts an entry once.
   *
   * @throws {OnceError} `IDEMPOTENCY_KEY_REUSED` the id stands for another content; `TOO_BUSY` another open transaction
   *   posts the same id and did not end within 10 s (or your `lock_timeout`); `NOT_A_TRANSACTION` it was given a pool, or
   *   no transaction is open; `SCHEMA_MISSING`; `STORE_UNAVAILABLE`.
   * @throws {TypeError} The entry is not balanced, or a name, an amount or the note is not as {@link NewEntry} says.
   */
  post(entry: NewEntry): Promise<Posted>
  /**
   * Posts the counterpart of an entry once: the same movements with opposite signs. An entry is undone at most once,
   * whoever tries at the same time.
   *
   * @throws {OnceError} As `post`.
   */
  reverse(id: string, reversal: NewReversal): Promise<Reversed>
  /** Sum of an account's movements in one currency, those of this transaction among them. Minor units; 0 without any. */
  balance(account: string, currency: string): Promise<bigint>
  /** The same for every currency in which the account has ever moved. */
  balances(account: string): Promise<ReadonlyMap<string, bigint>>
  /** The entry, or undefined. */
  entry(id: string): Promise<LedgerEntry | undefined>
  /**
   * Keeps other transactions that hold one of these accounts waiting until this one ends, so that a balance that was read
   * afterwards still stands when a movement is posted. In READ COMMITTED only: above it the balance may be older.
   *
   * @throws {OnceError} `TOO_BUSY` an account was not free within 10 s (or your `lock_timeout`).
   */
  hold(...accounts: readonly string[]): Promise<void>
}

/** For questions about the past. */
export interface AsOf {
  /**
   * What was believed at this instant: entries recorded up to it, by the database's clock. A text has a zone and up to
   * six digits of a second, as `recordedAt` has; a Date has three. Must be in the past.
   */
  readonly asOf?: Instant | undefined
  readonly signal?: AbortSignal | undefined
}

export interface Ledger {
  /** Posts an entry once, in a transaction of its own. A repeat after a lost answer is safe. See {@link LedgerInTransaction.post}. */
  post(entry: NewEntry): Promise<Posted>
  /** Undoes an entry once, in a transaction of its own. See {@link LedgerInTransaction.reverse}. */
  reverse(id: string, reversal: NewReversal): Promise<Reversed>
  /**
   * Sum of an account's movements in one currency, minor units.
   *
   * With `asOf` the answer is the same whenever it is asked again: it waits for transactions that began to post by then.
   *
   * @throws {OnceError} `TOO_BUSY` such a transaction was still open after `settleMs`; `REPLICA_REFUSED` a standby can't
   *   tell.
   * @throws {RangeError} `asOf` is not in the past of the database's clock.
   */
  balance(account: string, currency: string, options?: AsOf): Promise<bigint>
  /** The same for every currency in which the account has moved by then. */
  balances(account: string, options?: AsOf): Promise<ReadonlyMap<string, bigint>>
  /** The entry, or undefined. */
  entry(id: string): Promise<LedgerEntry | undefined>
  /** The same ledger inside a transaction that you have opened. `tx` is the client on which BEGIN has run. */
  in(tx: LedgerConnection): LedgerInTransaction
}

export interface LedgerOptions {
  /** Schema of our tables. Default `effectively_once`. */
  readonly schema?: string | undefined
  /** Longest wait of a question about the past for transactions that post, milliseconds. Default 10_000; 0 to 600_000. */
  readonly settleMs?: number | undefined
}
