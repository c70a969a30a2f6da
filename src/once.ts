/**
 * Once: the one object that an application makes, from live objects it already has.
 *
 * @module
 */

import type { Reconciled } from './effect/options.ts'
import { type FingerprintSecrets, validateFingerprintSecrets } from './fingerprint/stored.ts'
import { createConsumer } from './inbox/consumer.ts'
import type { Consumer, ConsumerOptions } from './inbox/options.ts'
import { defineKind, type Kind, type KindOptions } from './job/kind.ts'
import { keeperOf } from './job/lease.ts'
import type { Op } from './job/op.ts'
import {
  history,
  type OperationReference,
  type ResolveReference,
  redrive,
  resolve,
  type UnfinishedFilter,
  unfinished,
} from './job/resolve.ts'
import { runLeased } from './job/run.ts'
import type { RunOptions } from './job/settings.ts'
import { stopRuns } from './job/stop.ts'
import { createWorker, type Worker, type WorkerOptions } from './job/worker.ts'
import type { WorkContext } from './operation/attempt.ts'
import { type Engine, lendEngine } from './operation/engine.ts'
import { InFlight } from './operation/in-flight.ts'
import { type InTransaction, inTransaction } from './operation/inner.ts'
import type { Operation, Outcome } from './operation/operation.ts'
import { OUTCOME_BYTES_MAX } from './operation/outcome.ts'
import { runStatement, type StatementOptions } from './operation/statement.ts'
import { type OutcomeOfWork, runTransaction, type TransactionOptions } from './operation/transaction.ts'
import { type OutboxOptions, outboxLimits } from './outbox/message.ts'
import { createRelay, type Relay } from './outbox/relay.ts'
import type { RelayOptions } from './outbox/relay-options.ts'
import {
  type Checkpoint,
  type Chunk,
  type ChunkContext,
  type ChunkOptions,
  readCheckpoint,
  runChunk,
  type StreamReference,
} from './progress/chunk.ts'
import {
  type Quarantined,
  type QuarantineFilter,
  type QuarantineReference,
  quarantined,
  type RedrivenMessage,
  redriveMessages,
} from './repair/quarantine.ts'
import { type PurgeOptions, type PurgeReport, purge } from './retention/purge.ts'
import { createScheduler, type Scheduler, type SchedulerOptions } from './schedule/index.ts'
import { integerOption, refuseUnknownOptions } from './shared/options.ts'
import type { Wake } from './shared/wake.ts'
import type { Act, JobEvent, JobSummary, ResolveAnswer } from './store/job.ts'
import type { MigrateOptions, MigrationReport } from './store/migration.ts'
import type { UserStatement } from './store/operation.ts'
import type { Store } from './store/store.ts'

export interface OnceOptions<Tx> {
  /** Where everything durable lives, for instance `postgres(pool)`. */
  readonly store: Store<Tx>
  /** Keys stored fingerprints (HMAC-SHA-256), so that small payloads cannot be guessed from the table. */
  readonly secrets?: FingerprintSecrets | undefined
  /** Lanes and limits of messages. */
  readonly outbox?: OutboxOptions | undefined
  /** Largest encoded outcome, bytes. Default 262_144; 1_024 to 16_777_216. */
  readonly outcomeBytesMax?: number | undefined
}

export interface Once<Tx> {
  /**
   * Runs `work` for one operation in one database transaction, together with the claim, the messages and the outcome;
   * later calls with the same scope, key and payload get that outcome back without running `work`.
   *
   * Promised: at most one outcome commits, and the work's writes commit with it or not at all. Not promised: that
   * `work` starts only once. After a deadlock or a crash it starts again in a fresh transaction, and for a duplicate
   * the code before its first statement may run. So effects belong in `context.tx`.
   *
   * @returns `state` succeeded or rejected, `value` or `rejection`, `replayed`. The first caller gets the stored
   *   form too.
   * @throws {OnceError} `IDEMPOTENCY_KEY_MISSING`, `IDEMPOTENCY_KEY_INVALID`; `IDEMPOTENCY_KEY_REUSED` other payload;
   *   `OPERATION_IN_PROGRESS` a live owner holds it; `COMMIT_UNRESOLVED` answer to COMMIT lost and undecided;
   *   `STORE_UNAVAILABLE`, `TOO_BUSY`; `OUTCOME_NOT_REPRESENTABLE`, `OUTCOME_TOO_LARGE` nothing committed;
   *   `NOT_A_TRANSACTION` the work ended the transaction; `NESTED_OPERATION`; `SCHEMA_MISSING`, `REPLICA_REFUSED`.
   *   Errors of the work itself come through as they are, with everything rolled back.
   * @see docs/guarantees.md I1-I4
   */
  transaction<W>(
    operation: Operation,
    work: (context: WorkContext<Tx>) => W,
    options?: TransactionOptions,
  ): Promise<OutcomeOfWork<W>>
  /**
   * The cheapest guard: one SQL statement of yours (with `returning`) and its record as one statement, one trip.
   * The outcome is the list of returned rows as JSON; cast what JSON cannot keep (bigint, numeric) to text. A
   * duplicate is executed and undone by the unique constraint.
   *
   * @throws {OnceError} as `transaction`.
   */
  statement<Row = Record<string, unknown>>(
    operation: Operation,
    statement: UserStatement,
    options?: StatementOptions,
  ): Promise<Outcome<Row[]>>
  /**
   * Runs work with effects outside the database: the operation is claimed by a committed lease, renewed while the handler
   * runs, and taken over by exactly one other caller when its owner dies. What the handler does through `op` is done in
   * steps, which a later attempt does not do again.
   *
   * Promised: at most one outcome is stored, and a replaced owner stores nothing more: no step, no intent, no outcome. Not
   * promised: that the handler starts only once, or that a bare closure is resumed unless somebody calls again with the
   * same key; `define` and `worker` do that by themselves.
   *
   * @throws {OnceError} `IDEMPOTENCY_KEY_REUSED`, `OPERATION_IN_PROGRESS`; `OUTCOME_UNKNOWN` an effect may or may not have
   *   happened; `OPERATION_PARKED`; `LEASE_LOST` this owner was replaced; `STEP_CHANGED` the code does not match the
   *   stored steps; `NOT_APPLIED`, `RESULT_UNAVAILABLE`, `STORE_UNAVAILABLE`, `NESTED_OPERATION`, ... Errors of the
   *   handler come through as they are; the operation can be resumed.
   * @see docs/guarantees.md I1, I5, I10, I11, I15
   */
  run<W>(operation: Operation, handler: (op: Op<Tx>) => W, options?: RunOptions): Promise<OutcomeOfWork<W>>
  /**
   * Gives a handler a name and a version, so that its payload is stored and any process that knows it can resume it.
   *
   * @throws {TypeError} A malformed name or an option out of its bounds.
   */
  define<Payload, Result>(name: string, options: KindOptions<Tx, Payload, Result>): Kind<Tx, Payload, Result>
  /** Takes over, resumes and reconciles operations of these kinds by itself, until it is stopped. */
  worker(options: WorkerOptions<Tx>): Worker
  /**
   * Starts a job of `kind` for each tick of a schedule, once, whatever overlaps or starts again. Run it in any number of
   * processes; the database's clock says what is due.
   *
   * @throws {TypeError} A malformed name, expression or time zone, or an option out of its bounds.
   */
  schedule<Payload>(name: string, options: SchedulerOptions<Tx, Payload>): Scheduler
  /**
   * Works on the next chunk of a stream: `work` gets the position that the chunk before it has returned, and returns the
   * next one, as plain JSON data; its writes, its messages and that position commit together. Nothing (undefined) means
   * that there is nothing to do: what it has written is rolled back.
   *
   * Promised: chunks of one stream commit one after the other, each from the position before it, whoever works on them.
   * Not promised: that `work` starts only once for a chunk.
   *
   * @throws {OnceError} as `transaction`; OPERATION_IN_PROGRESS while another processor works on this stream.
   */
  chunk<Position>(
    options: ChunkOptions,
    work: (context: ChunkContext<Tx, Position>) => Promise<Position | undefined> | Position | undefined,
  ): Promise<Chunk<Position>>
  /** How far a stream has come. */
  checkpoint<Position>(stream: StreamReference): Promise<Checkpoint<Position>>
  /**
   * Attaches a proven result to an unknown effect or operation: `found(value)` or `notApplied()`. For webhooks, programs
   * and people; audited.
   */
  resolve(reference: ResolveReference, proof: Reconciled<unknown>, act: Act): Promise<ResolveAnswer>
  /** Makes an operation that nobody holds due again, with a fresh budget of claims and failures; audited. */
  redrive(reference: OperationReference, act: Act): Promise<'redriven' | 'notFound' | 'busy'>
  /** Messages that only a person can judge: of the outbox, which cannot be sent, and of consumers, which cannot be applied. */
  quarantined(filter?: QuarantineFilter): Promise<Quarantined>
  /**
   * Sends messages of the outbox back to their place, quarantined ones or ones that wait for their next attempt, or
   * quarantined deliveries back to their consumer: with their ids, and with a fresh budget; audited. One answer for each id.
   *
   * @throws {TypeError} An act without an author or a reason, or ids that are none.
   */
  redriveMessages(reference: QuarantineReference, act: Act): Promise<readonly RedrivenMessage[]>
  /** Leased operations that are not finished, oldest first; by default those that wait for reconcile or a person. */
  unfinished(filter?: UnfinishedFilter): Promise<readonly JobSummary[]>
  /** What happened to a leased operation, oldest first. */
  history(reference: OperationReference): Promise<readonly JobEvent[]>
  /** Waits up to `graceMs` (default 10_000) for handlers of `run`, then aborts them and gives their leases back. */
  stop(options?: { readonly graceMs?: number | undefined }): Promise<void>
  /** Claims, outcomes and messages inside a transaction that you already have. */
  in(tx: Tx): InTransaction
  /**
   * A relay that publishes what was committed through `outbox.add`. Any number may run; they share the lanes.
   *
   * @throws {TypeError} An unknown option or one out of its bounds.
   */
  relay(options: RelayOptions): Relay
  /**
   * A consumer that applies each message once: its mark, the handler's writes and the messages it adds commit
   * together, and the delivery is acknowledged afterwards.
   *
   * @throws {TypeError} An unknown option or one out of its bounds.
   * @throws {OnceError} HORIZON_TOO_SHORT when repeats can come later than they are recognised.
   */
  consumer(options: ConsumerOptions<Tx>): Consumer
  /** Wakes relays after you committed a transaction of your own that added messages; a hint, never needed. */
  wake(): void
  /**
   * Removes what is past its retention, in short batches, until nothing is due or `timeMs` is over: outcomes whose keys
   * are free again, stored answers that are no longer given out, marks of consumers, and on request published messages.
   * Never anything unfinished, waiting, quarantined or not expired. Any number may run, beside the load; run it every
   * few minutes, or as `effectively-once purge`.
   *
   * @throws {OnceError} `STORE_UNAVAILABLE`, `SCHEMA_MISSING`, `REPLICA_REFUSED`; batches before it stay done.
   * @throws {TypeError} An unknown option or one out of its bounds.
   * @see docs/guarantees.md I13
   */
  purge(options?: PurgeOptions): Promise<PurgeReport>
  /** Creates or updates our tables; safe with several nodes at once. See `effectively-once migrate`. */
  migrate(options?: MigrateOptions): Promise<MigrationReport>
  /** Refuses a store that cannot be safe: SCHEMA_MISSING, SCHEMA_NEWER, REPLICA_REFUSED. */
  check(): Promise<void>
}

/**
 * Makes the one object of an application.
 *
 * @throws {TypeError} An unknown or malformed option.
 * @example
 * const once = createOnce({ store: postgres(pool) })
 */
export function createOnce<Tx>(options: OnceOptions<Tx>): Once<Tx> {
  if (typeof options !== 'object' || options === null) throw new TypeError('createOnce takes { store }')
  refuseUnknownOptions('createOnce', options, ['store', 'secrets', 'outbox', 'outcomeBytesMax'])
  const { store, secrets } = options
  if (typeof store !== 'object' || store === null || !('operations' in store)) {
    throw new TypeError('createOnce needs a store, for instance postgres(pool)')
  }
  if (secrets !== undefined) validateFingerprintSecrets(secrets)
  const engine: Engine<Tx> = {
    store,
    secrets,
    outcomeBytesMax: integerOption('outcomeBytesMax', options.outcomeBytesMax, {
      min: 1_024,
      max: 16_777_216,
      default: OUTCOME_BYTES_MAX,
    }),
    outboxLimits: outboxLimits(options.outbox),
    inFlight: new InFlight(),
  }
  const wakes = new Set<Wake>()
  const once: Once<Tx> = {
    run: (operation, handler, runOptions) => runLeased(engine, operation, handler, runOptions),
    define: (name, kindOptions) => defineKind(engine, { ring: () => ringAll(wakes) }, name, kindOptions),
    worker: (workerOptions) => createWorker(engine, wakes, workerOptions),
    schedule: (name, scheduleOptions) => createScheduler(engine, { ring: () => ringAll(wakes) }, name, scheduleOptions),
    chunk: (chunkOptions, work) => runChunk(engine, chunkOptions, work),
    checkpoint: (stream) => readCheckpoint(engine, stream),
    resolve: async (reference, proof, act) => {
      const answer = await resolve(engine, reference, proof, act)
      ringAll(wakes)
      return answer
    },
    redrive: async (reference, act) => {
      const answer = await redrive(engine, reference, act)
      ringAll(wakes)
      return answer
    },
    quarantined: (filter) => quarantined(store, filter),
    redriveMessages: async (reference, act) => {
      const answers = await redriveMessages(store, reference, act)
      store.outbox.bell.ring()
      return answers
    },
    unfinished: (filter) => unfinished(engine, filter),
    history: (reference) => history(engine, reference),
    stop: (stopOptions) => stopRuns(keeperOf(store), stopOptions),
    transaction: (operation, work, transactionOptions) => runTransaction(engine, operation, work, transactionOptions),
    statement: (operation, statement, statementOptions) => runStatement(engine, operation, statement, statementOptions),
    in: (tx) => inTransaction(engine, tx),
    relay: (relayOptions) => createRelay({ ...relayOptions, store: store.outbox }),
    consumer: (consumerOptions) =>
      createConsumer(consumerOptions, {
        store: store.inbox,
        outbox: engine.outboxLimits,
        afterCommit: () => store.outbox.bell.ring(),
      }),
    purge: (purgeOptions) => purge(store, purgeOptions),
    wake: () => store.outbox.bell.ring(),
    migrate: (migrateOptions) => store.migrate(migrateOptions),
    check: () => store.check(),
  }
  lendEngine(once, engine)
  return once
}

function ringAll(wakes: ReadonlySet<Wake>): void {
  for (const wake of wakes) wake.ring()
}
