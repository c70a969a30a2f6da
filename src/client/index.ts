/**
 * The door `effectively-once/client`: sends an operation until there is an answer, with one key and the same bytes.
 *
 * Web APIs only: the built files run unchanged in browsers and in Node.js.
 *
 * @module
 */

export type { Fetch } from './attempt.ts'
export type { BackoffOptions } from './backoff.ts'
export { type RetryBudget, type RetryBudgetOptions, type RetryCause, retryBudget } from './budget.ts'
export type { Clock } from './clock.ts'
export { ClientError, type ClientErrorCode } from './errors.ts'
export { createOperation, type OperationOptions, type SendOperation } from './operation.ts'
export type { Problem } from './problem.ts'
export type { UnreadableReason } from './record.ts'
export type {
  Completed,
  GaveUp,
  GaveUpReason,
  LastSeen,
  LaterReason,
  OperationResult,
  Refused,
  Unknown,
  UnknownReason,
} from './result.ts'
export {
  type PendingOperations,
  type PendingOptions,
  pendingOperations,
  type ResumeOptions,
  type ResumeReport,
  resumeOperations,
  type UnreadableEntry,
} from './resume.ts'
export { retryAfterMs } from './retry-after.ts'
export type { AttemptHeaders, ClientOptions, SendCall } from './settings.ts'
export type { OperationStorage, StoredEntry, Turn } from './storage.ts'
export { type IndexedDbOptions, indexedDbStorage } from './storages/indexed-db.ts'
export { type LocalStorageOptions, localStorageStorage, type StorageArea } from './storages/local-storage.ts'
export { type MemoryStorageOptions, memoryStorage } from './storages/memory.ts'
