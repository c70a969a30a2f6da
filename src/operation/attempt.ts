/**
 * Attempt: one try of an operation on one connection, from the first statement to a decided COMMIT.
 *
 * Every end is a named result; only errors that belong to the caller are thrown. Whether to try again, wait or give
 * up is decided one level up (./transaction.ts).
 *
 * @module
 */

import { type Outbox, OutboxBuffer } from '../outbox/buffer.ts'
import { isOnceError, OnceError } from '../shared/errors.ts'
import type { Attempt, Isolation, NewRecord, OpenOperation, Verdict } from '../store/operation.ts'
import { OperationContext } from './context.ts'
import { type Ending, endingOf } from './ending.ts'
import { type Engine, startWork } from './engine.ts'
import { newRecord } from './operation.ts'

/** What a work is given. */
export interface WorkContext<Tx> {
  /** The user's own database handle, inside the operation's transaction. COMMIT and ROLLBACK are not the work's. */
  readonly tx: Tx
  /** Messages that are published if and only if this transaction commits (I6). */
  readonly outbox: Outbox
  /** Database time. Asking is a statement of its own. */
  now(): Promise<Date>
  /** Aborts when the work runs longer than `timeoutMs`. */
  readonly signal: AbortSignal
}

export interface AttemptOptions {
  readonly gated: boolean
  /** true = ask the gate before running any of the user's code (one trip more). */
  readonly eager: boolean
  /** true = a failure of the work is told only when the store has let it run; what it threw may be an answer to a caller. */
  readonly decided: boolean
  readonly isolation: Isolation | undefined
  readonly timeoutMs: number
  readonly retentionMs: number
}

/**
 * - `stored`: committed by this attempt.
 * - `recorded`, `busy`, `otherPayload`: the store's decision against it; nothing of it is there.
 * - `again`: rolled back for certain (deadlock, serialization failure, lost connection); a fresh one may succeed.
 * - `undecided`: COMMIT may have taken place.
 * - `failed`: the work threw, rolled back; somebody else's record may be there all the same.
 */
export type AttemptResult =
  | { readonly kind: 'stored'; readonly record: NewRecord }
  | { readonly kind: Exclude<Verdict, 'claimed'> }
  | { readonly kind: 'again'; readonly cause: unknown }
  | { readonly kind: 'undecided'; readonly record: NewRecord }
  | { readonly kind: 'failed'; readonly error: unknown }

/** Runs `work` once under `attempt`. */
export async function runAttempt<Tx, W>(
  engine: Engine<Tx>,
  attempt: Attempt,
  work: (context: WorkContext<Tx>) => Promise<W> | W,
  options: AttemptOptions,
): Promise<AttemptResult> {
  const opened = await engine.store.operations.open(attempt, {
    gated: options.gated,
    isolation: options.isolation,
    idleTimeoutMs: options.timeoutMs,
  })
  const outbox = new OutboxBuffer(engine.outboxLimits)
  // Finishing has ended the transaction, whatever came of it.
  let finished = false
  try {
    if (options.eager) {
      const verdict = await opened.decide()
      if (verdict !== 'claimed') return { kind: verdict }
    }
    const value = await runWork(opened, outbox, work, options.timeoutMs, attempt.id)
    // A work that swallowed it must not make it final.
    if (opened.conflict !== undefined) return { kind: 'again', cause: opened.conflict }
    const ending = endingOf(value)
    if (ending.state === 'rejected') {
      const decided = await refusal(opened)
      return decided === undefined ? await storeRejection(engine, attempt, opened, ending, options) : { kind: decided }
    }
    // A refusal that the work has not met is met here; `whyFailed` names it.
    const result = await finish(engine, opened, recordOf(engine, attempt, ending, options), outbox)
    finished = true
    return result
  } catch (error) {
    return await whyFailed(engine, opened, error, options)
  } finally {
    outbox.end()
    if (!finished) await opened.rollback()
  }
}

/** The gate's own answer comes first: statements sent behind it only report that the transaction is aborted. */
async function whyFailed<Tx>(
  engine: Engine<Tx>,
  opened: OpenOperation<Tx>,
  thrown: unknown,
  { decided: mustBe }: AttemptOptions,
): Promise<AttemptResult> {
  let error = thrown
  try {
    // A work that was cut off has no transaction left to ask in.
    if (mustBe && opened.verdict() === undefined && !isOnceError(thrown, 'TOO_BUSY')) await opened.decide()
    const decided = await refusal(opened)
    if (decided !== undefined) return { kind: decided }
  } catch (gateError) {
    error = gateError
  }
  const failure = engine.store.operations.failureOf(error)
  if (failure === 'other') {
    return opened.conflict === undefined ? { kind: 'failed', error } : { kind: 'again', cause: opened.conflict }
  }
  // It may be some other connection of the work (a cache, an API) that was lost: then the error is the work's own.
  if (failure === 'connectionLost' && (await opened.rollback()) === 'rolledBack') return { kind: 'failed', error }
  return { kind: 'again', cause: error }
}

async function finish<Tx>(
  engine: Engine<Tx>,
  opened: OpenOperation<Tx>,
  record: NewRecord,
  outbox: OutboxBuffer,
): Promise<AttemptResult> {
  const rows = outbox.end()
  const result = await opened.finish(record, rows)
  switch (result) {
    case 'stored':
      if (rows.length > 0) engine.store.outbox.bell.ring()
      return { kind: 'stored', record }
    case 'lost':
      return { kind: 'recorded' }
    case 'retry':
      return { kind: 'again', cause: undefined }
    case 'unresolved':
      return { kind: 'undecided', record }
    case 'fenced':
      throw endedByWork()
    case 'recorded':
    case 'busy':
    case 'otherPayload':
      return { kind: result }
  }
}

function endedByWork(): OnceError {
  return new OnceError('NOT_A_TRANSACTION', 'the work ended its transaction itself; nothing was recorded')
}

/** The work is rolled back first; the rejection is stored by a transaction of its own, and told only then. */
async function storeRejection<Tx>(
  engine: Engine<Tx>,
  attempt: Attempt,
  opened: OpenOperation<Tx>,
  ending: Ending,
  options: AttemptOptions,
): Promise<AttemptResult> {
  const record = recordOf(engine, attempt, ending, options)
  if (!(await opened.untouched())) throw endedByWork()
  await opened.rollback()
  const second = await engine.store.operations.open(attempt, {
    gated: true,
    isolation: options.isolation,
    idleTimeoutMs: options.timeoutMs,
  })
  try {
    return await finish(engine, second, record, new OutboxBuffer(engine.outboxLimits))
  } finally {
    await second.rollback()
  }
}

function recordOf<Tx>(engine: Engine<Tx>, attempt: Attempt, ending: Ending, options: AttemptOptions): NewRecord {
  const { secrets, outcomeBytesMax } = engine
  const { retentionMs } = options
  const record = newRecord(attempt, ending.state, ending.value, { secrets, retentionMs, bytesMax: outcomeBytesMax })
  return ending.response === undefined
    ? record
    : { ...record, response: ending.response.bytes, responseRetentionMs: ending.response.retentionMs }
}

/** The store's decision when it is against the attempt. */
async function refusal<Tx>(opened: OpenOperation<Tx>): Promise<Exclude<Verdict, 'claimed'> | undefined> {
  const verdict = await opened.verdict()
  return verdict === undefined || verdict === 'claimed' ? undefined : verdict
}

/** Runs the user's code, at most `timeoutMs`; then its connection is cut, which rolls back. */
export function runWork<Tx, W>(
  opened: Pick<OpenOperation<Tx>, 'tx' | 'now' | 'abort'>,
  outbox: OutboxBuffer,
  work: (context: WorkContext<Tx>) => Promise<W> | W,
  timeoutMs: number,
  id?: string,
): Promise<W> {
  const context = new OperationContext(opened, outbox.outbox)
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      const expired = new OnceError('TOO_BUSY', `the work ran longer than ${timeoutMs} ms (timeoutMs); rolled back`)
      context.abort(expired)
      opened.abort(expired)
      reject(expired)
    }, timeoutMs)
    startWork(
      () => work(context),
      (value) => {
        clearTimeout(timer)
        resolve(value)
      },
      (error: Error) => {
        clearTimeout(timer)
        reject(error)
      },
      id,
    )
  })
}
