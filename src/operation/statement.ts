/**
 * Statement: an operation whose whole work is one SQL statement of the user, sent with its record as ONE statement.
 *
 * The cheapest guard: one round trip, no explicit transaction. The unique constraint decides, so a duplicate or a
 * mismatch is executed and rolled back by the database; its outcome is never told.
 *
 * @module
 */

import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { integerOption, refuseUnknownOptions } from '../shared/options.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { isFinished, type UserStatement } from '../store/operation.ts'
import { type Engine, refuseNesting } from './engine.ts'
import { newAttempt, newRecord, type Operation, type Outcome, outcomeOf, ownOutcome } from './operation.ts'
import { RETENTION_DEFAULT_MS, RETENTION_MAX_MS } from './retention.ts'

export interface StatementOptions {
  /** How long the outcome is kept and the key stays taken, milliseconds. Default 30 days. */
  readonly retentionMs?: number | undefined
  /** Tries after deadlocks and lost answers. Default 3; 1 to 10. */
  readonly attemptsMax?: number | undefined
}

const RETRY = { minMs: 5, maxMs: 250 }

/** The flow behind `once.statement`; its promises are documented there. */
export async function runStatement<Tx, Row>(
  engine: Engine<Tx>,
  operation: Operation,
  statement: UserStatement,
  options: StatementOptions = {},
): Promise<Outcome<Row[]>> {
  refuseUnknownOptions('once.statement', options, ['retentionMs', 'attemptsMax'])
  const first = newAttempt(operation)
  refuseNesting()
  if (typeof statement?.text !== 'string') throw new TypeError('once.statement takes { text, values }')
  const attemptsMax = integerOption('attemptsMax', options.attemptsMax, { min: 1, max: 10, default: 3 })
  const { secrets, outcomeBytesMax: bytesMax } = engine
  const retentionMs = integerOption('retentionMs', options.retentionMs, {
    min: 1,
    max: RETENTION_MAX_MS,
    default: RETENTION_DEFAULT_MS,
  })
  const { operations } = engine.store
  const tokens: string[] = []
  let unresolved = false
  const failed = (error: unknown): never => {
    throw unresolved ? commitUnresolved(error) : error
  }
  for (let tries = 1; tries <= attemptsMax; tries++) {
    const attempt = tries === 1 ? first : { ...first, token: randomUUID() }
    tokens.push(attempt.token)
    const record = newRecord(attempt, 'succeeded', null, { secrets, retentionMs, bytesMax })
    const result = await operations.statement(record, statement, bytesMax).catch(failed)
    if (result.kind === 'stored') {
      return ownOutcome<Row[], never>({ ...record, outcome: result.outcome })
    }
    unresolved ||= result.kind === 'unresolved'
    // A lost answer needs no lock: the next try meets the record at the constraint, or is the one that is stored.
    const found = await operations.lookup(first.id).catch((error: unknown) => (unresolved ? undefined : failed(error)))
    if (found !== undefined) {
      return isFinished(found) && tokens.includes(found.token)
        ? ownOutcome<Row[], never>(found)
        : outcomeOf<Row[], never>(found, first.fingerprint, secrets)
    }
    if (result.kind === 'failed') failed(result.error)
    await pause(backoffMs(tries, RETRY))
  }
  if (unresolved) throw commitUnresolved(undefined)
  throw new OnceError('OPERATION_IN_PROGRESS', `the statement met another attempt ${attemptsMax} times`)
}

function commitUnresolved(cause: unknown): OnceError {
  const message = 'the answer to the statement was lost and could not be decided in time'
  return new OnceError('COMMIT_UNRESOLVED', message, { cause })
}
