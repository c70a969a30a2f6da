/**
 * Overlap: what becomes of a tick's job that is still there when the next tick is due. (SC52)
 *
 * Nothing is ended about which somebody would have to ask: a job that is parked, or one of whose effects may have
 * happened, goes on beside its successor (I11).
 *
 * @module
 */

import type { Engine } from '../operation/engine.ts'
import { identify, type Scope } from '../operation/identity.ts'
import { encodeOutcome, OUTCOME_VERSION } from '../operation/outcome.ts'
import { RETENTION_DEFAULT_MS } from '../operation/retention.ts'
import { randomUUID } from '../shared/crypto.ts'
import type { JobRecord } from '../store/job.ts'
import type { EndAnswer } from '../store/job-replace.ts'

/**
 * - `beside`: both run.
 * - `skip`: the new tick is not started while the older one is not finished; one that is parked is nobody's way.
 * - `replace`: the older one ends as rejected with `{ code: 'REPLACED', by }`; its owner is told LEASE_LOST and stores
 *   nothing more.
 */
export type Overlap = 'beside' | 'skip' | 'replace'

/** The older tick's job, while it is not finished. */
export async function earlierTick<Tx>(engine: Engine<Tx>, scope: Scope, key: string): Promise<JobRecord | undefined> {
  return await engine.store.jobs.find(identify(scope, key).id)
}

/** Ends it in the transaction that starts its successor. */
export async function endEarlier<Tx>(
  engine: Engine<Tx>,
  tx: Tx,
  { id, scope, fingerprint }: JobRecord,
  by: string,
): Promise<EndAnswer> {
  const outcome = { outcomeVersion: OUTCOME_VERSION, outcome: encodeOutcome({ code: 'REPLACED', by }) }
  const record = { id, scope, fingerprint, token: randomUUID(), state: 'rejected' as const, ...outcome }
  return await engine.store.jobs.endIn(tx, { ...record, retentionMs: RETENTION_DEFAULT_MS }, by)
}
