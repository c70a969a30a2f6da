/**
 * Harness: what a store adapter gives the conformance suite to work with.
 *
 * Needs that a harness may lack: `clock` (advance), `statement` (the one-statement form), `own-clock` (the store's clock
 * is not that of this process).
 *
 * @module
 */

import type { Capabilities } from '../../shared/conformance.ts'
import type { UserStatement } from '../operation.ts'
import type { Store } from '../store.ts'

export interface StoreHarness<Tx = unknown> extends Capabilities {
  /** A fresh, migrated, empty store; the caller closes it. */
  open(): Promise<OpenStore<Tx>>
}

export interface OpenStore<Tx> {
  readonly store: Store<Tx>
  /** The application's own write inside a transaction. */
  write(tx: Tx, name: string): Promise<void>
  /** How many committed writes of this name there are. */
  count(name: string): Promise<number>
  /** The same write as a statement of the application, for stores that take statements. */
  writeStatement(name: string): UserStatement
  /** Runs `work` in a transaction of the application itself: commits when it returns, rolls back when it throws. */
  transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  /** A handle on which no transaction is open. */
  idleHandle(): Promise<{ readonly tx: Tx; close(): Promise<void> }>
  /** Ids of the messages in the history of published ones, oldest first. */
  historyIds(): Promise<string[]>
  /** Acts of operators, oldest first. */
  audited(): Promise<
    readonly { readonly act: string; readonly subject: string; readonly actor: string; readonly reason: string }[]
  >
  /** As if the database had been copied: what is stored was written in another cluster. */
  moveToAnotherCluster(): Promise<void>
  /** Moves every stored instant `ms` into the past. */
  advance(ms: number): Promise<void>
  close(): Promise<void>
}
