/**
 * Unrecorded: a work in a transaction of its own that leaves no record, for callers who may leave the key out.
 *
 * Same handle, same outbox, same bounds as an operation; nothing recognises a repeat.
 *
 * @module
 */

import { OutboxBuffer } from '../outbox/buffer.ts'
import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { runWork, type WorkContext } from './attempt.ts'
import { type Engine, refuseNesting } from './engine.ts'
import { newAttempt } from './operation.ts'
import type { TransactionSettings } from './transaction.ts'

/**
 * Runs `work` and commits when it returns true; otherwise everything is rolled back.
 *
 * @throws {OnceError} COMMIT_UNRESOLVED, STORE_UNAVAILABLE, NOT_A_TRANSACTION; errors of the work pass through.
 */
export async function runUnrecorded<Tx>(
  engine: Engine<Tx>,
  work: (context: WorkContext<Tx>) => Promise<boolean>,
  settings: Pick<TransactionSettings, 'isolation' | 'timeoutMs'>,
): Promise<void> {
  refuseNesting()
  // Ungated, so nothing is locked or looked for: the identity only satisfies the contract.
  const attempt = newAttempt({ scope: 'unrecorded', key: randomUUID(), payload: null })
  const opened = await engine.store.operations.open(attempt, {
    gated: false,
    isolation: settings.isolation,
    idleTimeoutMs: settings.timeoutMs,
  })
  const outbox = new OutboxBuffer(engine.outboxLimits)
  try {
    const commits = await runWork(opened, outbox, work, settings.timeoutMs)
    if (opened.conflict !== undefined) raise(opened.conflict)
    if (!commits) return
    const rows = outbox.end()
    const result = await opened.finish(undefined, rows)
    if (result === 'stored') {
      if (rows.length > 0) engine.store.outbox.bell.ring()
      return
    }
    if (result === 'unresolved') throw new OnceError('COMMIT_UNRESOLVED', 'the answer to COMMIT was lost')
    if (result === 'fenced') throw new OnceError('NOT_A_TRANSACTION', 'the work ended its transaction itself')
    throw new OnceError('STORE_UNAVAILABLE', `the transaction was rolled back (${result})`)
  } finally {
    outbox.end()
    await opened.rollback()
  }
}

function raise(error: unknown): never {
  throw error
}
