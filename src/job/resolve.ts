/**
 * Resolve: a proven result is attached to what is unknown, by a webhook, by a program or by a person.
 *
 * Nobody sets an operation to succeeded without saying what it came to, who says so and why; the audit row is written in
 * the same transaction. (R46, I11, I16)
 *
 * @module
 */

import { isReconciled, type Reconciled } from '../effect/options.ts'
import type { Engine } from '../operation/engine.ts'
import { identify, type Scope } from '../operation/identity.ts'
import { encodeOutcome, OUTCOME_VERSION } from '../operation/outcome.ts'
import { RETENTION_DEFAULT_MS } from '../operation/retention.ts'
import { checkAct } from '../repair/act.ts'
import { randomUUID } from '../shared/crypto.ts'
import { describe, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { Act, EffectProof, JobEvent, JobRecord, JobSummary, ResolveAnswer } from '../store/job.ts'

/** What is resolved: an effect by its operation and name, or by the key that the provider was given; or an operation. */
export type ResolveReference =
  | { readonly scope: Scope; readonly key: string; readonly effect: string }
  | { readonly providerKey: string }
  | { readonly scope: Scope; readonly key: string; readonly effect?: undefined }
  /** As `once.unfinished` lists it. */
  | { readonly id: string; readonly effect?: string | undefined }

/** Names an operation for people's acts. */
export type OperationReference = { readonly scope: Scope; readonly key: string } | { readonly id: string }

/** Attaches what is proven. `found(value)` or `notApplied()`. */
export async function resolve<Tx>(
  engine: Engine<Tx>,
  reference: ResolveReference,
  proof: Reconciled<unknown>,
  act: Act,
): Promise<ResolveAnswer> {
  checkAct(act)
  if (!isReconciled(proof) || proof.kind === 'stillUnknown') {
    throw new TypeError('once.resolve takes found(value) or notApplied() as proof')
  }
  const value = proof.kind === 'found' ? encodeOutcome(proof.value, engine.outcomeBytesMax) : null
  const { jobs } = engine.store
  if ('providerKey' in reference) {
    if (!isName('providerKey', reference.providerKey)) return 'notFound'
    return await jobs.resolveEffect(reference, effectProof(proof, value), act)
  }
  const id = idOf(reference)
  if (reference.effect !== undefined) {
    if (!isName('effect', reference.effect)) return 'notFound'
    return await jobs.resolveEffect({ id, name: reference.effect }, effectProof(proof, value), act)
  }
  const job = await jobs.find(id)
  if (job === undefined) {
    return (await engine.store.operations.lookup(id)) === undefined ? 'notFound' : 'decided'
  }
  const state = proof.kind === 'found' ? 'succeeded' : 'rejected'
  const { scope, fingerprint } = job
  const named = { id, scope, token: randomUUID(), state, fingerprint } as const
  const kept = { outcomeVersion: OUTCOME_VERSION, outcome: value, retentionMs: RETENTION_DEFAULT_MS }
  const record = { ...named, ...kept, ...(proof.kind === 'found' ? {} : { notApplied: true as const }) }
  return await jobs.resolveOperation(record, act)
}

/** Makes a parked or unknown operation due again, with a fresh budget. (SC54) */
export async function redrive<Tx>(
  engine: Engine<Tx>,
  reference: OperationReference,
  act: Act,
): Promise<'redriven' | 'notFound' | 'busy'> {
  checkAct(act)
  return await engine.store.jobs.redrive(idOf(reference), act)
}

export interface UnfinishedFilter {
  /** Default: unknown and parked. */
  readonly states?: readonly JobRecord['state'][] | undefined
  /** Default 100; 1 to 1_000. */
  readonly limit?: number | undefined
  /** The id of the last one of the page before. */
  readonly after?: string | undefined
}

export async function unfinished<Tx>(
  engine: Engine<Tx>,
  filter: UnfinishedFilter = {},
): Promise<readonly JobSummary[]> {
  refuseUnknownOptions('once.unfinished', filter, ['states', 'limit', 'after'])
  const states = filter.states ?? ['unknown', 'parked']
  if (states.some((state) => !['processing', 'unknown', 'parked'].includes(state))) {
    throw new TypeError('once.unfinished states takes processing | unknown | parked')
  }
  const limit = integerOption('limit', filter.limit, { min: 1, max: 1_000, default: 100 })
  if (filter.after !== undefined) checkId(filter.after)
  return await engine.store.jobs.list({ states, limit, after: filter.after })
}

export async function history<Tx>(engine: Engine<Tx>, reference: OperationReference): Promise<readonly JobEvent[]> {
  return await engine.store.jobs.history(idOf(reference))
}

function effectProof(proof: Reconciled<unknown>, result: string | null): EffectProof {
  return proof.kind === 'found' ? { state: 'done', result, resultVersion: OUTCOME_VERSION } : { state: 'notApplied' }
}

/** false: no effect can be called so. A webhook brings what somebody sent to it, and stores refuse some of that. */
function isName(option: string, name: unknown): boolean {
  if (typeof name !== 'string') throw new TypeError(`once.resolve ${option} takes text, got ${describe(name)}`)
  return name !== '' && !name.includes('\0') && name.isWellFormed()
}

function idOf(reference: OperationReference): string {
  return 'id' in reference ? checkId(reference.id) : identify(reference.scope, reference.key).id
}

function checkId(id: string): string {
  if (typeof id !== 'string' || !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) {
    throw new TypeError(`an operation's id is a UUID in lower case, got ${describe(id)}`)
  }
  return id
}
