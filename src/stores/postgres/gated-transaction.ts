/**
 * Gated transaction: BEGIN, a deciding statement (the gate) and the work's first statement leave in one trip; the
 * work's last act (our own rows) and COMMIT in another.
 *
 * The gate raises when the work must not run. That aborts the transaction on the server, so whatever was sent behind
 * it fails with 25P02 and nothing of the work runs in the database. The handle given to the work is dead from then
 * on, and after the end.
 *
 * A pipelining client gets the statements one behind the other; other clients get BEGIN and the gate as one
 * simple-query string, and our last statements with COMMIT as another (an error stops the string before COMMIT).
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import { classify } from './classify.ts'
import type { Connections } from './connections.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { inlined } from './inline.ts'

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

type Phase = 'unsent' | 'open' | 'ended'

export class GatedTransaction<C extends PgClient> {
  /** The user's handle: the client itself, with `query` opening lazily and with what is ours refused. */
  readonly tx: C
  readonly #client: C
  readonly #connections: Connections<C>
  readonly #opening: Opening
  readonly #settings: GatedSettings
  readonly #pipelined: boolean
  #phase: Phase = 'unsent'
  /** The connection ended otherwise than by giving it back in order. */
  #lost = false
  /** Set once BEGIN and the gate were sent. */
  #gate: Promise<PgResult> | undefined
  #decided: 'no' | 'passed' | 'failed' = 'no'

  constructor(client: C, connections: Connections<C>, opening: Opening, settings: GatedSettings) {
    this.#client = client
    this.#connections = connections
    this.#opening = opening
    this.#settings = settings
    this.#pipelined = 'pipeline' in client && client.pipeline === true
    this.tx = this.#handle()
  }

  /** Answer of the gate; undefined while nothing was sent. Never an unhandled rejection. */
  get gate(): Promise<PgResult> | undefined {
    return this.#gate
  }

  /** Sends BEGIN and the gate unless that was done. */
  begin(): Promise<PgResult> {
    if (this.#gate === undefined) {
      this.#phase = 'open'
      this.#gate = this.#inTime(this.#sendOpening())
      this.#gate.then(
        () => {
          this.#decided = 'passed'
        },
        () => {
          this.#decided = 'failed'
        },
      )
    }
    return this.#gate
  }

  /** One of our own statements inside the transaction. */
  query(statement: PgStatement): Promise<PgResult> {
    const gate = this.begin()
    const send = () => this.#client.query(this.#prepared(statement))
    return this.#inTime(this.#pipelined ? send() : gate.then(send))
  }

  /**
   * Sends `statements` and COMMIT in one trip (with the opening in front when nothing was sent before), then gives
   * the connection back, or destroys it when its state is not certain. Never throws.
   */
  async commit(statements: readonly PgStatement[]): Promise<CommitResult> {
    const gate = this.#pipelined ? this.begin() : this.#gate
    this.#phase = 'ended'
    const sent = this.#pipelined ? this.#sendPipelined(statements) : this.#sendAsString(statements, gate)
    const answer = await answered(Promise.all([gate, sent]), this.#settings.answerTimeoutMs)
    if (answer.kind === 'late') {
      const error = new Error(`no answer to COMMIT within ${this.#settings.answerTimeoutMs} ms`)
      this.#release(error)
      return { kind: 'unknown', error }
    }
    if (answer.kind === 'failed') {
      // What was sent behind a refusing gate fails too, and its answers may be read in the same turn.
      const refusal = await gate?.then(
        () => undefined,
        (error: unknown) => error,
      )
      return await this.#commitFailed(refusal ?? answer.error)
    }
    const results = answer.value[1]
    const tag = results.at(-1)?.command
    if (tag === 'COMMIT') {
      this.#release()
      return { kind: 'committed', results: results.slice(0, -1) }
    }
    this.#release()
    return { kind: 'rolledBack', error: undefined }
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
    if (this.#gate === undefined) return true
    const opened = await this.#gate
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
    const answer = await answered(this.#client.query({ text: 'rollback' }), this.#settings.answerTimeoutMs)
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
   * An ERROR answer: COMMIT behind it has ended the transaction when pipelined; a string stopped before it. The session
   * must live on, or it was no ERROR: severities are told in the language of the server.
   */
  async #afterRefusedCommit(error: unknown): Promise<CommitResult> {
    await this.#rollBack()
    return { kind: this.#lost ? 'unknown' : 'rolledBack', error }
  }

  #sendOpening(): Promise<PgResult> {
    const { begin, gate } = this.#opening
    if (!this.#pipelined) {
      // Several statements in one string: the driver answers with a list of results.
      return this.#client.query({ text: `${begin}; ${inlined(gate)}` }).then(lastResult)
    }
    const begun = this.#client.query({ text: begin })
    const decided = this.#client.query(this.#prepared(gate))
    decided.catch(() => {})
    return begun.then(() => decided)
  }

  async #sendPipelined(statements: readonly PgStatement[]): Promise<readonly PgResult[]> {
    const sent = statements.map((statement) => this.#client.query(this.#prepared(statement)))
    sent.push(this.#client.query({ text: 'commit' }))
    // The first failure is the one that counts, but COMMIT's own answer must be seen before the client is reused.
    const settled = await Promise.allSettled(sent)
    const failed = settled.filter((result) => result.status === 'rejected')
    const lost = failed.find((result) => classify(result.reason) === 'connection')
    if (lost !== undefined) throw lost.reason
    if (failed[0] !== undefined) throw failed[0].reason
    return settled.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  }

  async #sendAsString(
    statements: readonly PgStatement[],
    gate: Promise<PgResult> | undefined,
  ): Promise<readonly PgResult[]> {
    await gate
    const opening = gate === undefined ? [this.#opening.begin, inlined(this.#opening.gate)] : []
    const text = [...opening, ...statements.map(inlined), 'commit'].join('; ')
    const results = asList(await this.#client.query({ text }))
    return results.slice(opening.length)
  }

  #prepared(statement: PgStatement): PgStatement {
    return this.#settings.prepare || statement.name === undefined
      ? statement
      : { text: statement.text, ...(statement.values === undefined ? {} : { values: statement.values }) }
  }

  #handle(): C {
    const run: unknown = Reflect.get(this.#client, 'query')
    if (typeof run !== 'function') throw new TypeError('the pool gave a client without a query method')
    const query = (...args: unknown[]): unknown => {
      if (this.#phase === 'ended' || this.#decided === 'failed') return refusedQuery(args)
      const gate = this.begin()
      const send = (): unknown => Reflect.apply(run, this.#client, args)
      // A driver without pipelining must not queue behind BEGIN; a submittable (cursor) has to be returned at once.
      if (this.#pipelined || this.#decided === 'passed' || isSubmittable(args[0])) return send()
      return gate.then(send, (error: unknown) => refusedQuery(args, error))
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

/** Answers a statement on a dead handle in the style it was asked: callback or promise. */
function refusedQuery(args: readonly unknown[], cause?: unknown): Promise<never> | undefined {
  const error = new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended', { cause })
  const callback = args.at(-1)
  if (typeof callback !== 'function') return Promise.reject(error)
  queueMicrotask(() => callback(error))
  return undefined
}

function isSubmittable(statement: unknown): boolean {
  return typeof statement === 'object' && statement !== null && 'submit' in statement
}

function lastResult(result: PgResult): PgResult {
  return asList(result).at(-1) ?? result
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
