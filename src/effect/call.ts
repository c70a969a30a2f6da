/**
 * Call: runs the user's `call` and `reconcile` with a bound, and says what their ends mean.
 *
 * @module
 */

import { isOnceError, OnceError } from '../shared/errors.ts'
import { bounded } from '../shared/waiting.ts'
import { type CallContext, type EffectSettings, isReconciled } from './options.ts'
import { type Classified, classifyFailure } from './provider/index.ts'

export type Answer =
  | { readonly kind: 'result'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly failure: Classified; readonly error: unknown }

/** One attempt. Never rejects. A call that does not end in time has an unknown fate, also when it ends later. */
export async function attemptCall<Request, Result>(
  settings: EffectSettings<Request, Result>,
  context: CallContext,
): Promise<Answer> {
  try {
    const value = await inTime(settings, context, (inner) => settings.call(frozen(settings.request), inner))
    return { kind: 'result', value }
  } catch (error) {
    return { kind: 'failed', failure: classified(settings, error), error }
  }
}

export type Reconciliation =
  | { readonly kind: 'found'; readonly value: unknown }
  | { readonly kind: 'notApplied' }
  | { readonly kind: 'stillUnknown'; readonly reason: string }

/** One question. Never rejects: a question without an answer leaves it unknown. */
export async function askReconcile<Request, Result>(
  settings: EffectSettings<Request, Result>,
  context: CallContext,
): Promise<Reconciliation> {
  const { reconcile } = settings
  if (reconcile === undefined) return { kind: 'stillUnknown', reason: 'nobody can be asked' }
  try {
    const answer: unknown = await inTime(settings, context, (inner) => reconcile(frozen(settings.request), inner))
    if (!isReconciled(answer)) {
      return { kind: 'stillUnknown', reason: 'reconcile returned neither found, notApplied nor stillUnknown' }
    }
    if (answer.kind === 'found') return { kind: 'found', value: answer.value }
    return answer.kind === 'notApplied' ? { kind: 'notApplied' } : { kind: 'stillUnknown', reason: 'not known yet' }
  } catch (error) {
    const name = error instanceof Error ? error.name : typeof error
    return { kind: 'stillUnknown', reason: `reconcile failed (${name.slice(0, 64)})` }
  }
}

function classified<Request, Result>(settings: EffectSettings<Request, Result>, error: unknown): Classified {
  const byProfile = classifyFailure(settings.profile, error)
  let kind: Classified['kind'] | undefined
  try {
    kind = settings.classify?.(error)
  } catch {
    // A classifier that fails has not said anything.
  }
  return kind === undefined ? byProfile : { ...byProfile, kind, decides: 'attempt' }
}

/** The frozen request, a new copy for each call: what one attempt does to it, the next does not see. */
function frozen<Request>(request: string): Request {
  return JSON.parse(request) as Request
}

async function inTime<T>(
  { timeoutMs }: { readonly timeoutMs: number },
  context: CallContext,
  run: (context: CallContext) => T | Promise<T>,
): Promise<T> {
  const controller = new AbortController()
  const abort = () => controller.abort(context.signal.reason)
  if (context.signal.aborted) abort()
  context.signal.addEventListener('abort', abort, { once: true })
  try {
    const running = (async () => await run({ ...context, signal: controller.signal }))()
    const ended = await Promise.race([bounded(running, timeoutMs), aborted(controller.signal)])
    if (ended.kind === 'done') return ended.value
    const late = new OnceError('TOO_BUSY', `no answer within ${timeoutMs} ms (timeoutMs)`)
    controller.abort(late)
    throw late
  } finally {
    context.signal.removeEventListener('abort', abort)
  }
}

/** Rejects when the signal aborts: a call that does not listen must not hold the handler. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const fail = () => {
      const reason: unknown = signal.reason
      reject(isOnceError(reason) ? reason : new OnceError('TOO_BUSY', 'the call was given up', { cause: reason }))
    }
    if (signal.aborted) fail()
    else signal.addEventListener('abort', fail, { once: true })
  })
}
