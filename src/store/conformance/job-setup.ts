/**
 * What cases of leased operations begin with: a store, new jobs, leases, and short ways to lose one.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type {
  ClaimableKind,
  EffectIntent,
  JobEvent,
  JobRecord,
  JobStore,
  Lease,
  NewJob,
  NewStep,
  Release,
  StepRecord,
} from '../job.ts'
import type { NewRecord } from '../operation.ts'
import type { OutboxRow } from '../outbox.ts'
import type { OpenStore, StoreHarness } from './harness.ts'

export const DAY_MS = 86_400_000
export const LEASE_MS = 30_000
export const CLAIMS_MAX = 3
export const ACT = { actor: 'ops@example.com', reason: 'looked it up at the provider' }
export const KIND: ClaimableKind = { kind: 'invoice.create', version: 1, leaseMs: LEASE_MS, claimsMax: CLAIMS_MAX }
const IDLE_MS = 30_000

export function jobOf(parts: Partial<NewJob> = {}): NewJob {
  const { value, mode } = fingerprint({ amount: 1 })
  return {
    id: randomUUID(),
    scope: '["conformance"]',
    token: randomUUID(),
    fingerprint: { value, mode, keyId: null },
    kind: KIND.kind,
    version: KIND.version,
    payload: '{"amount":1}',
    ...parts,
  }
}

/** The same operation from another caller. */
export function again(job: NewJob): NewJob {
  return { ...job, token: randomUUID() }
}

export function recordOf(job: Omit<NewJob, 'token'>, token: string, parts: Partial<NewRecord> = {}): NewRecord {
  const { id, scope, fingerprint: print } = job
  const stored = { fingerprint: print, outcomeVersion: 1, outcome: '"done"', retentionMs: DAY_MS }
  return { id, scope, token, state: 'succeeded', ...stored, ...parts }
}

export function stepOf(name: string, parts: Partial<NewStep> = {}): NewStep {
  return { name, position: 0, type: 'transaction', state: 'done', result: '{"n":1}', resultVersion: 1, ...parts }
}

export function effectOf(name: string, parts: Partial<EffectIntent> = {}, position = 0): NewStep {
  const effect: EffectIntent = {
    delivery: 'keyed',
    request: '{"amount":100,"currency":"eur"}',
    requestHash: 'ab'.repeat(32),
    providerKey: `key-${randomUUID()}`,
    ...parts,
  }
  return { name, position, type: 'effect', state: 'intended', result: null, resultVersion: 1, effect }
}

export function releaseOf(parts: Partial<Release> = {}): Release {
  return { state: 'processing', dueInMs: 0, failed: false, reason: 'stopped', ...parts }
}

export function messageOf(): OutboxRow {
  const content = { payload: '{}', encoding: 'text', contentType: 'application/json', headers: '{}' } as const
  return { id: randomUUID(), lane: 0, topic: 'invoice.created.v1', orderingKey: null, ...content }
}

export interface JobBench {
  readonly opened: OpenStore<unknown>
  readonly jobs: JobStore<unknown>
  /** Claims an operation that nobody has claimed. */
  readonly claim: (job?: NewJob) => Promise<Lease>
  /** Claims it with an effect whose call may be on its way. */
  readonly claimWithEffect: (parts?: Partial<EffectIntent>, job?: NewJob) => Promise<Lease>
  /** Lets every lease come to its end. */
  readonly expire: () => Promise<void>
  /** One try to take an operation over, at its newest fence. */
  readonly takeOver: (id: string, claimsMax?: number) => Promise<Lease | 'busy' | 'parked'>
  /** Takes an operation over that can be taken. */
  readonly successor: (id: string) => Promise<Lease>
  readonly find: (id: string) => Promise<JobRecord>
  readonly step: (id: string, name: string) => Promise<StepRecord>
  /** Runs a step whose work is one write of this name. */
  readonly runStep: (lease: Lease, name: string, outbox?: readonly OutboxRow[]) => Promise<string>
  readonly claimDue: (limit?: number) => Promise<readonly Lease[]>
  readonly messages: () => Promise<number>
  readonly happened: (id: string) => Promise<readonly JobEvent['event'][]>
}

export async function withJobs(harness: StoreHarness, run: (bench: JobBench) => Promise<void>): Promise<void> {
  const opened = await harness.open()
  try {
    await run(benchOf(opened, opened.store.jobs))
  } finally {
    await opened.close()
  }
}

function benchOf(opened: OpenStore<unknown>, jobs: JobStore<unknown>): JobBench {
  const find = async (id: string) => present(await jobs.find(id))
  const claim = async (job = jobOf()) => {
    const answer = await jobs.claim(job, LEASE_MS)
    assert(answer.kind === 'claimed', `claimed, not ${answer.kind}`)
    return { id: job.id, token: job.token, fence: answer.fence }
  }
  const takeOver = async (id: string, claimsMax = CLAIMS_MAX) => {
    const { fence } = await find(id)
    const token = randomUUID()
    const answer = await jobs.takeOver({ id, fence, token, leaseMs: LEASE_MS, claimsMax })
    assert(answer.kind !== 'unresolved')
    return answer.kind === 'claimed' ? { id, token, fence: answer.fence } : answer.kind
  }
  return {
    opened,
    jobs,
    find,
    claim,
    takeOver,
    async claimWithEffect(parts, job) {
      const lease = await claim(job)
      assert.equal(await jobs.writeStep(lease, effectOf('charge', parts)), 'stored')
      return lease
    },
    expire: () => opened.advance(LEASE_MS + 1),
    async successor(id) {
      const lease = await takeOver(id, 1_000)
      assert(typeof lease === 'object', 'it can be taken over')
      return lease
    },
    step: async (id, name) => present((await jobs.steps(id)).find((step) => step.name === name)),
    async runStep(lease, name, outbox = []) {
      const step = await jobs.openStep(lease, { idleTimeoutMs: IDLE_MS })
      // A refused step's first statement fails; what `finish` says then is what counts.
      await Promise.resolve()
        .then(() => opened.write(step.tx, name))
        .catch(() => {})
      const answer = await step.finish(stepOf(name), outbox)
      await step.rollback()
      return answer
    },
    claimDue: async (limit = 100) => (await jobs.claimDue([KIND], limit)).claimed.map(({ lease }) => lease),
    messages: async () => (await opened.store.outbox.read(0, [], 100, 1_000_000)).rows.length,
    happened: async (id) => (await jobs.history(id)).map(({ event }) => event),
  }
}

export function present<T>(value: T | undefined): T {
  assert(value !== undefined)
  return value
}

/** Without what changes with time. */
export function still(job: JobRecord): Partial<JobRecord> {
  const { leaseLeftMs: _left, dueInMs: _due, ageMs: _age, ...rest } = job
  return rest
}

/** Everything that an owner writes changes nothing and says so. The operation has an effect `charge`. */
export async function assertFenced(
  bench: JobBench,
  lease: Lease,
  job: NewJob = jobOf({ id: lease.id }),
): Promise<void> {
  const { jobs, opened } = bench
  const changes = [
    { to: 'attempt', keyAgeMaxMs: null },
    { to: 'newKey', providerKey: 'another key' },
    { to: 'looked', looks: 1 },
    { to: 'done', result: '"late"', resultVersion: 1 },
    { to: 'refused', result: '"late"', resultVersion: 1 },
    { to: 'unknown' },
  ] as const
  const seen = async () => {
    const found = await jobs.find(lease.id)
    const steps = await jobs.steps(lease.id)
    const stored = steps.map(({ name, state, result, fence, effect }) => [name, state, result, fence, effect?.attempts])
    const { leaseLeftMs = null, dueInMs = null } = found ?? {}
    return { job: found && still(found), isHeld: leaseLeftMs !== null, isDue: dueInMs === 0, stored }
  }
  const [before, late] = [await seen(), await opened.count('late')]
  assert.deepEqual(await jobs.renew([{ lease, leaseMs: DAY_MS }]), ['lost'])
  assert.equal(await jobs.writeStep(lease, stepOf('late', { type: 'memo' })), 'fenced')
  assert.equal(await jobs.writeStep(lease, effectOf('late effect')), 'fenced')
  for (const change of changes) assert.equal(await jobs.changeEffect(lease, 'charge', change), 'fenced', change.to)
  assert.equal(await bench.runStep(lease, 'late', [messageOf()]), 'fenced')
  assert.equal(await jobs.complete(lease, recordOf(job, lease.token, { outcome: '"late"' })), 'fenced')
  for (const state of ['processing', 'unknown', 'parked'] as const) {
    assert.equal(await jobs.release(lease, releaseOf({ state, failed: true })), 'fenced')
  }
  assert.deepEqual(await seen(), before)
  assert.equal(await opened.count('late'), late)
  assert.equal(await bench.messages(), 0)
}
