/**
 * Run: takes messages through an attempt and does what was decided about them. Deliveries are acknowledged by the
 * caller, after this has returned `done`: then everything about the message is committed. (I9, R31, R34)
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import { pause } from '../shared/waiting.ts'
import type { InboxQuarantineReason, InboxVerdict, NewQuarantine, NewWaiting } from '../store/inbox.ts'
import { type AttemptResult, type AttemptSettings, attempt, isTrouble, type Running, type Work } from './attempt.ts'
import { afterFailure, afterVerdict, type Limits, type Next } from './decide.ts'
import type { ConsumerEvent } from './events.ts'
import { type Item, kindOfError, nameOfError, type Refusal } from './item.ts'
import type { ConsumerHost } from './options.ts'

/**
 * What the caller does with an item.
 * - `done`: everything about it is durable: acknowledge.
 * - `again`: try it again after a pause; with `reclaim` its claim is gone, and it is claimed anew.
 * - `trouble`: the store cannot be asked: keep it, unacknowledged.
 * - `stopped`: cut off: hand it back.
 */
export type Disposition =
  | { readonly kind: 'done' | 'stopped' }
  | { readonly kind: 'again'; readonly afterMs: number; readonly reclaim?: boolean }
  | { readonly kind: 'trouble'; readonly error: unknown }

export interface RunSettings extends AttemptSettings, Limits {
  /** How soon a message that stands behind another is looked at again, milliseconds. */
  readonly pollMs: number
}

/** An attempt whose retries are used up. */
type Tried = Exclude<AttemptResult, { kind: 'retry' | 'doubtful' }>

const DONE: Disposition = { kind: 'done' }
const RETRIES_MAX = 5
/** Batches that wait for their marks after one with a message that was not new: such messages seldom come alone. */
const CAREFUL_BATCHES = 32
const UNRESOLVED_PAUSE_MS = 200
/**
 * Connections lost under one message that are the store's trouble; from then on they are the message's: whatever it makes
 * its handler do ends the session each time, and it must not hold up the others for ever (B47, R34).
 */
const LOSSES_MAX = 3
const REFUSED_PAUSE_MS = 5_000

export class Runner<Tx> {
  readonly #host: ConsumerHost<Tx>
  readonly #settings: RunSettings
  readonly #emit: ((event: ConsumerEvent) => void) | undefined
  readonly #running: Running
  /** Batches left that wait for their marks before the handler starts. */
  #careful = 0

  constructor(
    host: ConsumerHost<Tx>,
    settings: RunSettings,
    emit: ((event: ConsumerEvent) => void) | undefined,
    running: Running,
  ) {
    this.#host = host
    this.#settings = settings
    this.#emit = emit
    this.#running = running
  }

  /** One message in a transaction of its own; `handler` undefined = none for its type. Never throws. */
  async one(item: Item, work: Work<Tx> | undefined): Promise<Disposition> {
    try {
      // Its last permitted run ended without a word: the process died.
      if (item.claim !== undefined && item.claim.attempts > this.#settings.attemptsMax) {
        return await this.#quarantine(item, 'exhausted', undefined)
      }
      if (work === undefined) {
        return await this.#follow(item, { kind: 'wait', reason: 'no-handler', dueInMs: 0 }, undefined)
      }
      const startedMs = performance.now()
      const result = await this.#attempted([item], work)
      if (result.kind !== 'committed') return await this.#settle(item, result)
      this.#tellApplied(item, result, startedMs)
      return DONE
    } catch (error) {
      return this.#refusedByStore(item, error)
    }
  }

  /** Many messages in one transaction. A failing batch is halved until the failing message is alone. (SC46) */
  async many(items: readonly Item[], work: Work<Tx>): Promise<Map<Item, Disposition>> {
    const dispositions = new Map<Item, Disposition>()
    await this.#batch(items, work, dispositions)
    return dispositions
  }

  /** Deliveries that can never be handled: all together, or one by one when the store refuses one of them. */
  async refuse(refusals: readonly Refusal[]): Promise<Map<Refusal, Disposition>> {
    const dispositions = new Map<Refusal, Disposition>()
    try {
      await this.#host.store.quarantine(refusals.map(quarantineRow))
      for (const refusal of refusals) {
        this.#tellRefused(refusal)
        dispositions.set(refusal, DONE)
      }
    } catch (error) {
      const [only] = refusals
      if (isTrouble(error)) {
        for (const refusal of refusals) dispositions.set(refusal, { kind: 'trouble', error })
      } else if (only !== undefined && refusals.length === 1) {
        dispositions.set(only, { kind: 'again', afterMs: REFUSED_PAUSE_MS })
      } else {
        for (const refusal of refusals) {
          for (const [key, disposition] of await this.refuse([refusal])) dispositions.set(key, disposition)
        }
      }
    }
    return dispositions
  }

  /**
   * A redelivered message is written down before it runs, so that a message that ends its process is counted when
   * claimed (I15). undefined = it is claimed and may run.
   */
  async claim(item: Item, owner: string, leaseMs: number): Promise<Disposition | undefined> {
    return await this.#guarded(item, async () => {
      const answer = await this.#host.store.claimDelivery(item.mark, item.kept(), { owner, leaseMs })
      switch (answer.kind) {
        case 'claimed':
          item.claim = answer.claim
          item.message.attempt = answer.claim.attempts
          return undefined
        case 'stored':
        case 'quarantined':
          return DONE
        case 'duplicate':
        case 'mismatch':
        case 'expired':
        case 'busy':
          return await this.#verdict(item, answer.kind)
      }
    })
  }

  /** Which of these were applied before; the others are for `claim`. Saves a trip each when many come again. */
  async recognise(items: readonly Item[]): Promise<Map<Item, Disposition>> {
    const dispositions = new Map<Item, Disposition>()
    try {
      const verdicts = await this.#host.store.lookup(items.map((item) => item.mark))
      items.forEach((item, index) => {
        if (verdicts[index] !== 'duplicate') return
        this.#tellDuplicate(item)
        dispositions.set(item, DONE)
      })
    } catch (error) {
      for (const item of items) dispositions.set(item, { kind: 'trouble', error })
    }
    return dispositions
  }

  async #guarded<T extends Disposition | undefined>(item: Item, act: () => Promise<T>): Promise<T | Disposition> {
    try {
      return await act()
    } catch (error) {
      return this.#refusedByStore(item, error)
    }
  }

  /** A store that refuses one message for a reason of its own holds up that message only. */
  #refusedByStore(item: Item, error: unknown): Disposition {
    if (isTrouble(error)) return { kind: 'trouble', error }
    this.#emit?.({ kind: 'error', ...about(item), error: kindOfError(error) })
    return { kind: 'again', afterMs: REFUSED_PAUSE_MS }
  }

  /** An attempt, repeated at once when the database asks for a fresh transaction, or the marks have to be asked first. */
  async #attempted(items: readonly Item[], work: Work<Tx>): Promise<Tried> {
    let careful = this.#isCareful(items)
    for (let round = 1; ; ) {
      const result = await attempt(this.#host, items, work, this.#settings, this.#running, careful)
      if (result.kind === 'doubtful') {
        this.#careful = CAREFUL_BATCHES
        careful = true
        continue
      }
      if (result.kind !== 'retry') return result
      if (round > RETRIES_MAX) {
        const error = result.error ?? new OnceError('TOO_BUSY', `${round} serialization failures or deadlocks in a row`)
        return { kind: 'failed', error, verdicts: undefined }
      }
      await pause(Math.random() * 10 * 2 ** round)
      round += 1
    }
  }

  #isCareful(items: readonly Item[]): boolean {
    if (items.length === 1 || this.#careful === 0) return false
    this.#careful -= 1
    return true
  }

  async #settle(item: Item, result: Exclude<Tried, { kind: 'committed' }>): Promise<Disposition> {
    switch (result.kind) {
      case 'refused':
        return await this.#verdict(item, result.verdicts[0] ?? 'busy')
      case 'failed':
        return await this.#failed(item, result.error)
      case 'unresolved':
        return await this.#unresolved(item)
      case 'lost':
        return await this.#lost(item, result.error)
      case 'fenced':
        return this.#fenced(item)
      case 'trouble':
        return { kind: 'trouble', error: result.error }
      case 'unfit':
        return this.#refusedByStore(item, result.error)
      case 'stopped':
        return { kind: 'stopped' }
    }
  }

  async #batch(items: readonly Item[], work: Work<Tx>, into: Map<Item, Disposition>): Promise<void> {
    const [only] = items
    if (only === undefined) return
    if (this.#running.stopped) return setAll(into, items, { kind: 'stopped' })
    const startedMs = performance.now()
    const result = await this.#attempted(items, work)
    switch (result.kind) {
      case 'committed':
      case 'refused':
        if (items.length > 1 && result.verdicts.includes('busy')) return await this.#each(items, work, into)
        return await this.#settleBatch(items, result, startedMs, into)
      case 'failed': {
        if (items.length > 1) return await this.#split(items, work, result, into)
        into.set(only, await this.#guarded(only, () => this.#failed(only, result.error)))
        return
      }
      case 'unresolved':
        for (const item of items) into.set(item, await this.#guarded(item, () => this.#unresolved(item)))
        return
      case 'lost':
        if (items.length > 1 && only.losses >= LOSSES_MAX) return await this.#each(items, work, into)
        for (const item of items) into.set(item, await this.#guarded(item, () => this.#lost(item, result.error)))
        return
      case 'fenced':
      case 'stopped':
        return setAll(into, items, { kind: 'stopped' })
      case 'unfit':
        if (items.length > 1) return await this.#each(items, work, into)
        return setAll(into, items, this.#refusedByStore(only, result.error))
      case 'trouble':
        return setAll(into, items, { kind: 'trouble', error: result.error })
    }
  }

  /** One message of the batch is being worked on elsewhere: alone, the others need not wait for it. */
  async #each(items: readonly Item[], work: Work<Tx>, into: Map<Item, Disposition>): Promise<void> {
    for (const item of items) {
      item.marksFirst = true
      into.set(item, await this.one(item, work))
    }
  }

  async #settleBatch(
    items: readonly Item[],
    result: Extract<Tried, { kind: 'committed' | 'refused' }>,
    startedMs: number,
    into: Map<Item, Disposition>,
  ): Promise<void> {
    const behind: Item[] = []
    for (const [index, item] of items.entries()) {
      const verdict = result.verdicts[index] ?? 'busy'
      if (verdict === 'new' && result.kind === 'committed') {
        this.#tellApplied(item, result, startedMs)
        into.set(item, DONE)
      } else if (verdict === 'duplicate') {
        this.#tellDuplicate(item)
        into.set(item, DONE)
      } else if (verdict === 'behind' && item.claim === undefined) {
        behind.push(item)
      } else {
        into.set(item, await this.#guarded(item, () => this.#verdict(item, verdict)))
      }
    }
    if (behind.length > 0) await this.#waitTogether(behind, into)
  }

  /** Many messages that stand behind others of their keys: one statement, in their order. */
  async #waitTogether(items: readonly Item[], into: Map<Item, Disposition>): Promise<void> {
    const rows = items.map((item) =>
      waitingRow(item, { reason: 'behind', dueInMs: this.#settings.pollMs }, 0, undefined),
    )
    try {
      const results = await this.#host.store.wait(rows)
      for (const [index, item] of items.entries()) {
        if (results[index] === 'mismatch') {
          into.set(item, await this.#guarded(item, () => this.#quarantine(item, 'mismatch', undefined)))
          continue
        }
        this.#tellWaiting(item, { reason: 'behind', dueInMs: this.#settings.pollMs }, undefined)
        into.set(item, DONE)
      }
    } catch (error) {
      if (isTrouble(error)) return setAll(into, items, { kind: 'trouble', error })
      for (const item of items) into.set(item, await this.#guarded(item, () => this.#verdict(item, 'behind')))
    }
  }

  /**
   * Messages that are known not to be new, and those whose bodies could not be read, need no halving; the others are
   * tried in two halves, in order, so that what stands behind a failing message of its key still does.
   */
  async #split(
    items: readonly Item[],
    work: Work<Tx>,
    result: Extract<Tried, { kind: 'failed' }>,
    into: Map<Item, Disposition>,
  ): Promise<void> {
    this.#emit?.({
      kind: 'split',
      consumer: this.#settings.consumer,
      size: items.length,
      error: kindOfError(result.error),
    })
    const unreadable = items.filter((item) => item.message.undecodable !== undefined)
    for (const item of unreadable) {
      into.set(item, await this.#guarded(item, () => this.#failed(item, item.message.undecodable)))
    }
    const rest = unreadable.length === 0 ? items : items.filter((item) => item.message.undecodable === undefined)
    if (unreadable.length > 0) return await this.#batch(rest, work, into)
    const middle = Math.ceil(rest.length / 2)
    await this.#batch(rest.slice(0, middle), work, into)
    await this.#batch(rest.slice(middle), work, into)
  }

  async #unresolved(item: Item): Promise<Disposition> {
    this.#emit?.({ kind: 'unresolved', ...about(item) })
    item.marksFirst = true
    item.losses += 1
    if (item.losses <= LOSSES_MAX) return { kind: 'again', afterMs: UNRESOLVED_PAUSE_MS }
    // The mark decides before anything is counted.
    const [verdict] = await this.#host.store.lookup([item.mark])
    if (verdict !== undefined && verdict !== 'new') return await this.#verdict(item, verdict)
    return await this.#failed(item, new OnceError('COMMIT_UNRESOLVED', 'the answer to COMMIT was lost each time'))
  }

  async #lost(item: Item, error: unknown): Promise<Disposition> {
    item.losses += 1
    return item.losses <= LOSSES_MAX ? { kind: 'trouble', error } : await this.#failed(item, error)
  }

  async #verdict(item: Item, verdict: InboxVerdict): Promise<Disposition> {
    if (verdict === 'new') return DONE
    if (verdict === 'busy') item.busy += 1
    if (verdict === 'mismatch') this.#emit?.({ kind: 'mismatch', ...about(item) })
    if (verdict === 'duplicate') this.#tellDuplicate(item)
    return await this.#follow(item, afterVerdict(verdict, item.busy, this.#settings.pollMs), undefined)
  }

  /**
   * The row of its claim is gone: somebody else has applied the message, or has it waiting. Or a crash of the server has
   * lost the claim, which was written without waiting for the disk; then the broker's copy is the only one. So with a
   * delivery in hand the store is asked again before anything is acknowledged.
   */
  #fenced(item: Item): Disposition {
    this.#emit?.({ kind: 'fenced', ...about(item) })
    return item.delivery === undefined ? DONE : { kind: 'again', afterMs: UNRESOLVED_PAUSE_MS, reclaim: true }
  }

  async #failed(item: Item, error: unknown): Promise<Disposition> {
    const undecodable = item.message.undecodable !== undefined
    return await this.#follow(item, afterFailure(error, undecodable, item.message.attempt, this.#settings), error)
  }

  async #follow(item: Item, next: Next, error: unknown): Promise<Disposition> {
    switch (next.kind) {
      case 'settle':
        if (item.claim !== undefined) await this.#host.store.discard(item.claim)
        return DONE
      case 'again':
        item.marksFirst = true
        return { kind: 'again', afterMs: next.afterMs }
      case 'quarantine':
        return await this.#quarantine(item, next.reason, error)
      case 'wait':
        return await this.#wait(item, next, error)
    }
  }

  async #wait(item: Item, next: Extract<Next, { kind: 'wait' }>, error: unknown): Promise<Disposition> {
    const { store } = this.#host
    if (item.claim === undefined) {
      const row = waitingRow(item, next, next.reason === 'failed' ? item.message.attempt : 0, error)
      const [result] = await store.wait([row])
      if (result === 'mismatch') {
        this.#emit?.({ kind: 'mismatch', ...about(item) })
        return await this.#quarantine(item, 'mismatch', undefined)
      }
    } else {
      const text = error === undefined ? undefined : nameOfError(error)
      const { reason, dueInMs } = next
      const result = await store.postpone(item.claim, { reason, dueInMs, error: text })
      if (result === 'fenced') return this.#fenced(item)
    }
    this.#tellWaiting(item, next, error)
    return DONE
  }

  async #quarantine(item: Item, reason: InboxQuarantineReason, error: unknown): Promise<Disposition> {
    const { store } = this.#host
    const text = error === undefined ? undefined : nameOfError(error)
    const attempts = item.claim?.attempts ?? (reason === 'exhausted' || error !== undefined ? item.message.attempt : 0)
    if (item.claim === undefined) {
      const { mark, message } = item
      const { redelivered } = message
      await store.quarantine([{ mark, delivery: item.kept(), reason, attempts, error: text, redelivered }])
    } else if ((await store.quarantineClaimed(item.claim, { reason, error: text })) === 'fenced') {
      return this.#fenced(item)
    }
    this.#emit?.({
      kind: 'quarantined',
      ...about(item),
      reason,
      attempts,
      error: error === undefined ? undefined : kindOfError(error),
    })
    return DONE
  }

  #tellApplied(item: Item, result: Extract<Tried, { kind: 'committed' }>, startedMs: number): void {
    this.#emit?.({
      kind: 'applied',
      ...about(item),
      attempt: item.message.attempt,
      outputs: result.outputs,
      stale: result.stale,
      durationMs: performance.now() - startedMs,
    })
  }

  #tellRefused({ mark, kept, reason }: Refusal): void {
    this.#emit?.({
      kind: 'quarantined',
      consumer: mark.consumer,
      id: mark.messageId,
      source: mark.source,
      type: kept.type ?? kept.topic,
      reason,
      attempts: 0,
    })
  }

  #tellDuplicate(item: Item): void {
    this.#emit?.({ kind: 'duplicate', ...about(item) })
  }

  #tellWaiting(item: Item, next: Pick<Extract<Next, { kind: 'wait' }>, 'reason' | 'dueInMs'>, error: unknown): void {
    this.#emit?.({
      kind: 'waiting',
      ...about(item),
      reason: next.reason,
      attempt: item.message.attempt,
      dueInMs: next.dueInMs,
      error: error === undefined ? undefined : kindOfError(error),
    })
  }
}

function about(item: Item): { consumer: string; id: string; source: string; type: string } {
  const { consumer, messageId, source } = item.mark
  return { consumer, id: messageId, source, type: item.message.type }
}

function waitingRow(
  item: Item,
  next: { readonly reason: NewWaiting['reason']; readonly dueInMs: number },
  attempts: number,
  error: unknown,
): NewWaiting {
  return {
    mark: item.mark,
    delivery: item.kept(),
    reason: next.reason,
    attempts,
    dueInMs: next.dueInMs,
    error: error === undefined ? undefined : nameOfError(error),
  }
}

function quarantineRow(refusal: Refusal): NewQuarantine {
  const { mark, kept, reason, error, delivery } = refusal
  return { mark, delivery: kept, reason, attempts: 0, error, redelivered: delivery.redelivered }
}

function setAll(into: Map<Item, Disposition>, items: readonly Item[], disposition: Disposition): void {
  for (const item of items) into.set(item, disposition)
}
