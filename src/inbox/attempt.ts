/**
 * Attempt: one transaction around one message or one batch, from the marks to a decided COMMIT.
 *
 * Every end is a named result. Whose failure it was is told apart here: a handler that throws has used up an attempt,
 * a store that does not answer has not. (I9, B47, B67)
 *
 * @module
 */

import { asWork } from '../operation/engine.ts'
import { OutboxBuffer } from '../outbox/buffer.ts'
import { type ErrorCode, OnceError } from '../shared/errors.ts'
import type { InboxFinish, InboxOpenOptions, InboxVerdict, OpenInbox } from '../store/inbox.ts'
import type { Item } from './item.ts'
import type { BatchContext, ConsumerHost } from './options.ts'

/**
 * - `committed`: marks, work and outputs are durable for the items whose verdict is `new`.
 * - `refused`: none was `new`; nothing ran in the database.
 * - `failed`: the handler threw, or took too long; rolled back.
 * - `retry`: deadlock or serialization failure; rolled back.
 * - `unresolved`: COMMIT may have taken place; the marks decide.
 * - `fenced`: the claim was taken over; rolled back.
 * - `trouble`: the store could not be asked; nothing is known to have happened.
 * - `stopped`: cut off by `stop`.
 */
export type AttemptResult =
  | {
      readonly kind: 'committed'
      readonly verdicts: readonly InboxVerdict[]
      readonly outputs: number
      readonly stale: boolean
    }
  | { readonly kind: 'refused'; readonly verdicts: readonly InboxVerdict[] }
  | { readonly kind: 'failed'; readonly error: unknown; readonly verdicts: readonly InboxVerdict[] | undefined }
  | { readonly kind: 'retry'; readonly error: unknown }
  | { readonly kind: 'trouble'; readonly error: unknown }
  | { readonly kind: 'unresolved' | 'fenced' | 'stopped' }

export interface AttemptSettings {
  readonly consumer: string
  readonly open: Omit<InboxOpenOptions, 'marksFirst'>
  readonly handlerTimeoutMs: number
  readonly stopKeyOnWaiting: boolean
}

/** The user's code, given the messages that are new. */
export type Work<Tx> = (context: Omit<BatchContext<Tx>, 'messages'>, fresh: readonly Item[]) => unknown

/** Runs `work` once for `items`. Never throws. */
export async function attempt<Tx>(
  host: ConsumerHost<Tx>,
  items: readonly Item[],
  work: Work<Tx>,
  settings: AttemptSettings,
  stopping: AbortSignal,
): Promise<AttemptResult> {
  const marksFirst = items.length > 1 || items[0]?.marksFirst === true
  const runs = items.map((item) => ({
    mark: item.mark,
    claim: item.claim,
    stopKey: settings.stopKeyOnWaiting ? item.key : undefined,
    override: item.override,
  }))
  let opened: OpenInbox<Tx>
  try {
    opened = await host.store.open(runs, { ...settings.open, marksFirst })
  } catch (error) {
    return { kind: 'trouble', error }
  }
  return await new Attempt(host, opened, items, work, settings, stopping).run(marksFirst)
}

class Attempt<Tx> {
  readonly #host: ConsumerHost<Tx>
  readonly #opened: OpenInbox<Tx>
  readonly #items: readonly Item[]
  readonly #work: Work<Tx>
  readonly #settings: AttemptSettings
  readonly #stopping: AbortSignal
  readonly #outbox: OutboxBuffer
  readonly #cut = new AbortController()
  #stale = false
  /** COMMIT is on its way: its answer is bounded by the store, and cutting would hide it. */
  #finishing = false

  constructor(
    host: ConsumerHost<Tx>,
    opened: OpenInbox<Tx>,
    items: readonly Item[],
    work: Work<Tx>,
    settings: AttemptSettings,
    stopping: AbortSignal,
  ) {
    this.#host = host
    this.#opened = opened
    this.#items = items
    this.#work = work
    this.#settings = settings
    this.#stopping = stopping
    this.#outbox = new OutboxBuffer(host.outbox)
  }

  async run(marksFirst: boolean): Promise<AttemptResult> {
    const { handlerTimeoutMs } = this.#settings
    const cut = (why: string) => {
      if (this.#finishing) return
      const error = new OnceError('TOO_BUSY', why)
      this.#cut.abort(error)
      this.#opened.abort(error)
    }
    const timer = setTimeout(() => cut(`the handler ran longer than ${handlerTimeoutMs} ms`), handlerTimeoutMs)
    const onStop = () => cut('the consumer was stopped')
    this.#stopping.addEventListener('abort', onStop, { once: true })
    if (this.#stopping.aborted) onStop()
    try {
      return await Promise.race([this.#steps(marksFirst), this.#whenCut()])
    } finally {
      clearTimeout(timer)
      this.#stopping.removeEventListener('abort', onStop)
      this.#outbox.end()
    }
  }

  /** The end of an attempt that is cut off: its late answers change nothing. */
  #whenCut(): Promise<AttemptResult> {
    return new Promise((resolve) => {
      const { signal } = this.#cut
      const end = () => resolve(this.#cutResult(signal.reason))
      if (signal.aborted) end()
      else signal.addEventListener('abort', end, { once: true })
    })
  }

  #cutResult(error: unknown): AttemptResult {
    return this.#stopping.aborted ? { kind: 'stopped' } : { kind: 'failed', error, verdicts: undefined }
  }

  async #steps(marksFirst: boolean): Promise<AttemptResult> {
    let verdicts: readonly InboxVerdict[] | undefined
    let fresh = this.#items
    if (marksFirst) {
      try {
        verdicts = await this.#opened.begin()
      } catch (error) {
        await this.#opened.rollback()
        return { kind: 'trouble', error }
      }
      fresh = this.#items.filter((_, index) => verdicts?.[index] === 'new')
      if (fresh.length === 0) return await this.#refused(verdicts)
    }
    try {
      await asWork(async () => await this.#work(this.#context(), fresh))
    } catch (error) {
      return await this.#handlerFailed(error)
    }
    return this.#cut.signal.aborted ? this.#cutResult(this.#cut.signal.reason) : await this.#finish(verdicts)
  }

  #context(): Omit<BatchContext<Tx>, 'messages'> {
    const opened = this.#opened
    const { consumer } = this.#settings
    return {
      tx: opened.tx,
      outbox: this.#outbox.outbox,
      now: () => opened.now(),
      ifNewer: async (entity, version) => {
        const newer = await opened.ifNewer(consumer, checkedEntity(entity), checkedVersion(version))
        if (!newer) this.#stale = true
        return newer
      },
      signal: this.#cut.signal,
    }
  }

  async #refused(verdicts: readonly InboxVerdict[]): Promise<AttemptResult> {
    await this.#opened.rollback()
    return { kind: 'refused', verdicts }
  }

  /** The gate's own answer comes first: statements sent behind it only report that the transaction is aborted. */
  async #handlerFailed(error: unknown): Promise<AttemptResult> {
    let verdicts: readonly InboxVerdict[] | undefined
    try {
      verdicts = await this.#opened.verdicts()
    } catch (gateError) {
      await this.#opened.rollback()
      return { kind: 'trouble', error: gateError }
    }
    if (verdicts !== undefined && !verdicts.includes('new')) return await this.#refused(verdicts)
    const rolled = await this.#opened.rollback()
    if (this.#cut.signal.aborted) return this.#cutResult(this.#cut.signal.reason)
    // A lost connection is the store's failure, whatever the handler made of it.
    if (rolled === 'lost') {
      return { kind: 'trouble', error: new OnceError('STORE_UNAVAILABLE', 'the connection was lost', { cause: error }) }
    }
    if (this.#host.store.failureOf(error) === 'retry') return { kind: 'retry', error }
    return { kind: 'failed', error, verdicts }
  }

  async #finish(known: readonly InboxVerdict[] | undefined): Promise<AttemptResult> {
    this.#finishing = true
    const rows = this.#outbox.end()
    let finished: InboxFinish | readonly InboxVerdict[]
    try {
      finished = await this.#opened.finish(rows)
    } catch (error) {
      await this.#opened.rollback()
      return isTrouble(error) ? { kind: 'trouble', error } : { kind: 'failed', error, verdicts: known }
    }
    switch (finished) {
      case 'committed':
        if (rows.length > 0) this.#host.afterCommit?.(rows)
        return {
          kind: 'committed',
          verdicts: known ?? this.#items.map(() => 'new'),
          outputs: rows.length,
          stale: this.#stale,
        }
      case 'ended': {
        const error = new OnceError('NOT_A_TRANSACTION', 'the handler ended its transaction itself')
        return { kind: 'failed', error, verdicts: known }
      }
      case 'retry':
        return { kind: 'retry', error: undefined }
      case 'unresolved':
      case 'fenced':
        return { kind: finished }
      default:
        return { kind: 'refused', verdicts: finished }
    }
  }
}

const TROUBLE: ReadonlySet<ErrorCode> = new Set([
  'STORE_UNAVAILABLE',
  'TOO_BUSY',
  'REPLICA_REFUSED',
  'SCHEMA_MISSING',
  'SCHEMA_NEWER',
])

/** Whether an error of the store says that it cannot be asked, not that a message is bad. */
export function isTrouble(error: unknown): boolean {
  return error instanceof OnceError && TROUBLE.has(error.code)
}

const ENTITY_BYTES_MAX = 255
const BIGINT_MAX = 9_223_372_036_854_775_807n

function checkedEntity(entity: unknown): string {
  if (typeof entity !== 'string' || entity === '' || entity.includes('\0') || !entity.isWellFormed()) {
    throw new TypeError('ifNewer: entity takes a non-empty string without U+0000 and lone surrogates')
  }
  if (Buffer.byteLength(entity) > ENTITY_BYTES_MAX) {
    throw new TypeError(`ifNewer: entity has more than ${ENTITY_BYTES_MAX} bytes`)
  }
  return entity
}

function checkedVersion(version: unknown): bigint {
  if (typeof version === 'number' && !Number.isSafeInteger(version)) {
    throw new TypeError('ifNewer: version takes a whole number; give large ones as bigint')
  }
  if (typeof version !== 'number' && typeof version !== 'bigint') {
    throw new TypeError(`ifNewer: version takes a number or a bigint, got ${typeof version}`)
  }
  const exact = BigInt(version)
  if (exact > BIGINT_MAX || exact < -BIGINT_MAX) throw new TypeError('ifNewer: version does not fit 64 bits')
  return exact
}
