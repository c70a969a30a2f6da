/**
 * Guard: one guarded route, from a request to what is sent.
 *
 * Reading order of one POST with a key: this file (what happens in which order), ./key.ts (the header), ./outcome.ts
 * (what the handler's answer means), ./replay.ts (what a repeat gets).
 *
 * The handler starts only when the operation is claimed: a chain of middleware that has started cannot be taken back.
 * So the gate is asked before the handler runs, and where replays are about, the record is looked up before that,
 * grouped with others of its moment.
 *
 * @module
 */

import type { Fingerprint } from '../fingerprint/fingerprint.ts'
import { requestFingerprint } from '../fingerprint/request.ts'
import type { Op } from '../job/op.ts'
import { settleWanted } from '../job/run.ts'
import type { RunSettings } from '../job/settings.ts'
import type { Once } from '../once.ts'
import type { WorkContext } from '../operation/attempt.ts'
import { type Engine, engineOf, refuseNesting } from '../operation/engine.ts'
import type { Scope } from '../operation/identity.ts'
import { newAttempt } from '../operation/operation.ts'
import { settle } from '../operation/transaction.ts'
import { runUnrecorded } from '../operation/unrecorded.ts'
import { isOnceError, OnceError } from '../shared/errors.ts'
import { describe } from '../shared/options.ts'
import { type Attempt, type FoundRecord, isFinished } from '../store/operation.ts'
import { AtomicContext } from './atomic-context.ts'
import type { Answer, Exchange, HandlerContext, RequestBody } from './exchange.ts'
import { parseKey } from './key.ts'
import { keyTimeMs } from './key-time.ts'
import type { RouteOptions } from './options.ts'
import { endingOf, fateOf } from './outcome.ts'
import { type Policy, readPolicy } from './policy.ts'
import { jsonResponse, plainProblem, problemOf } from './problem.ts'
import { refOf } from './ref.ts'
import { replayOf } from './replay.ts'
import { type HeaderList, headerOf, type Produced, sharedHeaders, type WholeResponse } from './response.ts'
import { SetupError } from './setup-error.ts'

const NOT_CARRIED_OUT = 'The request was not carried out.'

/** Thrown by our own work to roll back without storing anything; never seen outside. */
const RELEASE = new Error('released')

/** Above this share of the key's lifetime the process clock is not trusted to say that a key is young enough. */
const SUSPECT_SHARE = 0.5

/** Requests that look first after a replay was met. */
const LOOK_FIRST = 256

export class Guard<Tx, Req> {
  readonly policy: Policy<Req>
  readonly #engine: Engine<Tx>
  readonly #where: string
  /** For how many more requests the record is looked up before anything else. */
  #lookFirst = 0

  /** @throws {TypeError} for options that are wrong, and for anything but what createOnce made. */
  constructor(where: string, once: Once<Tx>, options: RouteOptions<Req>) {
    this.#where = where
    this.#engine = engineOf(where, once)
    this.policy = readPolicy(where, options)
  }

  /** Whether requests with this method are guarded at all. */
  guards(method: string): boolean {
    return this.policy.methods.has(method)
  }

  /**
   * Handles one request. Rejects with what is not ours to answer: an error of the handler or of a hook.
   */
  async handle(exchange: Exchange<Tx, Req>): Promise<Answer> {
    try {
      return await this.#handle(exchange)
    } catch (error) {
      if (error instanceof SetupError) {
        this.policy.onError(error, exchange.request)
        return instead(plainProblem(this.policy.problems, 500, 'Internal Server Error', NOT_CARRIED_OUT))
      }
      if (this.#engine.store.operations.failureOf(error) === 'retry') return instead(this.problem(conflicted(error)))
      if (!isOnceError(error)) throw error
      if (error.status === null || error.status === 500) this.policy.onError(error, exchange.request)
      return instead(this.problem(error))
    }
  }

  /** The answer that stands for an error of ours. */
  problem(error: OnceError): WholeResponse {
    const status = error.code === 'IDEMPOTENCY_KEY_REUSED' ? this.policy.mismatchStatus : undefined
    return problemOf(error, this.policy.problems, { status })
  }

  /** The answer to a request whose body is above the limit; the rest of it is not read. */
  tooLarge(): WholeResponse {
    const { problems, bodyBytesMax } = this.policy
    const response = plainProblem(problems, 413, 'Content Too Large', `The body has more than ${bodyBytesMax} bytes.`)
    return { ...response, headers: [...response.headers, ['connection', 'close']] }
  }

  async #handle(exchange: Exchange<Tx, Req>): Promise<Answer> {
    const { policy } = this
    if (!this.guards(exchange.method)) return { kind: 'unguarded' }
    const { key, error } = parseKey(exchange.keyLines, policy.strictKeys)
    if (error === 'missing') {
      if (!policy.required) return await this.#unkeyed(exchange)
      throw new OnceError('IDEMPOTENCY_KEY_MISSING', 'the header Idempotency-Key is missing')
    }
    if (key === undefined) return instead(this.#invalidKey(error))
    const scope = await this.#scopeOf(exchange)
    const body = await exchange.body(policy.bodyBytesMax)
    if (body === 'gone') return { kind: 'gone' }
    if (body === 'too-large') return instead(this.tooLarge())
    return await this.#keyed(exchange, this.#attemptOf(exchange, scope, key, body), key)
  }

  async #keyed(exchange: Exchange<Tx, Req>, attempt: Attempt, key: string): Promise<Answer> {
    // First of all: inside its own work a second guard would find the operation busy, and that would be stored.
    refuseNesting()
    if (this.policy.run !== undefined) return await this.#leased(exchange, attempt, key, this.policy.run)
    const record = await this.#lookedUp(attempt)
    if (record !== undefined && isFinished(record))
      return instead(await replayOf(this.#engine, this.policy, exchange, attempt, record))
    try {
      this.#refuseKnownBusy(attempt)
      const found = await settle(this.#engine, attempt, this.#workOf(exchange, attempt, key), this.policy.transaction)
      if (found.replayed) this.#lookFirst = LOOK_FIRST
      return found.replayed
        ? instead(await replayOf(this.#engine, this.policy, exchange, attempt, found.record))
        : { kind: 'handler' }
    } catch (error) {
      if (error === RELEASE) return { kind: 'handler' }
      if (this.policy.whenInProgress === 'accept' && isOnceError(error, 'OPERATION_IN_PROGRESS')) {
        return instead(this.#accepted(attempt, error))
      }
      throw error
    }
  }

  /** A route of mode `run`: the handler works in steps, and a repeat goes on behind the last finished one. */
  async #leased(exchange: Exchange<Tx, Req>, attempt: Attempt, key: string, settings: RunSettings): Promise<Answer> {
    let produced: Produced | undefined
    let repeated = false
    const handler = async (op: Op<Tx>) => {
      repeated = op.fence > 1n
      produced = await exchange.run(leasedContext(op, key, refOf(attempt.id)))
      const ending = endingOf(produced, attempt.id, this.policy)
      if (ending === undefined) throw new NotFinal()
      return ending
    }
    try {
      const found = await settleWanted(this.#engine, { attempt, key, kind: null, payload: null }, handler, settings)
      return found.replayed
        ? instead(await replayOf(this.#engine, this.policy, exchange, attempt, found.record))
        : { kind: 'handler' }
    } catch (error) {
      return this.#notFinished(attempt, error, produced, repeated)
    }
  }

  /** The operation is open: the handler's own 5xx goes out, or what keeps the operation open. */
  #notFinished(attempt: Attempt, error: unknown, produced: Produced | undefined, repeated: boolean): Answer {
    const own = produced?.kind === 'whole' ? produced.response : undefined
    if (error instanceof NotFinal) return own === undefined || own.status < 500 ? { kind: 'handler' } : retryLater(own)
    if (!isOnceError(error)) throw error
    if (this.policy.whenInProgress === 'accept' && error.code === 'OPERATION_IN_PROGRESS') {
      return instead(this.#accepted(attempt, error))
    }
    // An outcome that nobody knows is not worth a retry: there the handler's own answer goes out as it is, once. A repeat
    // is told what is known, also where the handler had to be entered to ask the provider again.
    const first = !repeated || error.code !== 'OUTCOME_UNKNOWN'
    if (first && own !== undefined && own.status >= 500) return { kind: 'handler' }
    if (error.code !== 'OUTCOME_UNKNOWN' && error.code !== 'OPERATION_PARKED') throw error
    const members = { operation_ref: refOf(attempt.id) }
    return instead(problemOf(error, this.policy.problems, { members }))
  }

  /**
   * The record, where looking first is worth it: replays come in groups, after a time-out of many callers. While there
   * are none, the gate alone decides, and a first request is spared the look-up.
   */
  async #lookedUp({ id }: Attempt): Promise<FoundRecord | undefined> {
    if (this.#lookFirst <= 0 && this.#engine.inFlight.get(id) === undefined) return undefined
    const record = await this.#engine.store.operations.lookup(id)
    this.#lookFirst = record === undefined ? this.#lookFirst - 1 : LOOK_FIRST
    return record
  }

  /** An attempt of this process that works on the same request: no connection is needed to know that it is busy. */
  #refuseKnownBusy({ id, fingerprint }: Attempt): void {
    if (this.policy.whenInProgress === 'wait') return
    const running = this.#engine.inFlight.get(id)
    if (running !== undefined && Buffer.compare(running.payload, fingerprint.value) === 0) {
      throw new OnceError('OPERATION_IN_PROGRESS', 'another attempt of this operation is running')
    }
  }

  #workOf(exchange: Exchange<Tx, Req>, { id }: Attempt, key: string) {
    let started = false
    return async (context: WorkContext<Tx>) => {
      if (started) throw new OnceError('STORE_UNAVAILABLE', 'the handler has run and cannot be run again')
      await this.#refuseOldKey(key, () => context.now())
      started = true
      const produced = await exchange.run(new AtomicContext(context, key, refOf(id)))
      const ending = endingOf(produced, id, this.policy)
      if (ending === undefined) throw RELEASE
      return ending
    }
  }

  /** No record was found. For a key from before the window that means nothing. The store's clock decides (I14). */
  async #refuseOldKey(key: string, now: () => Promise<Date>): Promise<void> {
    const madeAt = this.policy.checkKeyTime ? keyTimeMs(key) : undefined
    const windowMs = this.policy.transaction.retentionMs
    if (madeAt === undefined || Date.now() - madeAt < windowMs * SUSPECT_SHARE) return
    if ((await now()).getTime() - madeAt > windowMs) {
      throw new OnceError('KEY_EXPIRED', 'the key is older than the window in which repeats are recognised')
    }
  }

  /** The key may be left out, and was: the handler gets a transaction all the same, and no record is left. */
  async #unkeyed(exchange: Exchange<Tx, Req>): Promise<Answer> {
    const work = async (context: WorkContext<Tx>) => {
      const produced = await exchange.run(new AtomicContext(context, undefined, undefined))
      const { status } = produced.kind === 'whole' ? produced.response : produced
      return fateOf(status, this.policy) === 'commit'
    }
    await runUnrecorded(this.#engine, work, this.policy.transaction)
    return { kind: 'handler' }
  }

  async #scopeOf(exchange: Exchange<Tx, Req>): Promise<Scope> {
    const tenant = await this.policy.scopeOf(exchange.request)
    if (tenant === undefined || tenant === null || tenant === '' || tenant.length === 0) {
      throw new SetupError(`${this.#where}: scope gave no tenant for this request; refused`)
    }
    const parts = typeof tenant === 'string' ? [tenant] : tenant
    if (!Array.isArray(parts)) {
      throw new SetupError(`${this.#where}: scope takes a string or a list of strings, got ${describe(parts)}`)
    }
    return this.policy.uniqueWithin === 'tenant' ? parts : [...parts, this.#operationOf(exchange)]
  }

  #operationOf({ method, template }: Exchange<Tx, Req>): string {
    if (this.policy.operation !== undefined) return this.policy.operation
    if (template !== undefined) return `${method} ${template}`
    throw new SetupError(`${this.#where} cannot know the route's template here; give the option operation`)
  }

  #attemptOf(exchange: Exchange<Tx, Req>, scope: Scope, key: string, body: RequestBody): Attempt {
    const chosen = this.#chosenFields(exchange.request, body)
    try {
      return newAttempt({ scope, key, fingerprint: this.#fingerprintOf(exchange, body, chosen) })
    } catch (error) {
      if (!(error instanceof TypeError)) throw error
      // A scope that is malformed, or a body of which a parser has kept less than was sent.
      const hint = body.bytes === undefined ? '; put idempotency in front of the body parser, or keep rawBody' : ''
      throw new SetupError(`${this.#where}: ${error.message}${hint}`)
    }
  }

  /** What the route takes for the body. Without `fields` every body would be the same as every other. */
  #chosenFields(request: Req, body: RequestBody): { readonly fields: unknown } | undefined {
    const chosen: unknown = this.policy.fingerprint?.(request, { bytes: body.bytes, json: () => jsonOf(body) })
    if (chosen === undefined) return undefined
    if (typeof chosen !== 'object' || chosen === null || !('fields' in chosen) || chosen.fields === undefined) {
      throw new SetupError(`${this.#where}: fingerprint returns { fields }, not a promise, got ${describe(chosen)}`)
    }
    return { fields: chosen.fields }
  }

  #fingerprintOf(
    exchange: Exchange<Tx, Req>,
    body: RequestBody,
    chosen: { readonly fields: unknown } | undefined,
  ): Fingerprint {
    const { method, target, headers } = exchange
    const options = { headers: this.policy.fingerprintHeaders }
    if (chosen !== undefined) return requestFingerprint({ method, target, headers, fields: chosen.fields }, options)
    if (body.bytes === undefined) return requestFingerprint({ method, target, headers, parsed: body.parsed }, options)
    const { bytes, contentDecoded } = body
    return requestFingerprint({ method, target, headers, body: bytes, contentDecoded }, options)
  }

  #invalidKey(reason: string): WholeResponse {
    const error = new OnceError('IDEMPOTENCY_KEY_INVALID', 'the header Idempotency-Key is refused')
    return problemOf(error, this.policy.problems, { members: { reason: reason.replaceAll('_', '-') } })
  }

  #accepted({ id }: Attempt, error: OnceError): WholeResponse {
    const ref = refOf(id)
    return jsonResponse(202, { operation_ref: ref, state: 'in-progress' }, [
      ['location', `${this.policy.statusPath}/${ref}`],
      ['retry-after', String(Math.max(1, Math.ceil((error.retryAfterMs ?? 0) / 1000)))],
    ])
  }
}

function instead(response: WholeResponse): Answer {
  return { kind: 'instead', response }
}

/** The store has rolled the work back, whatever the handler has answered. */
function conflicted(cause: unknown): OnceError {
  return new OnceError('STORE_UNAVAILABLE', 'rolled back by a deadlock or a serialization failure', { cause })
}

/** The handler's answer says that it may be tried again; never seen outside. */
class NotFinal extends Error {
  constructor() {
    super('the answer of the handler is not final')
    this.name = 'NotFinal'
  }
}

/** The handler's own failure: the same request goes on behind its last finished step. */
function retryLater(own: WholeResponse): Answer {
  if (headerOf(own.headers, 'retry-after') !== undefined) return { kind: 'handler' }
  const shared = sharedHeaders(own.headers)
  const headers: HeaderList = [...own.headers.filter((header) => !shared.includes(header)), ['retry-after', '1']]
  return instead({ ...own, headers })
}

function leasedContext<Tx>(op: Op<Tx>, key: string, operationRef: string): HandlerContext<Tx> {
  const noTransaction = (): never => {
    throw new TypeError("this route has mode: 'run': write through op.transaction")
  }
  return {
    op,
    key,
    operationRef,
    signal: op.signal,
    now: noTransaction,
    get tx(): Tx {
      return noTransaction()
    },
    get outbox(): HandlerContext<Tx>['outbox'] {
      return noTransaction()
    },
  }
}

function jsonOf(body: RequestBody): unknown {
  if (body.bytes === undefined) return body.parsed
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body.bytes))
  } catch {
    return undefined
  }
}
