/**
 * The memory store: the reference, for reading and for unit tests. Never for production: it forgets with the process.
 *
 * @module
 */

import type { MigrationReport } from '../../store/migration.ts'
import type { Store } from '../../store/store.ts'
import { MemoryDatabase, type MemoryTx } from './database.ts'
import { MemoryInbox } from './inbox.ts'
import type { Audit } from './job-operator.ts'
import { MemoryJobs } from './jobs.ts'
import { MemoryOperations } from './operations.ts'
import { MemoryOutbox } from './outbox.ts'
import { MemoryProgress } from './progress.ts'
import { MemoryRecords } from './records.ts'

export type { MemoryDatabase, MemoryTx } from './database.ts'
export type { MemoryOutbox } from './outbox.ts'

/** A store in this process's memory. */
export interface MemoryStore extends Store<MemoryTx> {
  readonly database: MemoryDatabase
  readonly outbox: MemoryOutbox
  /** Starts a transaction of the application itself, for `once.in(tx)`. */
  begin(): MemoryTx & { commit(): void; rollback(): void }
}

/**
 * Makes an empty store.
 *
 * @throws {TypeError} with NODE_ENV=production: an outcome that a restart forgets protects nobody.
 */
export function memory(): MemoryStore {
  if (process.env['NODE_ENV'] === 'production') {
    throw new TypeError('the memory store forgets everything with the process; it is not for production')
  }
  const database = new MemoryDatabase()
  const outbox = new MemoryOutbox(database)
  const audit: Audit = (act, subject, { actor, reason }) => outbox.audit.push({ act, subject, actor, reason })
  const operations = new MemoryOperations(database, new MemoryRecords(database), (rows) => outbox.insert(rows))
  const jobs = new MemoryJobs(operations, audit)
  const inbox = new MemoryInbox(database, (rows) => outbox.insert(rows), audit)
  const nothingToMigrate: MigrationReport = { schema: 'memory', dryRun: false, before: null, after: null, steps: [] }
  return {
    name: 'memory',
    database,
    operations,
    outbox,
    inbox,
    jobs,
    progress: new MemoryProgress(database, (tx) => operations.assertTransaction(tx)),
    begin: () => operations.begin(),
    migrate: async () => nothingToMigrate,
    check: async () => {},
  }
}
