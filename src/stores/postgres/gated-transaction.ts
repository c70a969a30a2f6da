/**
 * Gated transaction: BEGIN, a deciding statement (the gate) and the work's first statement leave in one trip; the
 * work's last act (our own rows) and COMMIT in another.
 *
 * The gate raises when the work must not run. That aborts the transaction on the server, so whatever was sent behind
 * it fails with 25P02 and nothing of the work runs in the database. The handle given to the work is dead from then
 * on, and after the end.
 *
 * Our own statements of a trip leave as one batch (./batch.ts); a client that takes none gets them as one simple-query
 * string. Either way an error stops what is behind it, so COMMIT is never reached after a failed statement of ours.
 *
 * The work's first statement travels under one Sync with BEGIN and the gate (./led-query.ts). Where it cannot (a text
 * without values, a cursor, another driver), a pipelining client sends it right behind the gate, in the same
 * packet; another one waits for the gate first.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import { type BatchEnd, type BatchPort, batchPort, sendBatch } from './batch.ts'
import { classify } from './classify.ts'
import type { Connections } from './connections.ts'
import { GateAnswer } from './gate-answer.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { inlined } from './inline.ts'
import { isSubmittable, sendLed } from './led-query.ts'
import { owned } from './own-types.ts'

/** How a transaction opens. */
export interface Opening {
  /** `begin`, with an isolation level when one is asked for. */
  readonly begin: string
  /** Decides; its error means that the work must not run. */
  readonly gate: PgStatement
}

/**
 * How a commit ended.
 * - `committed`: tag COMMIT seen and every statement before it answered.
 * - `rolledBack`: certainly nothing of it is there; `error` says why (absent: the transaction had failed before).
 * - `unknown`: no answer, or the session ended while COMMIT was under way.
 */
export type CommitResult =
  | { readonly kind: 'committed'; readonly results: readonly PgResult[] }
  | { readonly kind: 'rolledBack'; readonly error: unknown }
  | { readonly kind: 'unknown'; readonly error: unknown }

export interface GatedSettings {
  /** Named (prepared) statements; false behind a pooler in transaction mode that does not know them. */
  readonly prepare: boolean
  /** Longest wait for the answer to our last trip, milliseconds. */
  readonly answerTimeoutMs: number
}

const COMMIT: PgStatement = { name: 'eo_commit', text: 'commit' }
const ROLLBACK: PgStatement = { text: 'rollback' }

const beginNames = new Map<string, string>()

/** BEGIN and COMMIT are prepared as well: parsing them costs as much as running them. */
function beginName(begin: string): string {
  let name = beginNames.get(begin)
  if (name === undefined) {
    name = `eo_${begin.replace(/\W+/g, '_')}`
    beginNames.set(begin, name)
  }
  return name
}

type Phase = 'unsent' | 'open' | 'ended'

export class GatedTransaction<C extends PgClient> {
  /** The user's handle: the client itself, with `query` opening lazily and with what is ours refused. */
  readonly tx: C
  readonly #client: C
  readonly #connections: Connections<C>
  readonly #opening: Opening
  readonly #settings: GatedSettings
  readonly #port: BatchPort | null
  readonly #pipelined: boolean
  #phase: Phase = 'unsent'
  /** The connection ended otherwise than by giving it back in order. */
  #lost = false
  /** Whether BEGIN and the gate were sent, and whether the work's first statement shares their Sync. */
  #sent = false
  #led = false
  readonly #answerOfGate: GateAnswer = new GateAnswer()
  /** Made when somebody waits for the gate's answer. */
  #gate: Promise<PgResult> | undefined
  #conflict: unknown
  /** Made once for a transaction, not for each statement. */
  readonly #noteResult = () => {
    this.#conflict = undefined
  }
  readonly #noteError = (error: unknown) => {
    if (classify(error) === 'retry') this.#conflict = error
  }

  constructor(client: C, connections: Connections<C>, opening: Opening, settings: GatedSettings) {
    this.#client = client
    this.#connections = connections
    this.#opening = opening
    this.#settings = settings
    this.#port = batchPort(client)
    this.#pipelined = this.#port !== null && 'pipeline' in client && client.pipeline === true
    this.tx = this.#handle()
  }

  /**
   * Answer of the gate; undefined while nothing was sent. Never an unhandled rejection. From when it is asked for it has
   * to come in time, or the connection is cut.
   */
  get gate(): Promise<PgResult> | undefined {
    if (this.#sent && this.#gate === undefined) {
      const answer = this.#answerOfGate.wait()
      this.#gate = this.#answerOfGate.undecided ? this.#inTime(answer) : answer
      this.#gate.catch(() => {})
    }
    return this.#gate
  }

  /** Answer of the gate once it is there and lets the work run. */
  get passed(): PgResult | undefined {
    return this.#answerOfGate.passed
  }

  /**
   * The deadlock or serialization failure that has ended the transaction, whatever the work made of it; undefined when
   * there was none, or a savepoint saved the rest.
   */
  get conflict(): unknown {
    return this.#conflict
  }

  /** Sends BEGIN and the gate unless that was done. */
  begin(): Promise<PgResult> {
    // Cut off before anything was sent: the client belongs to somebody else by now.
    if (!this.#sent && this.#phase === 'ended') return Promise.reject(endedBefore())
    this.#begin(this.#pipelined)
    return this.gate as Promise<PgResult>
  }

  /** @param behind - Something may be sent behind it before it is answered. */
  #begin(behind: boolean): void {
    if (this.#sent) return
    this.#sent = true
    this.#phase = 'open'
    this.#sendOpening(behind)
  }

  /** One of our own statements inside the transaction. */
  query(statement: PgStatement): Promise<PgResult> {
    // The client may be somebody else's by now.
    if (this.#phase === 'ended') return Promise.reject(endedBefore())
    const send = () => this.#inTime(this.#client.query(owned(this.#prepared(statement))))
    if (this.#led) return this.#answerOfGate.wait().then(send)
    const gate = this.begin()
    return this.#pipelined ? send() : gate.then(send)
  }

  /**
   * Sends `statements` and COMMIT in one trip (with the opening in front when nothing was sent before), then gives
   * the connection back, or destroys it when its state is not certain. Never throws.
   */
  async commit(statements: readonly PgStatement[]): Promise<CommitResult> {
    const opening = this.#sent ? [] : this.#openingStatements()
    this.#phase = 'ended'
    // A driver without pipelining must not queue behind an undecided gate.
    if (!this.#pipelined) await this.#refusal()
    const answer = await this.#answer([...opening, ...statements, COMMIT])
    if (answer.kind === 'late') {
      const error = new Error(`no answer to COMMIT within ${this.#settings.answerTimeoutMs} ms`)
      this.#release(error)
      return { kind: 'unknown', error }
    }
    // What was sent behind a refusing gate fails too, and its answers may be read in the same turn.
    if (answer.kind === 'failed') return await this.#commitFailed((await this.#refusal()) ?? answer.error)
    this.#release()
    return answer.value.at(-1)?.command === 'COMMIT'
      ? { kind: 'committed', results: answer.value.slice(opening.length, -1) }
      : { kind: 'rolledBack', error: undefined }
  }

  /** Ends without a trace. Never throws. `lost`: the connection did not answer, or had been cut. */
  async rollback(): Promise<'rolledBack' | 'lost'> {
    if (this.#phase === 'open') {
      this.#phase = 'ended'
      // A refused gate is answered too; only an answer that never comes has to be waited out.
      if (!this.#pipelined) await answered(this.begin(), this.#settings.answerTimeoutMs)
      await this.#rollBack()
    } else if (this.#phase === 'unsent') {
      this.#phase = 'ended'
      this.#release()
    }
    return this.#lost ? 'lost' : 'rolledBack'
  }

  /** Whether the work has left the transaction as it was opened. A failed one is: it can only be rolled back. */
  async untouched(): Promise<boolean> {
    if (this.gate === undefined) return true
    const opened = this.#answerOfGate.passed ?? (await this.gate)
    const text = 'select pg_catalog.pg_current_xact_id_if_assigned()::text as xid'
    const answer = await answered(this.query({ text }), this.#settings.answerTimeoutMs)
    return answer.kind !== 'done' || answer.value.rows[0]?.['xid'] === opened.rows[0]?.['xid']
  }

  /** Cuts the connection; the server rolls back. */
  abort(reason: Error): void {
    if (this.#phase === 'ended') return
    this.#phase = 'ended'
    this.#release(reason)
  }

  /** One of our own answers, in time; a connection that does not answer is cut. */
  async #inTime<T>(answer: Promise<T>): Promise<T> {
    const ended = await answered(answer, this.#settings.answerTimeoutMs)
    if (ended.kind === 'done') return ended.value
    if (ended.kind === 'failed') throw ended.error
    const error = new Error(`no answer within ${this.#settings.answerTimeoutMs} ms`)
    this.abort(error)
    throw error
  }

  #release(broken?: Error): void {
    this.#lost = broken !== undefined
    this.#connections.release(this.#client, broken)
  }

  async #rollBack(): Promise<void> {
    const answer = await this.#answer([ROLLBACK])
    this.#release(answer.kind === 'done' ? undefined : new Error('ROLLBACK was not answered'))
  }

  #commitFailed(error: unknown): Promise<CommitResult> | CommitResult {
    if (classify(error) === 'connection') {
      this.#release(error instanceof Error ? error : new Error('connection lost'))
      return { kind: 'unknown', error }
    }
    return this.#afterRefusedCommit(error)
  }

  /**
   * An ERROR answer stopped the trip before COMMIT, or is COMMIT's own. The session must live on, or it was no ERROR:
   * severities are told in the language of the server.
   */
  async #afterRefusedCommit(error: unknown): Promise<CommitResult> {
    await this.#rollBack()
    return { kind: this.#lost ? 'unknown' : 'rolledBack', error }
  }

  #openingStatements(): readonly PgStatement[] {
    const { begin, gate } = this.#opening
    return [{ name: beginName(begin), text: begin }, gate]
  }

  /**
   * With a statement of the work on its way behind the gate BEGIN must not take the gate with it when it fails, because
   * the gate is what then ends the session; so there it is a message of its own.
   */
  #sendOpening(behind: boolean): void {
    if (!behind) {
      this.#send(this.#openingStatements(), (error, results) => this.#answerOfGate.decide(error, results))
      return
    }
    let begun: Error | null = null
    this.#send([{ text: this.#opening.begin }], (error) => {
      begun = error
    })
    this.#send([this.#opening.gate], (error, results) => this.#answerOfGate.decide(begun ?? error, results))
  }

  /** Why the gate refused; undefined when it did not, or was not asked. */
  async #refusal(): Promise<unknown> {
    if (this.#answerOfGate.passed !== undefined) return undefined
    return await this.gate?.then(
      () => undefined,
      (error: unknown) => error,
    )
  }

  /** Sends statements of ours and waits for the answer, as a value, no longer than is allowed. */
  #answer(statements: readonly PgStatement[]): Promise<Answer<readonly PgResult[]>> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve({ kind: 'late' }), this.#settings.answerTimeoutMs)
      this.#send(statements, (error, results) => {
        clearTimeout(timer)
        resolve(error === null ? { kind: 'done', value: results } : { kind: 'failed', error })
      })
    })
  }

  /** Sends statements of ours in one message. `end` is told once; error null = all were answered. Never throws. */
  #send(statements: readonly PgStatement[], end: BatchEnd): void {
    try {
      if (this.#port !== null) {
        sendBatch(this.#client, this.#port, statements, this.#settings.prepare, end)
        return
      }
      // Several statements in one string: the driver answers with a list of results.
      this.#client.query({ text: statements.map(inlined).join('; ') }).then(
        (results) => end(null, asList(results)),
        (error: unknown) => end(error as Error, []),
      )
    } catch (error) {
      end(error as Error, [])
    }
  }

  /**
   * The work's first statement. Led by BEGIN and the gate its answer is not bounded here: it comes with theirs, and may
   * take as long as the work may.
   */
  #first(args: readonly unknown[], send: () => unknown): unknown {
    if (this.#port !== null) {
      const { prepare } = this.#settings
      const end: BatchEnd = (error, results) => this.#answerOfGate.decide(error, results)
      // Before it is sent: what it is answered at once must find it.
      this.#sent = true
      this.#phase = 'open'
      const lead = { port: this.#port, statements: this.#openingStatements(), prepare, end }
      try {
        const led = sendLed(this.#client, lead, args, () => this.#unled(args, send))
        this.#led = led !== undefined
        if (led !== undefined) return led.answer
        this.#unsent()
      } catch (error) {
        this.#unsent()
        throw error
      }
    }
    return this.#firstAlone(args, send)
  }

  /** The first statement was handed on without its lead, and refused: BEGIN and the gate are still to be sent. */
  #unled(args: readonly unknown[], send: () => unknown): unknown {
    this.#led = false
    if (this.#phase === 'ended') return refusedQuery(args)
    this.#unsent()
    return this.#firstAlone(args, send)
  }

  #unsent(): void {
    this.#sent = false
    this.#phase = 'unsent'
  }

  #firstAlone(args: readonly unknown[], send: () => unknown): unknown {
    // A query object (a cursor) has to be returned at once.
    if (this.#pipelined || isSubmittable(args[0])) return this.#behindGate(send)
    return this.#afterGate(this.begin(), args, send)
  }

  /**
   * A further statement before the gate has answered. Behind a led statement nothing is sent yet: were BEGIN to fail, it
   * would commit by itself.
   */
  #beforeDecision(args: readonly unknown[], send: () => unknown): unknown {
    if (!this.#led)
      return this.#pipelined || isSubmittable(args[0]) ? send() : this.#afterGate(this.begin(), args, send)
    if (!isSubmittable(args[0])) return this.#afterGate(this.#answerOfGate.wait(), args, send)
    throw new OnceError('NOT_A_TRANSACTION', "await the work's first statement before a query object is sent")
  }

  /** A driver without pipelining must not queue behind BEGIN. */
  #afterGate(gate: Promise<PgResult>, args: readonly unknown[], send: () => unknown): Promise<unknown> {
    return gate.then(
      () => (this.#phase === 'ended' ? refusedQuery(args) : send()),
      (error: unknown) => refusedQuery(args, error),
    )
  }

  /** The gate and the work's first statement leave in one packet. */
  #behindGate(send: () => unknown): unknown {
    const stream = this.#port?.stream
    stream?.cork()
    try {
      this.#begin(true)
      return send()
    } finally {
      stream?.uncork()
    }
  }

  #prepared(statement: PgStatement): PgStatement {
    return this.#settings.prepare || statement.name === undefined
      ? statement
      : { text: statement.text, ...(statement.values === undefined ? {} : { values: statement.values }) }
  }

  /** The statement, told to us as well when it answers to a callback. */
  #noting(args: unknown[]): unknown[] {
    const callback: unknown = args.at(-1)
    if (typeof callback !== 'function') return args
    const noting = (error: unknown, ...rest: unknown[]) => {
      if (error === null || error === undefined) this.#noteResult()
      else this.#noteError(error)
      return Reflect.apply(callback, undefined, [error, ...rest]) as unknown
    }
    return [...args.slice(0, -1), noting]
  }

  #handle(): C {
    const run: unknown = Reflect.get(this.#client, 'query')
    if (typeof run !== 'function') throw new TypeError('the pool gave a client without a query method')
    const query = (...given: unknown[]): unknown => {
      const args = this.#noting(given)
      if (this.#phase === 'ended' || this.#answerOfGate.refusedBy !== undefined) return refusedQuery(args)
      const send = (): unknown => Reflect.apply(run, this.#client, args)
      const answer = !this.#sent
        ? this.#first(args, send)
        : this.#answerOfGate.passed === undefined
          ? this.#beforeDecision(args, send)
          : send()
      if (answer instanceof Promise) answer.then(this.#noteResult, this.#noteError)
      return answer
    }
    const refused = (): never => {
      throw new OnceError('NOT_A_TRANSACTION', 'the connection behind tx is ours to release')
    }
    return new Proxy(this.#client, {
      get(target, name) {
        if (name === 'query') return query
        if (name === 'release' || name === 'end' || name === 'connect') return refused
        const value: unknown = Reflect.get(target, name, target)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
  }
}

function endedBefore(): OnceError {
  return new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended')
}

/** Answers a statement on a dead handle in the style it was asked: callback or promise. */
function refusedQuery(args: readonly unknown[], cause?: unknown): Promise<never> | undefined {
  const error = new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended', { cause })
  const callback = args.at(-1)
  if (typeof callback !== 'function') return Promise.reject(error)
  queueMicrotask(() => callback(error))
  return undefined
}

/** A simple-query string of several statements is answered with a list. */
function asList(result: PgResult | readonly PgResult[]): readonly PgResult[] {
  return Array.isArray(result) ? result : [result as PgResult]
}

type Answer<T> =
  | { readonly kind: 'done'; readonly value: T }
  | { readonly kind: 'failed'; readonly error: unknown }
  | { readonly kind: 'late' }

/** Waits for an answer at most `ms`, as a value. */
function answered<T>(promise: Promise<T>, ms: number): Promise<Answer<T>> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve({ kind: 'late' }), ms)
    promise.then(
      (value) => {
        clearTimeout(timer)
        resolve({ kind: 'done', value })
      },
      (error: unknown) => {
        clearTimeout(timer)
        resolve({ kind: 'failed', error })
      },
    )
  })
}
