/**
 * Options of a consumer, and what its handlers are given.
 *
 * @module
 */

import type { Source } from '../broker/contract.ts'
import type { Outbox } from '../outbox/buffer.ts'
import type { OutboxLimits } from '../outbox/message.ts'
import type { Backoff } from '../shared/waiting.ts'
import type { InboxStore } from '../store/inbox.ts'
import type { Isolation } from '../store/operation.ts'
import type { OutboxRow } from '../store/outbox.ts'
import type { ConsumerEvent } from './events.ts'
import type { Identify } from './identity.ts'
import type { ReceivedMessage } from './message.ts'

/** What a handler works with. */
export interface HandlerContext<Tx> {
  /**
   * The transaction that the message's mark is in. Its first statement carries BEGIN and the mark, so that the work
   * of a duplicate never runs in the database. COMMIT and ROLLBACK are not yours. Dead after the handler has ended.
   */
  readonly tx: Tx
  readonly message: ReceivedMessage
  /** Messages added here are committed with the work and published afterwards. */
  readonly outbox: Outbox
  /** Database time. */
  readonly now: () => Promise<Date>
  /**
   * Whether `version` is higher than every version of `entity` that this consumer has committed; remembered in the
   * same transaction. false = stale: return without applying it. (R35)
   */
  readonly ifNewer: (entity: string, version: number | bigint) => Promise<boolean>
  /** Aborts when the handler's time is over or the consumer is stopped for good. */
  readonly signal: AbortSignal
}

/** What a batch handler works with: only messages that are new, in the order of arrival. */
export interface BatchContext<Tx> extends Omit<HandlerContext<Tx>, 'message'> {
  readonly messages: readonly ReceivedMessage[]
}

/** Applies one message. What it throws is a failure: its writes are rolled back and it is tried again later. */
export type Handler<Tx> = (context: HandlerContext<Tx>) => Promise<unknown> | unknown
/** Applies many messages in one transaction. When it throws, the batch is halved until the failing message is alone. */
export type BatchHandler<Tx> = (context: BatchContext<Tx>) => Promise<unknown> | unknown

export interface ConsumerOptions<Tx> {
  /** Names the consumer for good: deduplication, waiting and quarantine are kept under it. 1 to 100 visible ASCII characters. */
  readonly name: string
  readonly source: Source
  /** Applies one message. Exactly one of `handle`, `handlers` and `handleBatch`. */
  readonly handle?: Handler<Tx> | undefined
  /** Handlers by message type. A message without a handler waits until one is deployed; it is never marked done. */
  readonly handlers?: Readonly<Record<string, Handler<Tx>>> | undefined
  /** Applies many messages in one transaction. */
  readonly handleBatch?: BatchHandler<Tx> | undefined

  /** Where the message's id is. Default: see docs/guides/consumers.md; a message without one is quarantined. (R05, B73) */
  readonly identify?: Identify | undefined
  /** The type by which `handlers` are chosen. Default: CloudEvents type, the sender's type property, else the topic. */
  readonly typeOf?: ((message: ReceivedMessage) => string) | undefined
  /** What of the message is compared when its id comes again. Default: type and body bytes. (R33) */
  readonly contentOf?: ((message: ReceivedMessage) => string | Uint8Array) | undefined
  /** How bodies are read. Default `json`: `message.body` parses, and a body that does not parse is quarantined. */
  readonly decode?: 'json' | 'text' | 'bytes' | undefined

  /**
   * true = a handler starts only when the store has said that its message is new (one trip more). false = its first
   * statement goes out together with the mark: for a duplicate the statement does nothing, but code of the handler
   * before it has run. When one of a batch is a duplicate, nothing of the batch has run in the database, and the handler
   * is called again with the others. Redelivered messages and keys that stop behind waiting messages always wait.
   * Default false.
   */
  readonly eager?: boolean | undefined

  /** Messages handled at the same time. Default 10 (2 for batches); 1 to 1_000. */
  readonly concurrency?: number | undefined
  /** Most messages of one batch. Default 250; 1 to 10_000. */
  readonly batchMax?: number | undefined
  /** Deliveries that may be unsettled at once. Default twice the concurrency (twice the batches). 1 to 65_535. */
  readonly prefetch?: number | undefined

  /**
   * Handles messages with the same key one after another, in the order of arrival in this process. true = the sender's
   * ordering key; a function chooses another (null = none). Default: no order.
   */
  readonly orderBy?: true | ((message: ReceivedMessage) => string | null) | undefined
  /**
   * With `orderBy`: while a message waits, later ones of its key wait behind it. Default true. false = later ones pass.
   */
  readonly stopKeyOnWaiting?: boolean | undefined

  /** Attempts until a failing message is quarantined. Default 10; 1 to 1_000. */
  readonly attemptsMax?: number | undefined
  /** Pauses between attempts, with full jitter. Default 1 s to 5 min. */
  readonly backoff?: Partial<Backoff> | undefined
  /** Isolation level of the transactions. Default: the database's, normally `read committed`. */
  readonly isolation?: Isolation | undefined
  /** A handler that takes longer fails and is cut off. Default 300_000; 10 to 3_600_000. */
  readonly handlerTimeoutMs?: number | undefined
  /** How long a message taken from the database stays ours without renewal. Default 30_000; 1_000 to 3_600_000. */
  readonly leaseMs?: number | undefined
  /** How often waiting messages are looked for. Default 1_000, with jitter; 10 to 60_000. */
  readonly pollMs?: number | undefined
  /**
   * How long a repeat is recognised. Default 14 days; never below `horizonMs` plus the longest time in retries.
   * Stored with each message; changing it does not shorten what is stored.
   */
  readonly retentionMs?: number | undefined
  /** How long after its first delivery a message can come again (broker retention, resubmits). Default 7 days. */
  readonly horizonMs?: number | undefined
  /** How long `stop` waits for running handlers before it cuts them off. Default 30_000; 0 to 3_600_000. */
  readonly stopTimeoutMs?: number | undefined
  /** Told what happens to messages, for metrics and alerts. Never a payload. What it throws is ignored. */
  readonly onEvent?: ((event: ConsumerEvent) => void) | undefined
}

/** What the consumer is built on. */
export interface ConsumerHost<Tx> {
  readonly store: InboxStore<Tx>
  readonly outbox: OutboxLimits
  /** Called after a commit that left outbox rows: rings the relay's bell. */
  readonly afterCommit?: ((rows: readonly OutboxRow[]) => void) | undefined
}

/** State of a consumer, from memory. */
export interface ConsumerHealth {
  /**
   * - `running`: deliveries flow.
   * - `paused`: the store cannot be asked; nothing is acknowledged until it answers.
   * - `disconnected`: the broker cannot be reached or blocks; the subscription reconnects by itself.
   */
  readonly state: 'idle' | 'starting' | 'running' | 'paused' | 'disconnected' | 'stopping' | 'stopped'
  /** Why nothing moves, in one line. */
  readonly reason: string | undefined
  /** A set-up that works now and can lose messages later. */
  readonly warning: string | undefined
  /** Deliveries that wait for a free slot. */
  readonly queued: number
  /** Messages being handled. */
  readonly running: number
  /** Milliseconds since the last message was settled; undefined before the first. */
  readonly idleMs: number | undefined
}

/** What bounds `drain`. */
export interface ConsumerDrainOptions {
  /** Milliseconds. */
  readonly quietMs?: number | undefined
  readonly signal?: AbortSignal | undefined
}

export interface Consumer {
  /**
   * Subscribes and begins; resolves once deliveries can arrive.
   * @throws {OnceError} what the store or the broker refuses for good at the start.
   */
  start(signal?: AbortSignal): Promise<void>
  /**
   * Resolves when nothing is in hand and nothing is due: no delivery unsettled, no waiting message due, and nothing
   * came in for `quietMs`. Bounded by the signal.
   *
   * @param options - An AbortSignal alone stands for `{ signal }`.
   * @param options.quietMs - Default 100; 0 to 3_600_000. What the broker still holds is not known; it comes within this
   *   time or not.
   * @throws the signal's reason when it aborts.
   * @throws {TypeError} An unknown option or one out of its bounds.
   */
  drain(options?: ConsumerDrainOptions | AbortSignal): Promise<void>
  /** Takes nothing new, waits for running handlers (`stopTimeoutMs`), cuts off the rest and hands everything back. */
  stop(): Promise<void>
  health(): ConsumerHealth
}
