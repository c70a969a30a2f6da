/**
 * Perform: one effect, from its intent to its answer, across any number of attempts and owners.
 *
 * The intent (request, key) is committed before the first call, and each attempt is counted before it starts. What is
 * done next is decided by ./decide.ts from what is stored and what was seen. Between the last check of the lease and the
 * call lies an instant in which an owner can be replaced; only the provider's key, or asking it, makes such a late call
 * harmless (PROTOCOL C11).
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { encodeOutcome, OUTCOME_VERSION } from '../operation/outcome.ts'
import { OnceError } from '../shared/errors.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { LOOKS_PROVEN, type StepRecord } from '../store/job.ts'
import { type Answer, askReconcile, attemptCall } from './call.ts'
import { aftermath, judgeNotApplied, nextAct } from './decide.ts'
import { EffectRefused, type Refusal, Suspended } from './failure.ts'
import { downstreamKey } from './key.ts'
import type { EffectSettings } from './options.ts'
import { providerKey } from './provider/index.ts'
import { changeEffect, type EffectPort, readStep, writeStep } from './record.ts'

/** Attempts that one owner makes before it gives the operation back. */
const ATTEMPTS_MAX = 5
const RETRY = { minMs: 100, maxMs: 5_000 }
/** When an unknown effect is asked about again: half its age, within these bounds. Milliseconds. */
const UNKNOWN = { minMs: 1_000, maxMs: 300_000 }

/** What is known about the effect at this moment. */
interface Known {
  attempts: number
  keyGeneration: number
  looks: number
  providerKey: string
  /** Monotonic instants, derived from the store's ages. */
  firstAttemptMs: number
  lastAttemptMs: number
  unknownSinceMs: number | null
  doubt: boolean
  /** It is proven that nothing has happened so far. */
  proven: boolean
  keySpoiled: boolean
}

/** Runs or resumes an effect that has no answer yet, and gives the stored form of its result. */
export async function performEffect<Request, Result>(
  port: EffectPort,
  step: { readonly name: string; readonly position: number; readonly stored: StepRecord | undefined },
  settings: EffectSettings<Request, Result>,
): Promise<unknown> {
  return await new Effect(port, step.name, step.position, settings).run(step.stored)
}

/** The result of a stored step, or its refusal. */
export function storedAnswer(step: StepRecord, decode: (step: StepRecord) => unknown): unknown {
  const value = decode(step)
  if (step.state === 'refused') throw new EffectRefused(step.name, value as Refusal)
  return value
}

class Effect<Request, Result> {
  readonly #port: EffectPort
  readonly #name: string
  readonly #position: number
  readonly #settings: EffectSettings<Request, Result>
  /** How long the handler may still wait between attempts. */
  #patienceMs: number
  #tries = 0
  #failures = 0

  constructor(port: EffectPort, name: string, position: number, settings: EffectSettings<Request, Result>) {
    this.#port = port
    this.#name = name
    this.#position = position
    this.#settings = settings
    this.#patienceMs = settings.patienceMs
  }

  async run(stored: StepRecord | undefined): Promise<unknown> {
    if (this.#settings.delivery === 'at-least-once') return await this.#repeat()
    let fresh = stored === undefined
    let step = stored
    if (step === undefined) {
      this.#port.held.signal.throwIfAborted()
      step = await this.#intend()
    }
    if (step !== undefined && step.state !== 'intended' && step.state !== 'unknown') return this.#answered(step)
    // Written by this owner a moment ago: its first attempt is counted and has not started.
    fresh &&= step === undefined
    const known = fresh ? this.#beginning() : this.#resumed(step as StepRecord)
    for (;;) {
      const act = nextAct({ ...known, ...this.#facts(known) })
      if (act === 'unknown') return await this.#unknown(known, 'nobody can be asked', null)
      if (act === 'reconcile') {
        const result = await this.#reconcile(known)
        if (result !== undefined) return result.value
        continue
      }
      if (act === 'newKey') await this.#newKey(known)
      if (!fresh && !(await this.#countAttempt(known))) continue
      fresh = false
      const result = await this.#attempt(known)
      if (result !== undefined) return result.value
    }
  }

  #facts(known: Known) {
    const { delivery, reconcile, keyAgeMaxMs } = this.#settings
    return {
      delivery,
      hasReconcile: reconcile !== undefined,
      keyAlive: keyAgeMaxMs === null || performance.now() - known.firstAttemptMs < keyAgeMaxMs,
    }
  }

  /** Commits the intent. Undefined = it is ours and new; a step = it was there (an answer of ours had been lost). */
  async #intend(): Promise<StepRecord | undefined> {
    const { delivery, request, requestHash } = this.#settings
    const effect = { delivery, request, requestHash, providerKey: this.#keyOf(0) }
    const answer = await writeStep(this.#port, { ...this.#step('intended', null), effect })
    // Found there although nothing was stored at the start: our own write, twice. Whether a call followed is not known.
    return answer === 'stored' ? undefined : await this.#read()
  }

  #beginning(): Known {
    const now = performance.now()
    return {
      attempts: 1,
      keyGeneration: 0,
      looks: 0,
      providerKey: this.#keyOf(0),
      firstAttemptMs: now,
      lastAttemptMs: now,
      unknownSinceMs: null,
      doubt: false,
      proven: false,
      keySpoiled: false,
    }
  }

  /** What an earlier owner left: its last attempt may have happened, unless it is proven that it has not. */
  #resumed({ effect, state }: StepRecord): Known {
    if (effect === undefined) throw new OnceError('STEP_CHANGED', `step "${this.#name}" is stored without an intent`)
    const now = performance.now()
    return {
      attempts: effect.attempts,
      keyGeneration: effect.keyGeneration,
      looks: effect.looks,
      providerKey: effect.providerKey,
      firstAttemptMs: now - effect.firstAttemptAgeMs,
      lastAttemptMs: now - effect.lastAttemptAgeMs,
      unknownSinceMs: effect.unknownAgeMs === null ? null : now - effect.unknownAgeMs,
      doubt: effect.looks < this.#settings.looks,
      proven: effect.looks >= this.#settings.looks,
      // It became unknown because a repeat with this key was of no use any more; nor is it now. (B86)
      keySpoiled: state === 'unknown',
    }
  }

  #keyOf(generation: number): string {
    return providerKey(downstreamKey(this.#port.operationId, this.#name, generation), this.#settings.profile)
  }

  async #newKey(known: Known): Promise<void> {
    const key = this.#keyOf(known.keyGeneration + 1)
    await changeEffect(this.#port, this.#name, { to: 'newKey', providerKey: key })
    known.keyGeneration += 1
    known.providerKey = key
    known.keySpoiled = false
    known.firstAttemptMs = performance.now()
  }

  /** Counts an attempt before it starts. false = something has changed: decide again. */
  async #countAttempt(known: Known): Promise<boolean> {
    this.#port.held.signal.throwIfAborted()
    const keyed = this.#settings.delivery === 'keyed'
    const keyAgeMaxMs = keyed ? this.#settings.keyAgeMaxMs : null
    const answer = await changeEffect(this.#port, this.#name, { to: 'attempt', keyAgeMaxMs })
    if (answer === 'expired') {
      known.firstAttemptMs = Number.NEGATIVE_INFINITY
      return false
    }
    if (answer === 'decided') throw this.#decidedMeanwhile()
    known.attempts += 1
    known.looks = 0
    known.lastAttemptMs = performance.now()
    return true
  }

  async #attempt(known: Known): Promise<{ readonly value: unknown } | undefined> {
    this.#tries += 1
    const answer = await this.#call(known)
    if (answer.kind === 'result') return { value: await this.#keep(answer.value as Result) }
    const { existingId } = answer.failure
    if (existingId !== undefined && this.#settings.reconcile === undefined) {
      // The provider names what is there; nobody can be asked for more.
      return { value: await this.#keep({ id: existingId } as Result) }
    }
    const after = aftermath(answer.failure.kind, answer.failure.decides, known.doubt, known.proven)
    known.proven = !after.doubt && known.proven
    if (after.refused) return await this.#refuse(answer.failure)
    known.doubt = after.doubt
    known.keySpoiled ||= after.keySpoiled
    await this.#beforeNext(known, answer)
    return undefined
  }

  async #call(known: Pick<Known, 'providerKey' | 'attempts'> & { readonly doubt: boolean }): Promise<Answer> {
    const { signal } = this.#port.held
    if (signal.aborted) {
      this.#port.held.check()
      if (!known.doubt) await this.#settleProof()
      signal.throwIfAborted()
    }
    // The last look before something leaves that cannot be taken back.
    this.#port.held.check()
    const answer = await attemptCall(this.#settings, {
      idempotencyKey: known.providerKey,
      attempt: known.attempts,
      signal,
    })
    this.#port.held.check()
    return answer
  }

  /** Waits before the next attempt, or gives the operation back. */
  async #beforeNext(known: Known, answer: Extract<Answer, { readonly kind: 'failed' }>): Promise<void> {
    const act = nextAct({ ...known, ...this.#facts(known) })
    // Asking is not an attempt, and what nobody can decide does not get better by waiting.
    if (act === 'reconcile' || act === 'unknown') return
    this.#failures += 1
    const waitMs = Math.max(answer.failure.retryAfterMs ?? 0, backoffMs(this.#failures, RETRY))
    if (this.#tries < ATTEMPTS_MAX && waitMs <= this.#patienceMs) return await this.#wait(waitMs)
    if (!known.doubt && known.looks < LOOKS_PROVEN) await this.#settleProof()
    throw new Suspended(this.#name, 'processing', waitMs, reasonOf(answer), { cause: answer.error })
  }

  /** An attempt that certainly did nothing must not be doubted by the next owner. */
  async #settleProof(): Promise<void> {
    if (this.#settings.delivery === 'at-least-once') return
    await changeEffect(this.#port, this.#name, { to: 'looked', looks: LOOKS_PROVEN })
  }

  async #wait(ms: number): Promise<void> {
    this.#patienceMs -= ms
    await pause(ms, this.#port.held.signal)
    this.#port.held.check()
    this.#port.held.signal.throwIfAborted()
  }

  async #reconcile(known: Known): Promise<{ readonly value: unknown } | undefined> {
    this.#port.held.check()
    const answer = await askReconcile(this.#settings, {
      idempotencyKey: known.providerKey,
      attempt: known.attempts,
      signal: this.#port.held.signal,
    })
    this.#port.held.check()
    if (answer.kind === 'found') return { value: await this.#keep(answer.value as Result) }
    if (answer.kind === 'stillUnknown') return await this.#unknown(known, answer.reason, undefined)
    const { settleAfterMs, looks } = this.#settings
    const lastAttemptAgeMs = performance.now() - known.lastAttemptMs
    const judged = judgeNotApplied(known.looks, { lastAttemptAgeMs, settleAfterMs, looks })
    if (judged.kind === 'early') {
      if (judged.waitMs > this.#patienceMs) return await this.#unknown(known, 'too early to believe', judged.waitMs)
      await this.#wait(judged.waitMs)
      return undefined
    }
    known.looks = judged.kind === 'proven' ? LOOKS_PROVEN : known.looks + 1
    await changeEffect(this.#port, this.#name, { to: 'looked', looks: known.looks })
    if (judged.kind === 'proven') {
      known.doubt = false
      known.proven = true
      return undefined
    }
    if (judged.waitMs > this.#patienceMs) return await this.#unknown(known, 'looked once', judged.waitMs)
    await this.#wait(judged.waitMs)
    return undefined
  }

  /** @param dueInMs - undefined: by the age of the doubt; null: nobody can be asked. */
  async #unknown(known: Known, reason: string, dueInMs: number | null | undefined): Promise<never> {
    if ((await changeEffect(this.#port, this.#name, { to: 'unknown' })) === 'decided') throw this.#decidedMeanwhile()
    const ageMs = known.unknownSinceMs === null ? 0 : performance.now() - known.unknownSinceMs
    const next = Math.min(UNKNOWN.maxMs, Math.max(UNKNOWN.minMs, ageMs / 2))
    throw new Suspended(this.#name, 'unknown', dueInMs === undefined ? next : dueInMs, reason)
  }

  /** A webhook was faster: the next attempt of the operation finds the answer at once. */
  #decidedMeanwhile(): Suspended {
    return new Suspended(this.#name, 'processing', 0, 'resolved meanwhile')
  }

  /** Stores the result. The first answer wins: a webhook may have been faster. */
  async #keep(value: Result): Promise<unknown> {
    const result = this.#encode(value)
    const change = { to: 'done', result, resultVersion: OUTCOME_VERSION } as const
    const answer = await changeEffect(this.#port, this.#name, change)
    return answer === 'stored' ? parsed(result) : this.#answered(await this.#readAgain())
  }

  async #refuse(failure: { readonly status: number | undefined; readonly codes: readonly string[] }): Promise<never> {
    const refusal: Refusal = { status: failure.status ?? null, codes: failure.codes.slice(0, 8) }
    const result = encodeOutcome(refusal, this.#port.resultBytesMax)
    const change = { to: 'refused', result, resultVersion: OUTCOME_VERSION } as const
    if ((await changeEffect(this.#port, this.#name, change)) === 'decided') {
      throw this.#decidedMeanwhile()
    }
    throw new EffectRefused(this.#name, refusal)
  }

  /** Repeated until there is an answer, which is then recorded: the effect may happen more than once. */
  async #repeat(): Promise<unknown> {
    const { request, requestHash, delivery } = this.#settings
    let generation = 0
    for (;;) {
      const key = this.#keyOf(generation)
      const effect = { delivery, request, requestHash, providerKey: key }
      this.#tries += 1
      const answer = await this.#call({ providerKey: key, attempts: this.#tries, doubt: false })
      if (answer.kind === 'result') {
        const result = this.#encode(answer.value as Result)
        if ((await writeStep(this.#port, { ...this.#step('done', result), effect })) === 'stored') return parsed(result)
        return this.#answered(await this.#readAgain())
      }
      const { failure } = answer
      // It may happen again, and with this key it never will.
      if (failure.kind === 'storedFailure') generation += 1
      if (failure.kind === 'refused') {
        const refusal: Refusal = { status: failure.status ?? null, codes: failure.codes.slice(0, 8) }
        const result = encodeOutcome(refusal, this.#port.resultBytesMax)
        if ((await writeStep(this.#port, { ...this.#step('refused', result), effect })) === 'stored') {
          throw new EffectRefused(this.#name, refusal)
        }
        return this.#answered(await this.#readAgain())
      }
      const waitMs = Math.max(failure.retryAfterMs ?? 0, backoffMs(this.#tries, RETRY))
      if (this.#tries >= ATTEMPTS_MAX || waitMs > this.#patienceMs) {
        throw new Suspended(this.#name, 'processing', waitMs, reasonOf(answer), { cause: answer.error })
      }
      await this.#wait(waitMs)
    }
  }

  /**
   * The result as it is stored. A result that cannot be kept leaves the intent as it is: the effect has happened, and
   * the mended code finds it again by its key or by asking.
   */
  #encode(value: Result): string | null {
    const kept: unknown = this.#settings.keep(value)
    let plain: unknown
    try {
      plain = kept === undefined ? undefined : JSON.parse(JSON.stringify(kept) ?? 'null')
    } catch (cause) {
      const what = `the result of effect "${this.#name}" cannot be kept as JSON; say what to keep (keep)`
      throw new OnceError('OUTCOME_NOT_REPRESENTABLE', what, { cause })
    }
    return encodeOutcome(plain, this.#port.resultBytesMax)
  }

  #step(state: 'intended' | 'done' | 'refused', result: string | null) {
    return {
      name: this.#name,
      position: this.#position,
      type: 'effect',
      state,
      result,
      resultVersion: OUTCOME_VERSION,
    } as const
  }

  #answered(step: StepRecord): unknown {
    return storedAnswer(step, ({ result }) => parsed(result))
  }

  async #read(): Promise<StepRecord | undefined> {
    return await readStep(this.#port, this.#name)
  }

  async #readAgain(): Promise<StepRecord> {
    const step = await this.#read()
    if (step === undefined) throw new OnceError('STORE_UNAVAILABLE', `step "${this.#name}" is gone`)
    return step
  }
}

function parsed(result: string | null): unknown {
  return result === null ? undefined : (JSON.parse(result) as unknown)
}

function reasonOf({ failure }: Extract<Answer, { readonly kind: 'failed' }>): string {
  const status = failure.status === undefined ? '' : ` ${failure.status}`
  return `${failure.kind}${status}${failure.codes.length === 0 ? '' : ` ${failure.codes.slice(0, 3).join(' ')}`}`
}
