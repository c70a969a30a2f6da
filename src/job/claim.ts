/**
 * Claim: how a caller comes to own an operation, or to its outcome, or to why it gets neither.
 *
 * A bare closure is resumed only here, when somebody calls again with the same key; defined kinds are also taken by
 * workers (./worker.ts). Waiting holds no connection.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { storedFingerprint } from '../fingerprint/stored.ts'
import type { Engine } from '../operation/engine.ts'
import { refuseOther, reused, unfinished } from '../operation/operation.ts'
import { randomUUID } from '../shared/crypto.ts'
import { OnceError } from '../shared/errors.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import type { JobRecord, NewJob } from '../store/job.ts'
import { type Attempt, isFinished, type OperationRecord } from '../store/operation.ts'
import type { Claimed } from './attempt.ts'
import type { RunSettings } from './settings.ts'

/** What is wanted. */
export interface Wanted {
  readonly attempt: Attempt
  readonly key: string
  /** null = a closure. */
  readonly kind: string | null
  /** What a worker would give to the kind's handler, JSON text. */
  readonly payload: string | null
}

export type ClaimedOrFound =
  | { readonly kind: 'claimed'; readonly claimed: Claimed }
  | { readonly kind: 'found'; readonly record: OperationRecord }

const POLL = { minMs: 50, maxMs: 500 }
/** How often the store may change its mind (record gone, owner gone) before it is called busy. */
const TURNS_MAX = 10

/**
 * @throws {OnceError} IDEMPOTENCY_KEY_REUSED, OPERATION_IN_PROGRESS, OPERATION_PARKED, STEP_CHANGED (other version),
 *   STORE_UNAVAILABLE, RESULT_UNAVAILABLE.
 */
export async function claim<Tx>(engine: Engine<Tx>, wanted: Wanted, settings: RunSettings): Promise<ClaimedOrFound> {
  const untilMs = performance.now() + settings.waitMs
  let polls = 0
  for (let turn = 0; turn - polls < TURNS_MAX; turn++) {
    const result = turn === 0 ? await firstClaim(engine, wanted, settings) : await again(engine, wanted, settings)
    if (result.kind !== 'busy') return result
    if (result.retryAfterMs === 0) continue
    const left = untilMs - performance.now()
    if (settings.whenInProgress === 'reject' || left <= 0 || settings.signal?.aborted === true) {
      throw unfinished({ state: 'processing', leaseLeftMs: result.retryAfterMs })
    }
    polls += 1
    await waited(engine, wanted, Math.min(left, backoffMs(polls, POLL)), settings.signal)
  }
  throw unfinished({ state: 'processing', leaseLeftMs: null })
}

/** 0 = look again at once. */
type Busy = { readonly kind: 'busy'; readonly retryAfterMs: number }
const AGAIN: Busy = { kind: 'busy', retryAfterMs: 0 }
const BUSY_MS = 1_000

/** Whoever waits for an attempt of this process is told by it, and does not have to ask. */
async function waited<Tx>(
  engine: Engine<Tx>,
  { attempt }: Wanted,
  ms: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const running = engine.inFlight.get(attempt.id)
  if (running === undefined) return await pause(ms, signal)
  const done = engine.inFlight.wait()
  const controller = new AbortController()
  const stop = () => controller.abort()
  signal?.addEventListener('abort', stop, { once: true })
  try {
    await Promise.race([running.ended, pause(ms, controller.signal)])
  } finally {
    controller.abort()
    signal?.removeEventListener('abort', stop)
    done()
  }
}

async function firstClaim<Tx>(
  engine: Engine<Tx>,
  wanted: Wanted,
  settings: RunSettings,
): Promise<ClaimedOrFound | Busy> {
  // A repeat in this process: the claim would only be refused.
  if (engine.inFlight.get(wanted.attempt.id) !== undefined) return await look(engine, wanted, settings)
  return await insert(engine, wanted, settings)
}

async function again<Tx>(engine: Engine<Tx>, wanted: Wanted, settings: RunSettings): Promise<ClaimedOrFound | Busy> {
  const found = await look(engine, wanted, settings)
  return found.kind === 'busy' && found.retryAfterMs === 0 ? await insert(engine, wanted, settings) : found
}

/** The claim of an operation that nobody has claimed before. */
async function insert<Tx>(engine: Engine<Tx>, wanted: Wanted, settings: RunSettings): Promise<ClaimedOrFound | Busy> {
  const job = newJob(engine, wanted, settings.version)
  const startedMs = performance.now()
  const answer = await engine.store.jobs.claim(job, settings.leaseMs)
  switch (answer.kind) {
    case 'claimed': {
      const lease = { id: job.id, token: job.token, fence: answer.fence }
      return claimed(wanted, lease, startedMs, undefined)
    }
    case 'busy':
      return { kind: 'busy', retryAfterMs: BUSY_MS }
    case 'exists':
      return await look(engine, wanted, settings)
    case 'unresolved':
      return await ourOwn(engine, wanted, settings, job, startedMs)
  }
}

/** The answer to our claim was lost: our token tells whether it came through. (SC8) */
async function ourOwn<Tx>(
  engine: Engine<Tx>,
  wanted: Wanted,
  settings: RunSettings,
  { id, token }: NewJob,
  startedMs: number,
): Promise<ClaimedOrFound | Busy> {
  const job = await engine.store.jobs.find(id)
  if (job?.token !== token) return job === undefined ? AGAIN : await look(engine, wanted, settings)
  return claimed(wanted, { id, token, fence: job.fence }, startedMs, undefined)
}

/** The outcome, or the operation of an owner that is silent or gone. */
async function look<Tx>(engine: Engine<Tx>, wanted: Wanted, settings: RunSettings): Promise<ClaimedOrFound | Busy> {
  const { store, secrets } = engine
  const record = await store.operations.lookup(wanted.attempt.id)
  if (record === undefined) return AGAIN
  refuseOther(record, wanted.attempt.fingerprint, secrets)
  if (isFinished(record)) return { kind: 'found', record }
  if (record.state === 'parked') throw unfinished(record)
  if (record.leaseLeftMs !== null) return { kind: 'busy', retryAfterMs: record.leaseLeftMs }
  const job = await store.jobs.find(wanted.attempt.id)
  if (job === undefined) return AGAIN
  if (job.kind !== wanted.kind) throw reused()
  if (job.leaseLeftMs !== null) return { kind: 'busy', retryAfterMs: job.leaseLeftMs }
  // What waits for its time is left to wait: a repeat must not hurry what a provider has asked to slow down.
  if (job.kind !== null && job.dueInMs !== null && job.dueInMs > 0 && job.fence > 0n) throw waiting(job)
  if (job.state === 'unknown' && job.kind !== null && job.dueInMs === null) throw unfinished(job)
  if (job.version !== settings.version) throw otherVersion(job, settings.version)
  return await takeOver(engine, wanted, settings, job)
}

async function takeOver<Tx>(
  engine: Engine<Tx>,
  wanted: Wanted,
  settings: RunSettings,
  job: JobRecord,
): Promise<ClaimedOrFound | Busy> {
  const { leaseMs, claimsMax } = settings
  const token = randomUUID()
  const startedMs = performance.now()
  const answer = await engine.store.jobs.takeOver({ id: job.id, fence: job.fence, token, leaseMs, claimsMax })
  switch (answer.kind) {
    case 'claimed':
      return claimed(wanted, { id: job.id, token, fence: answer.fence }, startedMs, job)
    case 'parked':
      throw unfinished({ state: 'parked', leaseLeftMs: null })
    case 'busy':
      return AGAIN
    case 'unresolved': {
      const found = await engine.store.jobs.find(job.id)
      if (found?.token !== token) return AGAIN
      return claimed(wanted, { id: job.id, token, fence: found.fence }, startedMs, found)
    }
  }
}

function claimed(
  { attempt, key }: Wanted,
  lease: Claimed['lease'],
  startedMs: number,
  job: JobRecord | undefined,
): ClaimedOrFound {
  return { kind: 'claimed', claimed: { attempt, key, lease, startedMs, job } }
}

/** What is stored for an operation that is claimed or enqueued for the first time. */
export function newJob<Tx>(engine: Engine<Tx>, { attempt, kind, payload }: Wanted, version: number): NewJob {
  const { id, scope, token, fingerprint } = attempt
  return { id, scope, token, fingerprint: storedFingerprint(fingerprint, engine.secrets), kind, version, payload }
}

function waiting({ state, dueInMs }: JobRecord): OnceError {
  if (state === 'unknown') return unfinished({ state, leaseLeftMs: null })
  return unfinished({ state: 'processing', leaseLeftMs: dueInMs })
}

function otherVersion({ version }: JobRecord, asked: number): OnceError {
  return new OnceError(
    'STEP_CHANGED',
    `the operation was started by version ${version} of its code, this is version ${asked}`,
  )
}
