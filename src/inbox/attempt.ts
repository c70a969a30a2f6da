/**
 * Attempt: one transaction around one message or one batch, from the marks to a decided COMMIT.
 *
 * Every end is a named result. Whose failure it was is told apart here: a handler that throws has used up an attempt,
 * a store that does not answer has not. (I9, B47, B67)
 *
 * @module
 */

import { startWork } from '../operation/engine.ts'
import { type Outbox, OutboxBuffer } from '../outbox/buffer.ts'
import { type ErrorCode, OnceError } from '../shared/errors.ts'
import type { InboxFinish, InboxOpenOptions, InboxVerdict, OpenInbox } from '../store/inbox.ts'
import type { Item } from './item.ts'
import type { BatchContext, ConsumerHost } from './options.ts'

/**
 * - `committed`: marks, work and outputs are durable for the items whose verdict is `new`.
 * - `refused`: none was `new`; nothing ran in the database.
 * - `doubtful`: of many messages that ran without waiting for their marks, one may not be new; nothing ran in the
 *   database. With the marks first it is known which.
 * - `failed`: the handler threw, or took too long; rolled back.
 * - `retry`: deadlock or serialization failure; rolled back.
 * - `unresolved`: COMMIT may have taken place; the marks decide.
 * - `fenced`: the claim was taken over; rolled back.
 * - `trouble`: the store could not be asked; nothing is known to have happened.
 * - `lost`: the connection was lost while the handler ran; rolled back.
 * - `unfit`: the store can be asked and will not take these messages; nothing happened.
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
  | { readonly kind: 'trouble' | 'unfit' | 'lost'; readonly error: unknown }
  | { readonly kind: 'doubtful' }
  | { readonly kind: 'unresolved' | 'fenced' | 'stopped' }

const DOUBTFUL: AttemptResult = { kind: 'doubtful' }

export interface AttemptSettings {
  readonly consumer: string
  readonly open: Omit<InboxOpenOptions, 'marksFirst'>
  readonly handlerTimeoutMs: number
  readonly stopKeyOnWaiting: boolean
  /** Ask the store before any of the handler's code runs. */
  readonly eager: boolean
}

/** The user's code, given the messages that are new. */
export type Work<Tx> = (context: WorkContext<Tx>, fresh: readonly Item[]) => unknown
export type WorkContext<Tx> = Omit<BatchContext<Tx>, 'messages'>

/** Attempts under way, so that `stop` can cut them off. */
export class Running {
  /** A list, for the reason told in operation/in-flight.ts. */
  readonly #cuts: ((error: OnceError) => void)[] = []
  #stopped = false

  get stopped(): boolean {
    return this.#stopped
  }

  add(cut: (error: OnceError) => void): void {
    this.#cuts.push(cut)
    if (this.#stopped) cut(stopError())
  }

  remove(cut: (error: OnceError) => void): void {
    const place = this.#cuts.indexOf(cut)
    if (place !== -1) this.#cuts.splice(place, 1)
  }

  /** Cuts off what runs, and what starts later. */
  stop(): void {
    this.#stopped = true
    const cuts = this.#cuts.slice()
    for (const cut of cuts) cut(stopError())
  }
}

function stopError(): OnceError {
  return new OnceError('TOO_BUSY', 'the consumer was stopped')
}

/**
 * Runs `work` once for `items`, with their marks first when `careful`. Never throws.
 *
 * Its steps hand on by callbacks instead of awaiting each other: for a single message each promise is felt, because the
 * tools that follow a work through its async calls look at every one.
 */
export function attempt<Tx>(
  host: ConsumerHost<Tx>,
  items: readonly Item[],
  work: Work<Tx>,
  settings: AttemptSettings,
  running: Running,
  careful = false,
): Promise<AttemptResult> {
  const { eager, stopKeyOnWaiting } = settings
  const marksFirst = careful || eager || stopKeyOnWaiting || items.some((item) => item.marksFirst)
  const runs = items.map((item) => ({
    mark: item.mark,
    claim: item.claim,
    stopKey: stopKeyOnWaiting ? item.key : undefined,
    override: item.override,
  }))
  return new Promise((resolve) => {
    host.store.open(runs, { ...settings.open, marksFirst }).then(
      (opened) => new Attempt(host, opened, items, work, settings, marksFirst, running, resolve).start(),
      (error: unknown) => resolve(notBegun(error)),
    )
  })
}

class Attempt<Tx> {
  readonly #host: ConsumerHost<Tx>
  readonly #opened: OpenInbox<Tx>
  readonly #items: readonly Item[]
  readonly #work: Work<Tx>
  readonly #settings: AttemptSettings
  readonly #marksFirst: boolean
  readonly #running: Running
  readonly #context: AttemptContext<Tx>
  readonly #ended: (result: AttemptResult) => void
  readonly #cut = (error: OnceError): void => this.#cutOff(error)
  #timer: NodeJS.Timeout | undefined
  /** Why it was cut off. */
  #cutBy: OnceError | undefined
  /** COMMIT is on its way: its answer is bounded by the store, and cutting would hide it. */
  #finishing = false

  constructor(
    host: ConsumerHost<Tx>,
    opened: OpenInbox<Tx>,
    items: readonly Item[],
    work: Work<Tx>,
    settings: AttemptSettings,
    marksFirst: boolean,
    running: Running,
    ended: (result: AttemptResult) => void,
  ) {
    this.#host = host
    this.#opened = opened
    this.#items = items
    this.#work = work
    this.#settings = settings
    this.#marksFirst = marksFirst
    this.#running = running
    this.#context = new AttemptContext(opened, new OutboxBuffer(host.outbox), settings.consumer)
    this.#ended = ended
  }

  start(): void {
    const { handlerTimeoutMs } = this.#settings
    this.#timer = setTimeout(
      () =>
        this.#cutOff(
          new OnceError('TOO_BUSY', `the handler ran longer than ${handlerTimeoutMs} ms (handlerTimeoutMs)`),
        ),
      handlerTimeoutMs,
    )
    this.#running.add(this.#cut)
    // Cut off by `add` already: the consumer is stopped.
    if (this.#cutBy !== undefined) return
    if (this.#marksFirst) this.#follow(this.#takeMarks())
    else this.#runWork(this.#items, undefined)
  }

  /** Late answers of an attempt that was cut off change nothing. */
  #end(result: AttemptResult): void {
    clearTimeout(this.#timer)
    this.#running.remove(this.#cut)
    this.#context.buffer.end()
    const doubtful = result.kind === 'refused' && !this.#marksFirst && this.#items.length > 1
    this.#ended(doubtful ? DOUBTFUL : result)
  }

  #cutOff(error: OnceError): void {
    if (this.#finishing || this.#cutBy !== undefined) return
    this.#cutBy = error
    this.#context.abort(error)
    this.#opened.abort(error)
    this.#end(this.#cutResult(error))
  }

  #cutResult(error: unknown): AttemptResult {
    return this.#running.stopped ? { kind: 'stopped' } : { kind: 'failed', error, verdicts: undefined }
  }

  async #takeMarks(): Promise<void> {
    let verdicts: readonly InboxVerdict[]
    try {
      verdicts = await this.#opened.begin()
    } catch (error) {
      await this.#opened.rollback()
      return this.#end(notBegun(error))
    }
    if (this.#cutBy !== undefined) return
    const fresh = this.#items.filter((_, index) => verdicts[index] === 'new')
    if (fresh.length === 0) await this.#refused(verdicts)
    else this.#runWork(fresh, verdicts)
  }

  /** @param verdicts - undefined = the marks travel with the work's first statement. */
  #runWork(fresh: readonly Item[], verdicts: readonly InboxVerdict[] | undefined): void {
    startWork(
      () => this.#work(this.#context, fresh),
      () => {
        if (this.#cutBy === undefined) this.#follow(this.#finish(verdicts))
      },
      (error) => this.#follow(this.#handlerFailed(error)),
    )
  }

  /** A step ends by itself. When looking at what the handler threw has thrown (an accessor, a proxy), it is ended here. */
  #follow(step: Promise<void>): void {
    step.catch(() => {
      const error = new Error('what the handler threw cannot be looked at')
      this.#opened.abort(error)
      this.#end({ kind: 'failed', error, verdicts: undefined })
    })
  }
  async #refused(verdicts: readonly InboxVerdict[]): Promise<void> {
    await this.#opened.rollback()
    this.#end({ kind: 'refused', verdicts })
  }

  /** The gate's own answer comes first: statements sent behind it only report that the transaction is aborted. */
  async #handlerFailed(error: unknown): Promise<void> {
    let verdicts: readonly InboxVerdict[] | undefined
    try {
      verdicts = await this.#opened.verdicts()
    } catch (gateError) {
      await this.#opened.rollback()
      return this.#end(notBegun(gateError))
    }
    if (verdicts !== undefined && !verdicts.includes('new')) return await this.#refused(verdicts)
    const rolled = await this.#opened.rollback()
    if (this.#cutBy !== undefined) return
    // A lost connection is the store's failure, whatever the handler made of it.
    if (rolled === 'lost') {
      const lost = new OnceError('STORE_UNAVAILABLE', 'the connection was lost', { cause: error })
      return this.#end({ kind: 'lost', error: lost })
    }
    const retry = this.#host.store.failureOf(error) === 'retry'
    this.#end(retry ? { kind: 'retry', error } : { kind: 'failed', error, verdicts })
  }

  async #finish(known: readonly InboxVerdict[] | undefined): Promise<void> {
    this.#finishing = true
    const rows = this.#context.buffer.end()
    let finished: InboxFinish | readonly InboxVerdict[]
    try {
      finished = await this.#opened.finish(rows)
    } catch (error) {
      await this.#opened.rollback()
      return this.#end(isTrouble(error) ? { kind: 'trouble', error } : { kind: 'failed', error, verdicts: known })
    }
    if (finished === 'committed' && rows.length > 0) this.#host.afterCommit?.(rows)
    this.#end(this.#finished(finished, known, rows.length))
  }

  #finished(
    finished: InboxFinish | readonly InboxVerdict[],
    known: readonly InboxVerdict[] | undefined,
    outputs: number,
  ): AttemptResult {
    switch (finished) {
      case 'committed':
        return {
          kind: 'committed',
          verdicts: known ?? this.#items.map(() => 'new'),
          outputs,
          stale: this.#context.stale,
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

/** What the user's code is given. The signal is made when it is asked for: most handlers never look. */
class AttemptContext<Tx> implements WorkContext<Tx> {
  readonly tx: Tx
  readonly outbox: Outbox
  readonly now: () => Promise<Date>
  readonly ifNewer: (entity: string, version: number | bigint) => Promise<boolean>
  readonly buffer: OutboxBuffer
  stale = false
  #abort: AbortController | undefined
  #reason: OnceError | undefined

  constructor(opened: OpenInbox<Tx>, buffer: OutboxBuffer, consumer: string) {
    this.tx = opened.tx
    this.outbox = buffer.outbox
    this.buffer = buffer
    this.now = () => opened.now()
    this.ifNewer = async (entity, version) => {
      const newer = await opened.ifNewer(consumer, checkedEntity(entity), checkedVersion(version))
      if (!newer) this.stale = true
      return newer
    }
  }

  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    if (this.#reason !== undefined) this.#abort.abort(this.#reason)
    return this.#abort.signal
  }

  abort(reason: OnceError): void {
    this.#reason = reason
    this.#abort?.abort(reason)
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

/** What an error says that came in place of a transaction or of its marks. */
function notBegun(error: unknown): AttemptResult {
  return { kind: isTrouble(error) ? 'trouble' : 'unfit', error }
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
