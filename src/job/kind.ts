/**
 * Kind: a handler with a name and a version, whose payload is stored, so that any process that knows the kind can resume
 * what another one has left.
 *
 * @module
 */

import type { Engine } from '../operation/engine.ts'
import type { Scope } from '../operation/identity.ts'
import { newAttempt, refuseOther, reused } from '../operation/operation.ts'
import { encodeOutcome } from '../operation/outcome.ts'
import type { OutcomeOfWork } from '../operation/transaction.ts'
import { OnceError } from '../shared/errors.ts'
import { choiceOption, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { newJob, type Wanted } from './claim.ts'
import type { Op } from './op.ts'
import { runWanted } from './run.ts'
import {
  LEASE_OPTIONS,
  type LeaseOptions,
  type LeaseSettings,
  leaseSettings,
  type RunOptions,
  WAIT_OPTIONS,
  waitSettings,
} from './settings.ts'

/** A handler of a kind: gets the stored payload, whoever runs it. */
export type KindHandler<Tx, Payload, Result> = (op: Op<Tx>, payload: Payload) => Result

export interface KindOptions<Tx, Payload, Result> extends LeaseOptions {
  readonly handler: KindHandler<Tx, Payload, Result>
  /** Handlers for operations that earlier versions have started, by version. Others wait for a process that has one. */
  readonly earlier?: Readonly<Record<number, KindHandler<Tx, Payload, unknown>>> | undefined
}

/** What names one job: an operation whose payload the handler gets. */
export interface Job<Payload> {
  readonly scope: Scope
  readonly key: string
  /** Plain JSON data. */
  readonly payload: Payload
}

export interface StartOptions {
  /** Milliseconds until a worker may take it. Default 0; at most 10 years. */
  readonly delayMs?: number | undefined
  /**
   * When a job with this key is there. `refuse` (default): the same payload is `exists`, another one
   * IDEMPOTENCY_KEY_REUSED. `replace`: one that nobody has claimed yet gets this payload, version and time. `keepTime`: it
   * gets this payload and version, and stays due when it was. A job that was claimed, or is done, is never replaced.
   */
  readonly whenExists?: 'refuse' | 'replace' | 'keepTime' | undefined
}

/**
 * `started`: stored by this call. `exists`: it was there, with the same payload; finished or not. `replaced`: one that
 * waited has this payload now.
 */
export type Started = 'started' | 'exists' | 'replaced'

/** What `once.define` gives. */
export interface Kind<Tx, Payload, Result> {
  readonly name: string
  readonly version: number
  /**
   * Stores the job for the workers. Once it has returned, the job is done or parked some day, whatever dies.
   *
   * @throws {OnceError} IDEMPOTENCY_KEY_REUSED for another payload or kind, unless `whenExists` says otherwise;
   *   OPERATION_IN_PROGRESS when a transaction has an uncommitted claim on the key; STORE_UNAVAILABLE.
   */
  start(job: Job<Payload>, options?: StartOptions): Promise<Started>
  /**
   * The same in a transaction of yours: the job exists if and only if it commits.
   *
   * @throws {OnceError} NOT_A_TRANSACTION, OPERATION_IN_PROGRESS (nobody knows yet whether it exists, B27), ...
   */
  startIn(tx: Tx, job: Job<Payload>, options?: StartOptions): Promise<Started>
  /** Runs it here, or waits for whoever does: as `once.run`, and workers resume it if this process dies. */
  run(
    job: Job<Payload>,
    options?: Pick<RunOptions, 'whenInProgress' | 'waitMs' | 'signal'>,
  ): Promise<OutcomeOfWork<Result>>
}

/** A kind as workers see it. */
export interface DefinedKind<Tx> {
  readonly name: string
  readonly settings: LeaseSettings
  /** By version. */
  readonly handlers: ReadonlyMap<number, KindHandler<Tx, unknown, unknown>>
}

const NAME = /^[a-z][\w.-]{0,99}$/i
const START = { minMs: 20, maxMs: 1_000 }
const STARTS_MAX = 5
const WHEN_EXISTS = ['refuse', 'replace', 'keepTime'] as const
const DELAY = { min: 0, max: 315_360_000_000, default: 0 }

const kinds = new WeakMap<object, DefinedKind<unknown>>()

/** The kind behind what `once.define` made. @throws {TypeError} for anything else. */
export function definedKind<Tx>(given: object): DefinedKind<Tx> {
  const kind = typeof given === 'object' && given !== null ? kinds.get(given) : undefined
  if (kind === undefined) throw new TypeError('once.worker takes kinds that once.define made')
  return kind
}

export function defineKind<Tx, Payload, Result>(
  engine: Engine<Tx>,
  wake: { ring(): void },
  name: string,
  options: KindOptions<Tx, Payload, Result>,
): Kind<Tx, Payload, Result> {
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw new TypeError('once.define: the name of a kind takes 1 to 100 of letters, digits and . _ -')
  }
  refuseUnknownOptions('once.define', options, ['handler', 'earlier', ...LEASE_OPTIONS])
  if (typeof options.handler !== 'function') throw new TypeError('once.define needs handler, a function')
  const settings = leaseSettings(options)
  const handlers = handlersOf(options, settings.version)
  const wantedOf = ({ scope, key, payload }: Job<Payload>): Wanted => ({
    // The kind belongs to what is compared: another kind under this key is a mismatch, also when the first has finished.
    attempt: newAttempt({ scope, key, payload: { kind: name, payload } }),
    key,
    kind: name,
    payload: encodeOutcome({ key, payload }, engine.outcomeBytesMax),
  })
  const kind: Kind<Tx, Payload, Result> = {
    name,
    version: settings.version,
    async start(job, startOptions = {}) {
      const started = await store(engine, wantedOf(job), settings.version, startSettings(startOptions))
      if (started !== 'exists') wake.ring()
      return started
    },
    async startIn(tx, job, startOptions = {}) {
      const wanted = wantedOf(job)
      const { delayMs, replaceInMs } = startSettings(startOptions)
      await engine.store.operations.assertTransaction(tx)
      const stored = newJob(engine, wanted, settings.version)
      const answer = await engine.store.jobs.enqueueIn(tx, stored, delayMs)
      if (answer === 'stored') return 'started'
      if (answer === 'busy') throw inProgress()
      if (replaceInMs !== undefined) {
        const replaced = await engine.store.jobs.replaceIn(tx, stored, replaceInMs)
        if (replaced === 'replaced') return 'replaced'
        if (replaced === 'busy') throw inProgress()
      }
      const record = await engine.store.operations.lookupIn(tx, wanted.attempt.id)
      if (record === undefined) throw inProgress()
      refuseOther(record, wanted.attempt.fingerprint, engine.secrets)
      return 'exists'
    },
    run(job, runOptions = {}) {
      refuseUnknownOptions(`${name}.run`, runOptions, WAIT_OPTIONS)
      const run = { ...settings, ...waitSettings(runOptions) }
      return runWanted(engine, wantedOf(job), (op) => options.handler(op, job.payload), run)
    },
  }
  kinds.set(kind, { name, settings, handlers } as DefinedKind<unknown>)
  return kind
}

/** What is stored as a job's payload: the key is not in its row otherwise, and the handler is to have it. */
export function jobOf(payload: string | null): { readonly key: string; readonly payload: unknown } {
  const stored: unknown = payload === null ? null : JSON.parse(payload)
  if (typeof stored !== 'object' || stored === null || !('key' in stored) || typeof stored.key !== 'string') {
    throw new OnceError('RESULT_UNAVAILABLE', 'the stored job cannot be read')
  }
  return { key: stored.key, payload: 'payload' in stored ? stored.payload : undefined }
}

async function store<Tx>(
  engine: Engine<Tx>,
  wanted: Wanted,
  version: number,
  { delayMs, replaceInMs }: StartSettings,
): Promise<Started> {
  const job = newJob(engine, wanted, version)
  for (let tries = 1; tries <= STARTS_MAX; tries++) {
    const answer = await engine.store.jobs.enqueue(job, delayMs)
    if (answer === 'stored') return 'started'
    const replaces = answer === 'exists' && replaceInMs !== undefined
    const replaced = replaces ? await engine.store.jobs.replace(job, replaceInMs) : 'started'
    if (replaced === 'replaced') return 'replaced'
    if (answer !== 'busy' && replaced === 'started') {
      const record = await engine.store.operations.lookup(job.id)
      if (record !== undefined) {
        if (record.token === job.token) return 'started'
        refuseOther(record, wanted.attempt.fingerprint, engine.secrets)
        const found = await engine.store.jobs.find(job.id)
        if (found !== undefined && found.kind !== wanted.kind) throw reused()
        return 'exists'
      }
    }
    await pause(backoffMs(tries, START))
  }
  throw inProgress()
}

function handlersOf<Tx, Payload, Result>(
  { handler, earlier }: KindOptions<Tx, Payload, Result>,
  version: number,
): ReadonlyMap<number, KindHandler<Tx, Payload, unknown>> {
  const handlers = new Map<number, KindHandler<Tx, Payload, unknown>>([[version, handler]])
  for (const [name, older] of Object.entries(earlier ?? {})) {
    const number = Number(name)
    if (!Number.isSafeInteger(number) || number < 1 || number >= version || typeof older !== 'function') {
      throw new TypeError(`once.define: earlier takes handlers by versions from 1 to ${version - 1}`)
    }
    handlers.set(number, older)
  }
  return handlers
}

interface StartSettings {
  readonly delayMs: number
  /** When a job that this one replaces is due, milliseconds; null = when it was; undefined = nothing is replaced. */
  readonly replaceInMs: number | null | undefined
}

function startSettings(options: StartOptions): StartSettings {
  refuseUnknownOptions('start', options, ['delayMs', 'whenExists'])
  const delayMs = integerOption('delayMs', options.delayMs, DELAY)
  const replaceInMs = { refuse: undefined, replace: delayMs, keepTime: null }
  return {
    delayMs,
    replaceInMs: replaceInMs[choiceOption('whenExists', options.whenExists, WHEN_EXISTS, 'refuse')],
  }
}

function inProgress(): OnceError {
  return new OnceError(
    'OPERATION_IN_PROGRESS',
    'a transaction has an uncommitted claim on this key; nobody knows yet what it is',
  )
}
