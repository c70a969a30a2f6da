/**
 * The door `effectively-once`: one intent, one outcome.
 *
 * @module
 */

export { EffectRefused, type Refusal } from './effect/failure.ts'
export {
  type CallContext,
  type Delivery,
  type EffectOptions,
  found,
  notApplied,
  type Reconciled,
  stillUnknown,
} from './effect/options.ts'
export {
  type AnswerKind,
  type Classified,
  classifyAnswer,
  classifyFailure,
  type ProviderAnswer,
  type ProviderName,
  type ProviderProfile,
  providerKey,
  providers,
} from './effect/provider/index.ts'
export { canonicalJson } from './fingerprint/canonical-value.ts'
export {
  type Fingerprint,
  type FingerprintMode,
  type FingerprintSecrets,
  fingerprint,
} from './fingerprint/fingerprint.ts'
export {
  type FingerprintRequest,
  type RequestFingerprintOptions,
  type RequestHeaders,
  requestFingerprint,
} from './fingerprint/request.ts'
export type { ConsumerEvent } from './inbox/events.ts'
export type { Identify } from './inbox/identity.ts'
export type { ReceivedMessage } from './inbox/message.ts'
export type {
  BatchContext,
  BatchHandler,
  Consumer,
  ConsumerDrainOptions,
  ConsumerHealth,
  ConsumerOptions,
  Handler,
  HandlerContext,
} from './inbox/options.ts'
export { type Unprocessable, unprocessable } from './inbox/unprocessable.ts'
export type { WorkerEvent } from './job/events.ts'
export type { Job, Kind, KindHandler, KindOptions, Started, StartOptions } from './job/kind.ts'
export type { Op } from './job/op.ts'
export type { OperationReference, ResolveReference, UnfinishedFilter } from './job/resolve.ts'
export type { LeaseOptions, RunOptions } from './job/settings.ts'
export type { StepTransactionOptions } from './job/step-transaction.ts'
export type { DrainOptions, WorkableKind, Worker, WorkerHealth, WorkerOptions } from './job/worker.ts'
export { createOnce, type Once, type OnceOptions } from './once.ts'
export type { WorkContext } from './operation/attempt.ts'
export type { Scope } from './operation/identity.ts'
export type { Claim, ClaimResult, InTransaction, SucceedOptions } from './operation/inner.ts'
export type { Operation, Outcome, RejectedOutcome, Succeeded } from './operation/operation.ts'
export { type Rejected, rejected } from './operation/rejected.ts'
export type { StatementOptions } from './operation/statement.ts'
export type { OutcomeOfWork, TransactionOptions } from './operation/transaction.ts'
export type { Outbox } from './outbox/buffer.ts'
export type { RelayEvent } from './outbox/events.ts'
export type { Message, OutboxOptions } from './outbox/message.ts'
export type { Relay, RelayHealth } from './outbox/relay.ts'
export type { RelayOptions } from './outbox/relay-options.ts'
export { type ClaimedBatch, createRelaySteps, type RelaySteps } from './outbox/steps.ts'
export type { Checkpoint, Chunk, ChunkContext, ChunkOptions, StreamReference } from './progress/chunk.ts'
export type {
  Quarantined,
  QuarantineFilter,
  QuarantineReference,
  RedrivenMessage,
} from './repair/quarantine.ts'
export type { PurgeOptions, PurgeReport } from './retention/purge.ts'
export type { Scheduler, SchedulerEvent, SchedulerOptions, Tick } from './schedule/index.ts'
export { ERRORS, type ErrorCode, type ErrorFacts, isOnceError, OnceError } from './shared/errors.ts'
export type { Act, JobEvent, JobSummary, ResolveAnswer } from './store/job.ts'
