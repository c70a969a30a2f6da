/**
 * Step in a transaction: the user's writes, the messages and the step's own record commit together, for the owner of the
 * lease only.
 *
 * The step's name is unique within its operation, so however often it is tried, and whatever became of a COMMIT whose
 * answer was lost, one of its transactions commits. (SC48)
 *
 * @module
 */

import { runWork, type WorkContext } from '../operation/attempt.ts'
import type { Engine } from '../operation/engine.ts'
import { encodeOutcome, OUTCOME_VERSION } from '../operation/outcome.ts'
import { OutboxBuffer } from '../outbox/buffer.ts'
import { isOnceError, OnceError } from '../shared/errors.ts'
import { integerOption, refuseUnknownOptions } from '../shared/options.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import type { NewStep, OpenStep, StepFinish, StepRecord } from '../store/job.ts'
import type { StartedStep } from './history.ts'
import type { HeldLease } from './lease.ts'

export interface StepTransactionOptions {
  /** Longest run of one try, milliseconds. Default 30_000. */
  readonly timeoutMs?: number | undefined
  /** Tries after deadlocks, serialization failures and lost connections. Default 3; 1 to 10. */
  readonly attemptsMax?: number | undefined
}

const RETRY = { minMs: 5, maxMs: 250 }

type Tried =
  | { readonly kind: 'stored'; readonly step: NewStep }
  | { readonly kind: 'exists' | 'fenced' }
  | { readonly kind: 'again'; readonly cause: unknown }

/**
 * @returns the step as it is stored.
 * @throws {OnceError} LEASE_LOST, STORE_UNAVAILABLE, COMMIT_UNRESOLVED, NOT_A_TRANSACTION, OUTCOME_NOT_REPRESENTABLE,
 *   OUTCOME_TOO_LARGE; errors of the work come through, rolled back.
 */
export async function runStepTransaction<Tx, W>(
  engine: Engine<Tx>,
  held: HeldLease,
  started: StartedStep,
  work: (context: WorkContext<Tx>) => W,
  options: StepTransactionOptions = {},
): Promise<Pick<NewStep, 'result' | 'resultVersion'>> {
  refuseUnknownOptions('op.transaction', options, ['timeoutMs', 'attemptsMax'])
  const timeoutMs = integerOption('timeoutMs', options.timeoutMs, { min: 100, max: 3_600_000, default: 30_000 })
  const attemptsMax = integerOption('attemptsMax', options.attemptsMax, { min: 1, max: 10, default: 3 })
  const { jobs } = engine.store
  let unresolved = false
  for (let tries = 1; ; tries++) {
    held.check()
    const tried = await tryOnce(engine, held, started, work, timeoutMs)
    switch (tried.kind) {
      case 'stored':
        return tried.step
      case 'fenced':
        held.lose('the store has refused a step of this owner')
        throw held.lost as unknown as OnceError
      case 'exists':
        return await stored(jobs.steps(held.lease.id), started.name)
      case 'again':
        unresolved ||= tried.cause === UNRESOLVED
        if (tries < attemptsMax) break
        if (unresolved) throw commitUnresolved(started.name)
        throw tried.cause instanceof Error ? tried.cause : conflicts(started.name, tries)
    }
    await pause(backoffMs(tries, RETRY), held.signal)
  }
}

/** Stands for an answer to COMMIT that was lost: the next try meets the step by its name, or is the one that commits. */
const UNRESOLVED = Symbol('unresolved')

async function tryOnce<Tx, W>(
  engine: Engine<Tx>,
  held: HeldLease,
  { name, position }: StartedStep,
  work: (context: WorkContext<Tx>) => W,
  timeoutMs: number,
): Promise<Tried> {
  const opened = await engine.store.jobs.openStep(held.lease, { idleTimeoutMs: timeoutMs })
  const outbox = new OutboxBuffer(engine.outboxLimits)
  const stop = (reason: Error) => opened.abort(reason)
  held.listen(stop)
  let finished = false
  try {
    const value = await runWork(opened, outbox, work, timeoutMs, held.lease.id)
    if (opened.conflict !== undefined) return { kind: 'again', cause: opened.conflict }
    const result = encodeOutcome(value, engine.outcomeBytesMax)
    const step: NewStep = { name, position, type: 'transaction', state: 'done', result, resultVersion: OUTCOME_VERSION }
    const rows = outbox.end()
    held.check()
    const ended = await opened.finish(step, rows)
    finished = true
    if (ended === 'stored' && rows.length > 0) engine.store.outbox.bell.ring()
    return triedOf(ended, step)
  } catch (error) {
    return await whyFailed(engine, held, opened, error)
  } finally {
    held.ignore(stop)
    outbox.end()
    if (!finished) await opened.rollback()
  }
}

function triedOf(ended: StepFinish, step: NewStep): Tried {
  switch (ended) {
    case 'stored':
      return { kind: 'stored', step }
    case 'exists':
    case 'fenced':
      return { kind: ended }
    case 'ended':
      throw new OnceError('NOT_A_TRANSACTION', 'the step ended its transaction itself; nothing was recorded')
    case 'retry':
      return { kind: 'again', cause: undefined }
    case 'unresolved':
      return { kind: 'again', cause: UNRESOLVED }
  }
}

/** The fence's own answer comes first: statements behind it only report that the transaction is aborted. */
async function whyFailed<Tx>(
  engine: Engine<Tx>,
  held: HeldLease,
  opened: OpenStep<Tx>,
  error: unknown,
): Promise<Tried> {
  if (held.lost !== undefined) throw held.lost
  try {
    if ((await opened.held()) === false) return { kind: 'fenced' }
  } catch (unasked) {
    // The answer to the fence's check was lost: nothing of the step can have been committed.
    if (isOnceError(unasked) && unasked.retryable) return { kind: 'again', cause: unasked }
    throw unasked
  }
  const failure = engine.store.operations.failureOf(error)
  if (failure === 'other' && opened.conflict === undefined) throw error
  // It may be some other connection of the work that was lost: then the error is the work's own.
  if (failure === 'connectionLost' && (await opened.rollback()) === 'rolledBack') throw error
  return { kind: 'again', cause: opened.conflict ?? error }
}

async function stored(reading: Promise<readonly StepRecord[]>, name: string): Promise<StepRecord> {
  const step = (await reading).find((candidate) => candidate.name === name)
  if (step === undefined) throw new OnceError('STORE_UNAVAILABLE', `step "${name}" is stored and cannot be read`)
  return step
}

function commitUnresolved(name: string): OnceError {
  return new OnceError(
    'COMMIT_UNRESOLVED',
    `the answer to the COMMIT of step "${name}" was lost and not decided in time`,
  )
}

function conflicts(name: string, tries: number): OnceError {
  return new OnceError('STORE_UNAVAILABLE', `step "${name}" was rolled back by conflicts ${tries} times`)
}
