/**
 * Run: work with effects outside the database, for one caller.
 *
 * Reading order: ./claim.ts (who may work), ./attempt.ts (one ownership), ./op.ts (what the handler works with),
 * ../effect/perform.ts (one call that leaves the database).
 *
 * @module
 */

import type { Engine } from '../operation/engine.ts'
import { refuseNesting } from '../operation/engine.ts'
import { newAttempt, type Operation, outcomeOf, ownOutcome } from '../operation/operation.ts'
import type { OutcomeOfWork } from '../operation/transaction.ts'
import type { OperationRecord } from '../store/operation.ts'
import { type Attempted, runClaimed } from './attempt.ts'
import { claim, type Wanted } from './claim.ts'
import { keeperOf } from './lease.ts'
import type { Op } from './op.ts'
import { type RunOptions, type RunSettings, runSettings } from './settings.ts'

/** The flow behind `once.run`; its promises are documented there. */
export async function runLeased<Tx, W>(
  engine: Engine<Tx>,
  operation: Operation,
  handler: (op: Op<Tx>) => W,
  options?: RunOptions,
): Promise<OutcomeOfWork<W>> {
  const attempt = newAttempt(operation)
  if (typeof handler !== 'function') throw new TypeError('once.run takes a handler function')
  const settings = runSettings(options)
  const wanted: Wanted = { attempt, key: operation.key, kind: null, payload: null }
  return await runWanted(engine, wanted, handler, settings)
}

/** The same for a closure and for a defined kind. */
export async function runWanted<Tx, W>(
  engine: Engine<Tx>,
  wanted: Wanted,
  handler: (op: Op<Tx>) => W,
  settings: RunSettings,
): Promise<OutcomeOfWork<W>> {
  const { record, replayed } = await settleWanted(engine, wanted, handler, settings)
  return replayed ? outcomeOf(record, wanted.attempt.fingerprint, engine.secrets) : ownOutcome(record)
}

/** The record of a leased operation, and whether it was there before this call. */
export async function settleWanted<Tx>(
  engine: Engine<Tx>,
  wanted: Wanted,
  handler: (op: Op<Tx>) => unknown,
  settings: RunSettings,
): Promise<{ readonly record: OperationRecord; readonly replayed: boolean }> {
  refuseNesting()
  const result = await claim(engine, wanted, settings)
  if (result.kind === 'found') return { record: result.record, replayed: true }
  const leave = engine.inFlight.enter(wanted.attempt)
  let ended: Attempted | undefined
  try {
    ended = await runClaimed(engine, keeperOf(engine.store), result.claimed, handler, settings)
  } finally {
    leave?.(ended?.kind === 'completed' ? ended.record : undefined)
  }
  if (ended.kind === 'completed') return { record: ended.record, replayed: false }
  raise(ended.error)
}

/** What the handler threw comes through as it is. */
function raise(error: unknown): never {
  throw error
}
