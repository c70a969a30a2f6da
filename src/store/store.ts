/**
 * Store contract: everything that must be durable and decided by one database.
 *
 * @module
 */

import type { InboxStore } from './inbox.ts'
import type { JobStore } from './job.ts'
import type { MigrateOptions, MigrationReport } from './migration.ts'
import type { OperationStore } from './operation.ts'
import type { OutboxStore } from './outbox.ts'
import type { ProgressStore } from './progress.ts'

/** `Tx` is the user's own handle type: what every callback gets as `tx`. */
export interface Store<Tx> {
  readonly name: string
  readonly operations: OperationStore<Tx>
  readonly outbox: OutboxStore
  readonly inbox: InboxStore<Tx>
  readonly jobs: JobStore<Tx>
  readonly progress: ProgressStore<Tx>
  /** Creates or updates our tables. Safe with several nodes at once. */
  migrate(options?: MigrateOptions): Promise<MigrationReport>
  /**
   * Refuses what cannot be safe.
   * @throws {OnceError} SCHEMA_MISSING, SCHEMA_NEWER, REPLICA_REFUSED, STORE_UNAVAILABLE.
   */
  check(): Promise<void>
}
