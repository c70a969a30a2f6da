/**
 * Op: what a leased handler works with. Every act is a step: named, stored, and done once however often the handler is
 * started again.
 *
 * @module
 */

import { AsyncLocalStorage } from 'node:async_hooks'
import { Suspended } from '../effect/failure.ts'
import { downstreamKey } from '../effect/key.ts'
import { type EffectOptions, effectSettings } from '../effect/options.ts'
import { performEffect, storedAnswer } from '../effect/perform.ts'
import { type EffectPort, readStep, writeStep } from '../effect/record.ts'
import type { WorkContext } from '../operation/attempt.ts'
import { type Engine, refuseNesting } from '../operation/engine.ts'
import { decodeOutcome, encodeOutcome, OUTCOME_VERSION } from '../operation/outcome.ts'
import { OnceError } from '../shared/errors.ts'
import type { StepRecord } from '../store/job.ts'
import type { StartedStep, StepHistory } from './history.ts'
import type { HeldLease } from './lease.ts'
import { runStepTransaction, type StepTransactionOptions } from './step-transaction.ts'

/** What a leased handler is given. */
export interface Op<Tx> {
  /** The operation's key. */
  readonly key: string
  /** Grows with every ownership. Give it to systems that can compare it: they refuse what comes from a former owner. */
  readonly fence: bigint
  /** Version of the code that started the operation. */
  readonly version: number
  /** Aborts when the lease is lost or has to be given back. Stop then; nothing later is stored. */
  readonly signal: AbortSignal
  /**
   * A database step: `work`'s writes, its messages and the step's result commit together, once.
   *
   * @throws {OnceError} LEASE_LOST, STEP_CHANGED, COMMIT_UNRESOLVED, STORE_UNAVAILABLE, OUTCOME_NOT_REPRESENTABLE, ...
   */
  transaction<W>(
    name: string,
    work: (context: WorkContext<Tx>) => W,
    options?: StepTransactionOptions,
  ): Promise<Awaited<W>>
  /**
   * A call that leaves the database. Its intent is committed first; its result is what is stored.
   *
   * @throws {EffectRefused} the provider's final no.
   * @throws {OnceError} LEASE_LOST, STEP_CHANGED, NESTED_OPERATION inside a transaction (R15) or another step.
   */
  effect<Request, Result>(name: string, options: EffectOptions<Request, Result>): Promise<Result>
  /**
   * A value that must not change when the handler is started again: the time, a random number, something read. Computed
   * at least once, recorded afterwards. No other step may start in it: NESTED_OPERATION.
   */
  memo<T>(name: string, compute: () => T): Promise<Awaited<T>>
  /** A key for a system further on, derived from this operation and `name`: the same for ever. */
  downstreamKey(name: string): string
}

type Acts<Tx> = Pick<Op<Tx>, 'transaction' | 'effect' | 'memo' | 'downstreamKey'>

/** Its signal is made when it is asked for. A class, for a getter in a literal would give each operation a shape of its own. */
class OpOf<Tx> implements Op<Tx> {
  readonly key: string
  readonly fence: bigint
  readonly version: number
  readonly transaction: Acts<Tx>['transaction']
  readonly effect: Acts<Tx>['effect']
  readonly memo: Acts<Tx>['memo']
  readonly downstreamKey: Acts<Tx>['downstreamKey']
  readonly #held: HeldLease

  constructor(held: HeldLease, { key, version }: { readonly key: string; readonly version: number }, acts: Acts<Tx>) {
    this.key = key
    this.fence = held.lease.fence
    this.version = version
    this.transaction = acts.transaction
    this.effect = acts.effect
    this.memo = acts.memo
    this.downstreamKey = acts.downstreamKey
    this.#held = held
  }

  get signal(): AbortSignal {
    return this.#held.signal
  }
}

/** The step whose function runs in this async context; `open` ends with it. */
interface RunningStep {
  readonly of: object
  open: boolean
}

const running = new AsyncLocalStorage<RunningStep>()

/** An attempt's op, and how it has gone. */
export class OpRun<Tx> {
  readonly op: Op<Tx>
  readonly #engine: Engine<Tx>
  readonly #held: HeldLease
  readonly #history: StepHistory
  readonly #port: EffectPort
  #suspended: Suspended | undefined
  #ended = false

  constructor(
    engine: Engine<Tx>,
    held: HeldLease,
    history: StepHistory,
    facts: { readonly key: string; readonly version: number },
  ) {
    this.#engine = engine
    this.#held = held
    this.#history = history
    const { id } = held.lease
    this.#port = { operationId: id, held, store: engine.store.jobs, resultBytesMax: engine.outcomeBytesMax }
    this.op = new OpOf<Tx>(held, facts, {
      transaction: (name, work, options) => this.#transaction(name, work, options),
      effect: (name, options) => this.#effect(name, options),
      memo: (name, compute) => this.#memo(name, compute),
      downstreamKey: (name) => downstreamKey(id, `downstream ${requireName(name)}`),
    })
  }

  /** An effect of this attempt could not be finished, whatever the handler made of that. */
  get suspended(): Suspended | undefined {
    return this.#suspended
  }

  /** Refuses acts that come after the handler has ended. */
  end(): void {
    this.#ended = true
  }

  async #transaction<W>(
    name: string,
    work: (context: WorkContext<Tx>) => W,
    options?: StepTransactionOptions,
  ): Promise<Awaited<W>> {
    if (typeof work !== 'function') throw new TypeError('op.transaction takes a name and a work function')
    const started = this.#start(name, 'transaction')
    if (started.stored !== undefined) return decoded(started.stored) as Awaited<W>
    const step = await runStepTransaction(this.#engine, this.#held, started, work, options)
    return decoded(step) as Awaited<W>
  }

  async #effect<Request, Result>(name: string, options: EffectOptions<Request, Result>): Promise<Result> {
    const settings = effectSettings(name, options)
    const started = this.#start(name, 'effect')
    const { stored } = started
    const { reconcile } = settings
    if (stored?.effect !== undefined && stored.effect.requestHash !== settings.requestHash) {
      throw new OnceError('STEP_CHANGED', `effect "${name}" was started with another request; the stored one stands`)
    }
    if (stored?.state === 'done' || stored?.state === 'refused') return storedAnswer(stored, decoded) as Result
    try {
      return (await performEffect<Request, Result>(this.#port, started, {
        ...settings,
        call: (request, context) => this.#within(() => settings.call(request, context)),
        reconcile: reconcile && ((request, context) => this.#within(() => reconcile(request, context))),
      })) as Result
    } catch (error) {
      if (error instanceof Suspended) this.#suspended ??= error
      throw error
    }
  }

  async #memo<T>(name: string, compute: () => T): Promise<Awaited<T>> {
    if (typeof compute !== 'function') throw new TypeError('op.memo takes a name and a function')
    const started = this.#start(name, 'memo')
    if (started.stored !== undefined) return decoded(started.stored) as Awaited<T>
    const value: unknown = await this.#within(compute)
    const result = encodeOutcome(value, this.#engine.outcomeBytesMax)
    const step = {
      name,
      position: started.position,
      type: 'memo',
      state: 'done',
      result,
      resultVersion: OUTCOME_VERSION,
    } as const
    if ((await writeStep(this.#port, step)) === 'stored') return decoded(step) as Awaited<T>
    const found = await readStep(this.#port, name)
    if (found === undefined) throw new OnceError('STORE_UNAVAILABLE', `step "${name}" is stored and cannot be read`)
    return decoded(found) as Awaited<T>
  }

  /** Runs the function of a step so that no other step of this operation starts in it. */
  async #within<T>(work: () => T): Promise<Awaited<T>> {
    const own: RunningStep = { of: this, open: true }
    try {
      return await running.run(own, work)
    } finally {
      own.open = false
    }
  }

  #start(name: string, type: StepRecord['type']): StartedStep {
    if (this.#ended) throw new OnceError('LEASE_LOST', 'a step was started after its handler had ended')
    refuseNesting()
    const around = running.getStore()
    if (around?.open === true && around.of === this) {
      // When the outer one is stored its function is not called again, and the inner one would be missed for ever.
      throw new OnceError('NESTED_OPERATION', 'a step was started inside another step of its operation')
    }
    this.#held.check()
    if (this.#held.stopped !== undefined) throw this.#held.stopped
    // An operation that is to be given back does nothing more, whatever its handler caught.
    if (this.#suspended !== undefined) throw this.#suspended
    return this.#history.start(name, type)
  }
}

function decoded({ result, resultVersion }: Pick<StepRecord, 'result' | 'resultVersion'>): unknown {
  return decodeOutcome({ outcome: result, outcomeVersion: resultVersion })
}

function requireName(name: string): string {
  if (typeof name !== 'string' || name === '') throw new TypeError('op.downstreamKey takes a name')
  return name
}
