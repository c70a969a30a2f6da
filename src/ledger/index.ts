/**
 * The door `effectively-once/ledger`: movements that are only ever added, balances as their sums, and rows that only a newer
 * version replaces. For PostgreSQL through `pg`.
 *
 * @module
 */

export type { PgResult, PgStatement } from '../stores/postgres/handle.ts'
export type { Amount, CheckedMovement, Movement, NewEntry, NewReversal } from './content.ts'
export type {
  AsOf,
  Ledger,
  LedgerConnection,
  LedgerEntry,
  LedgerInTransaction,
  LedgerOptions,
  Posted,
  Reversed,
} from './contract.ts'
export { type IfNewer, ifNewer, type VersionedRow } from './if-newer.ts'
export type { Instant } from './instant.ts'
export { createLedger } from './ledger.ts'
export { transfer } from './transfer.ts'
