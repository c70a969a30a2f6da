/**
 * Rows of leased operations, as the contract tells them.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type { DueJob, JobEvent, JobRecord, JobSummary, StepRecord } from '../../store/job.ts'

type Row = Record<string, unknown>

const textOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null)
const numberOrNull = (value: unknown): number | null => (value === null || value === undefined ? null : Number(value))

/** Rows of a read that decides: a standby is refused whatever it has, and the row that stands for none is left out. */
export function fromPrimary(rows: readonly Row[], key: string, doing: string): readonly Row[] {
  if (rows[0]?.['standby'] !== false) {
    throw new OnceError('REPLICA_REFUSED', `${doing}: the connection leads to a standby`)
  }
  return rows.filter((row) => row[key] !== null)
}

export function toJob(row: Row): JobRecord {
  const leaseLeftMs = numberOrNull(row['lease_left_ms'])
  const dueInMs = numberOrNull(row['due_in_ms'])
  return {
    id: String(row['id']),
    scope: String(row['scope']),
    state: row['state'] as JobRecord['state'],
    token: String(row['token']),
    fence: BigInt(String(row['fence'])),
    fingerprint: {
      mode: row['fingerprint_mode'] as JobRecord['fingerprint']['mode'],
      keyId: textOrNull(row['fingerprint_key']),
      value: row['fingerprint'] as Uint8Array,
    },
    kind: textOrNull(row['kind']),
    version: Number(row['kind_version']),
    payload: textOrNull(row['payload']),
    leaseLeftMs: leaseLeftMs !== null && leaseLeftMs > 0 ? leaseLeftMs : null,
    dueInMs: dueInMs === null ? null : Math.max(0, dueInMs),
    claims: Number(row['claims']),
    failures: Number(row['failures']),
    reason: textOrNull(row['reason']),
    ageMs: Number(row['age_ms']),
  }
}

export function toDueJob(row: Row): DueJob {
  const job = toJob(row)
  const { id, token, fence } = job
  return { ...job, lease: { id, token, fence }, leaseMs: Number(row['lease_ms']) }
}

export function toSummary(row: Row): JobSummary {
  const { payload: _payload, fingerprint: _fingerprint, token: _token, ...told } = toJob(row)
  return { ...told, unknownEffects: (row['unknown_effects'] ?? []) as JobSummary['unknownEffects'] }
}

export function toStep(row: Row): StepRecord {
  const step = {
    name: String(row['name']),
    position: Number(row['position']),
    type: row['type'] as StepRecord['type'],
    state: row['state'] as StepRecord['state'],
    result: textOrNull(row['result']),
    resultVersion: Number(row['result_version']),
    fence: BigInt(String(row['fence'])),
  }
  const delivery = textOrNull(row['delivery'])
  if (delivery === null) return step
  return {
    ...step,
    effect: {
      delivery,
      request: String(row['request']),
      requestHash: String(row['request_hash']),
      providerKey: String(row['provider_key']),
      attempts: Number(row['attempts']),
      keyGeneration: Number(row['key_generation']),
      looks: Number(row['looks']),
      // A new key that was not used yet has no first attempt.
      firstAttemptAgeMs: Number(row['first_attempt_age_ms'] ?? 0),
      lastAttemptAgeMs: Number(row['last_attempt_age_ms']),
      unknownAgeMs: numberOrNull(row['unknown_age_ms']),
    },
  }
}

export function toEvent(row: Row): JobEvent {
  return {
    atMs: Number(row['at_ms']),
    fence: BigInt(String(row['fence'])),
    event: row['event'] as JobEvent['event'],
    detail: textOrNull(row['detail']),
  }
}
