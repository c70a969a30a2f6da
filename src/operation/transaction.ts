/**
 * Transaction: claim, work, outbox rows and outcome in ONE database transaction, tried again where that is safe.
 *
 * Reading order: ./operation.ts (what comes in and goes out), this file (when to try, wait, replay or give up),
 * ./attempt.ts (one try), the store.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { booleanOption, choiceOption, integerOption, refuseUnknownOptions, signalOption } from '../shared/options.ts'
import { backoffMs, bounded, pause } from '../shared/waiting.ts'
import { type Attempt, type Isolation, isFinished, type OperationRecord } from '../store/operation.ts'
import { type AttemptOptions, type AttemptResult, runAttempt, type WorkContext } from './attempt.ts'
import { type Engine, refuseNesting } from './engine.ts'
import {
  newAttempt,
  type Operation,
  type Outcome,
  outcomeOf,
  ownOutcome,
  refuseOther,
  reused,
  unfinished,
} from './operation.ts'
import type { Rejected } from './rejected.ts'
import { RETENTION_DEFAULT_MS, RETENTION_MAX_MS } from './retention.ts'

export interface TransactionOptions {
  /** What the loser of a race does. `reject` (default): OPERATION_IN_PROGRESS at once; `wait`: up to `waitMs`. */
  readonly whenInProgress?: 'reject' | 'wait' | undefined
  /** Longest wait for another attempt, milliseconds. Default 10_000; 1 to 300_000. */
  readonly waitMs?: number | undefined
  /**
   * Leaves the gate out: a quarter of the guard's cost less. A duplicate or a mismatch then runs in the database and is
   * rolled back by the constraint. Default false.
   */
  readonly optimistic?: boolean | undefined
  /** Isolation level of the transaction. Default: what the database is set to. */
  readonly isolation?: Isolation | undefined
  /** Longest run of one attempt, milliseconds; also how long a vanished owner blocks its key. Default 30_000. */
  readonly timeoutMs?: number | undefined
  /** Tries of the work after deadlocks, serialization failures and lost connections. Default 3; 1 to 10. */
  readonly attemptsMax?: number | undefined
  /** How long the outcome is kept and the key stays taken, milliseconds. Default 30 days. */
  readonly retentionMs?: number | undefined
  /** Aborts the waiting for others, never a running work. */
  readonly signal?: AbortSignal | undefined
}

/** How long a lost COMMIT is looked for before COMMIT_UNRESOLVED, milliseconds. */
const VERIFY_MS = 10_000
/** How long a transaction that never reached COMMIT is waited for before STORE_UNAVAILABLE, milliseconds. */
const SETTLE_MS = 2_000
const POLL = { minMs: 50, maxMs: 500 }
const RETRY = { minMs: 5, maxMs: 250 }
/** Tries that end because the store changed its mind (record gone, owner gone) before we call it busy. */
const TURNS_MAX = 10

/** What the outcome of a work is, from what it returns. */
export type OutcomeOfWork<W> = Outcome<
  Exclude<Awaited<W>, Rejected<unknown>>,
  Awaited<W> extends infer V ? (V extends Rejected<infer R> ? R : never) : never
>

/** Options that were checked. */
export interface TransactionSettings extends AttemptOptions {
  readonly whenInProgress: 'reject' | 'wait'
  readonly waitMs: number
  readonly attemptsMax: number
  readonly signal: AbortSignal | undefined
}

/** The flow behind `once.transaction`; its promises are documented there. */
export async function runTransaction<Tx, W>(
  engine: Engine<Tx>,
  operation: Operation,
  work: (context: WorkContext<Tx>) => W,
  options?: TransactionOptions,
): Promise<OutcomeOfWork<W>> {
  const first = newAttempt(operation)
  if (typeof work !== 'function') throw new TypeError('once.transaction takes a work function')
  const settings = options === undefined ? DEFAULTS : readOptions(options)
  refuseNesting()
  const { record, replayed } = await settle(engine, first, work, settings)
  return replayed ? outcomeOf(record, first.fingerprint, engine.secrets) : ownOutcome(record)
}

/** The record of an operation, and whether it was there before this call. */
export interface Found {
  readonly record: OperationRecord
  readonly replayed: boolean
}

/** Runs the work unless there is a record, and gives the record. `first` is the first attempt of this call. */
export function settle<Tx, W>(
  engine: Engine<Tx>,
  first: Attempt,
  work: (context: WorkContext<Tx>) => W,
  settings: TransactionSettings,
): Promise<Found> {
  return new Transaction(engine, first, work, settings).run()
}

class Transaction<Tx, W> {
  readonly #engine: Engine<Tx>
  readonly #first: Attempt
  readonly #work: (context: WorkContext<Tx>) => W
  readonly #settings: TransactionSettings
  /** Tokens of this call's attempts: a record with one of them is this call's own work. */
  readonly #tokens: string[] = []
  /** A COMMIT of this call may have taken place, and nothing has decided it yet. */
  #undecidedCommit = false
  #tries = 0
  #otherPayloads = 0
  #waitUntil = 0
  #polls = 0
  /** The last look-up met a leased operation in progress. */
  #leased = false

  constructor(
    engine: Engine<Tx>,
    first: Attempt,
    work: (context: WorkContext<Tx>) => W,
    settings: TransactionSettings,
  ) {
    this.#engine = engine
    this.#first = first
    this.#work = work
    this.#settings = settings
  }

  run(): Promise<Found> {
    return this.#settings.whenInProgress === 'reject'
      ? this.#reporting(this.#engine.inFlight.enter(this.#first))
      : this.#inTurn()
  }

  /** Waits for another attempt of this process, where there is one. */
  async #inTurn(): Promise<Found> {
    const { inFlight } = this.#engine
    this.#waitUntil = performance.now() + this.#settings.waitMs
    for (;;) {
      const leave = inFlight.enter(this.#first)
      const running = leave === undefined ? inFlight.get(this.#first.id) : undefined
      // Another payload is not waited for: the store tells at once that the key is taken (SC10).
      if (running === undefined || !sameBytes(running.payload, this.#first.fingerprint.value)) {
        return await this.#reporting(leave)
      }
      const record = await this.#waitInProcess(running.ended)
      if (record !== undefined) return { record, replayed: true }
    }
  }

  /** Runs the tries; whoever waits in this process learns what came of them. */
  async #reporting(leave: ((record: OperationRecord | undefined) => void) | undefined): Promise<Found> {
    let found: Found | undefined
    try {
      found = await this.#untilFound()
      return found
    } catch (error) {
      // Whatever came afterwards, the caller must not take it for a failure of what may be committed.
      throw this.#undecidedCommit ? unresolved(error) : error
    } finally {
      leave?.(found?.record)
    }
  }

  async #untilFound(): Promise<Found> {
    for (let turn = 0; turn - this.#polls < TURNS_MAX; turn++) {
      const attempt = this.#tokens.length === 0 ? this.#first : { ...this.#first, token: randomUUID() }
      this.#tokens.push(attempt.token)
      const settings = turn === 0 ? this.#settings : this.#nextTurn()
      const result = await runAttempt(this.#engine, attempt, this.#work, settings)
      if (result.kind === 'stored') return { record: result.record, replayed: false }
      const found = await this.#decide(attempt, result)
      if (found !== undefined) return found
    }
    throw inProgress()
  }

  /** After a conflict the gate clears an expired row; after a wait no user code runs before the verdict. */
  #nextTurn(): TransactionSettings {
    return { ...this.#settings, gated: true, eager: this.#settings.eager || this.#settings.decided || this.#polls > 0 }
  }

  /** What one try came to; undefined = try again. */
  async #decide(
    attempt: Attempt,
    result: Exclude<AttemptResult, { readonly kind: 'stored' }>,
  ): Promise<Found | undefined> {
    switch (result.kind) {
      case 'recorded':
        return (await this.#lookup()) ?? (this.#leased ? await this.#waitForOther() : undefined)
      case 'busy':
        return (await this.#lookup()) ?? (await this.#waitForOther())
      case 'otherPayload':
        return (await this.#lookup()) ?? (await this.#otherPayload())
      case 'again':
        return await this.#again(attempt, result.cause)
      case 'undecided':
        return await this.#undecided(attempt, result.record)
      case 'failed':
        // Whatever made the work fail: if an outcome is there, that is the answer.
        return (await this.#lookup().catch(() => undefined)) ?? raise(result.error)
    }
  }

  async #lookup(): Promise<Found | undefined> {
    const record = await this.#engine.store.operations.lookup(this.#first.id)
    this.#leased = false
    if (record === undefined) return undefined
    if (isFinished(record)) return { record, replayed: !this.#tokens.includes(record.token) }
    refuseOther(record, this.#first.fingerprint, this.#engine.secrets)
    if (record.state !== 'processing') throw unfinished(record)
    this.#leased = true
    return undefined
  }

  async #waitInProcess(running: Promise<OperationRecord | undefined>): Promise<OperationRecord | undefined> {
    const left = this.#waitUntil - performance.now()
    if (left <= 0 || this.#settings.signal?.aborted === true) throw inProgress()
    const done = this.#engine.inFlight.wait()
    try {
      const ended = await bounded(abortable(running, this.#settings.signal), left)
      if (ended.kind === 'timeout') throw inProgress()
      return ended.value
    } finally {
      done()
    }
  }

  /** Somebody else works on it: tell so, or look again a little later. */
  async #waitForOther(): Promise<Found | undefined> {
    if (this.#settings.whenInProgress === 'reject') throw inProgress()
    this.#polls += 1
    const left = this.#waitUntil - performance.now()
    if (left <= 0 || this.#settings.signal?.aborted === true) throw inProgress()
    await pause(Math.min(left, backoffMs(this.#polls, POLL)), this.#settings.signal)
    return await this.#lookup()
  }

  /**
   * Refused only the key's lock: another payload holds it. The holder takes its two locks one after the other, so one
   * refusal may be an accident; a second one is not.
   */
  async #otherPayload(): Promise<undefined> {
    this.#otherPayloads += 1
    if (this.#otherPayloads > 1) throw reused()
    await pause(backoffMs(1, RETRY))
    return undefined
  }

  /** Rolled back for certain: a fresh transaction may succeed. */
  async #again(attempt: Attempt, cause: unknown): Promise<Found | undefined> {
    this.#tries += 1
    const lost = this.#engine.store.operations.failureOf(cause) === 'connectionLost'
    if (this.#tries >= this.#settings.attemptsMax) {
      if (cause === undefined) throw new OnceError('STORE_UNAVAILABLE', `rolled back by conflicts ${this.#tries} times`)
      raise(lost ? storeUnavailable(cause) : cause)
    }
    if (lost && this.#settings.gated) {
      // Our own old transaction may still hold the locks: wait until it is over.
      const verdict = await this.#engine.store.operations.verifyCommit(attempt, SETTLE_MS)
      if (verdict === 'unresolved') throw storeUnavailable(cause)
      return verdict === 'notCommitted' ? undefined : await this.#lookup()
    }
    await pause(backoffMs(this.#tries, RETRY))
    return undefined
  }

  /** The answer to COMMIT was lost. */
  async #undecided(attempt: Attempt, record: OperationRecord): Promise<Found | undefined> {
    this.#tries += 1
    if (!this.#settings.gated) return await this.#undecidedUngated()
    switch (await this.#engine.store.operations.verifyCommit(attempt, VERIFY_MS)) {
      case 'committed':
        return { record, replayed: false }
      case 'other':
        return await this.#lookup()
      case 'notCommitted':
        if (this.#tries >= this.#settings.attemptsMax) throw storeUnavailable(undefined)
        return undefined
      case 'unresolved':
        throw unresolved()
    }
  }

  /**
   * Without the gate no lock tells when the old transaction is over, and none is needed: a fresh try either meets
   * its record at the constraint or makes the late COMMIT fail there.
   */
  async #undecidedUngated(): Promise<Found | undefined> {
    this.#undecidedCommit = true
    const found = await this.#lookup().catch(() => undefined)
    if (found !== undefined) return found
    if (this.#tries >= this.#settings.attemptsMax) throw unresolved()
    await pause(backoffMs(this.#tries, RETRY))
    return undefined
  }
}

function readOptions(options: TransactionOptions): TransactionSettings {
  refuseUnknownOptions('once.transaction', options, [
    'whenInProgress',
    'waitMs',
    'optimistic',
    'isolation',
    'timeoutMs',
    'attemptsMax',
    'retentionMs',
    'signal',
  ])
  const { isolation } = options
  if (isolation !== undefined) {
    choiceOption('isolation', isolation, ['read committed', 'repeatable read', 'serializable'], isolation)
  }
  return {
    whenInProgress: choiceOption('whenInProgress', options.whenInProgress, ['reject', 'wait'], 'reject'),
    waitMs: integerOption('waitMs', options.waitMs, { min: 1, max: 300_000, default: 10_000 }),
    gated: !booleanOption('optimistic', options.optimistic, false),
    eager: false,
    decided: false,
    isolation,
    timeoutMs: integerOption('timeoutMs', options.timeoutMs, { min: 100, max: 3_600_000, default: 30_000 }),
    attemptsMax: integerOption('attemptsMax', options.attemptsMax, { min: 1, max: 10, default: 3 }),
    retentionMs: integerOption('retentionMs', options.retentionMs, {
      min: 1,
      max: RETENTION_MAX_MS,
      default: RETENTION_DEFAULT_MS,
    }),
    signal: signalOption('signal', options.signal),
  }
}

const DEFAULTS: TransactionSettings = readOptions({})

function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise
  return new Promise((resolve, reject) => {
    const abort = () => reject(inProgress())
    signal.addEventListener('abort', abort, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort))
  })
}

function inProgress(): OnceError {
  return new OnceError('OPERATION_IN_PROGRESS', 'another attempt of this operation is running')
}

function unresolved(cause?: unknown): OnceError {
  if (cause instanceof OnceError && cause.code === 'COMMIT_UNRESOLVED') return cause
  return new OnceError('COMMIT_UNRESOLVED', 'the answer to COMMIT was lost and could not be decided in time', { cause })
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0
}

function storeUnavailable(cause: unknown): OnceError {
  return new OnceError('STORE_UNAVAILABLE', 'the connection was lost before the outcome was stored', { cause })
}

function raise(error: unknown): never {
  throw error
}
