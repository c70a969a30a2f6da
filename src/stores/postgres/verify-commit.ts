/**
 * Verify commit: decides whether a COMMIT whose answer was lost has taken place.
 *
 * Reading again is not enough: the COMMIT may still be on its way. So the reader first waits for the attempt's own
 * advisory locks, which the old transaction holds until it is over, and reads in a NEW statement (fresh snapshot).
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { bounded, pause } from '../../shared/waiting.ts'
import type { Attempt, CommitVerdict } from '../../store/operation.ts'
import { classify, toOnceError } from './classify.ts'
import type { Connections } from './connections.ts'
import type { PgClient } from './handle.ts'
import { owned } from './own-types.ts'
import type { OperationStatements } from './statements.ts'

/** Pause between tries while the database cannot be reached, milliseconds. */
const RETRY_PAUSE_MS = 100

/** Decides within `boundMs`, or answers `unresolved`. */
export async function verifyCommit<C extends PgClient>(
  connections: Connections<C>,
  sql: OperationStatements,
  attempt: Attempt,
  boundMs: number,
): Promise<CommitVerdict> {
  const deadline = performance.now() + boundMs
  for (;;) {
    const left = Math.ceil(deadline - performance.now())
    if (left <= 0) return 'unresolved'
    const verdict = await bounded(tryOnce(connections, sql, attempt, left), left + RETRY_PAUSE_MS)
    if (verdict.kind === 'done' && verdict.value !== 'again') return verdict.value
    await pause(Math.min(RETRY_PAUSE_MS, left))
  }
}

async function tryOnce<C extends PgClient>(
  connections: Connections<C>,
  sql: OperationStatements,
  attempt: Attempt,
  lockTimeoutMs: number,
): Promise<CommitVerdict | 'again'> {
  try {
    return await connections.use(
      lockTimeoutMs + RETRY_PAUSE_MS,
      async (client) => {
        await client.query({
          text: `begin isolation level read committed; set local lock_timeout = ${lockTimeoutMs}`,
        })
        await client.query(sql.lockBoth(attempt))
        const { rows } = await client.query(owned(sql.token(attempt.id)))
        await client.query({ text: 'rollback' })
        const { token, standby } = rows[0] ?? {}
        // A standby may not have heard of the commit yet.
        if (standby !== false) return 'again'
        if (token === null) return 'notCommitted'
        return token === attempt.token ? 'committed' : 'other'
      },
      true,
    )
  } catch (error) {
    if (classify(error) === 'schema') throw toOnceError(error, 'deciding a commit')
    return 'again'
  }
}
