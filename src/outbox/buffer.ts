/**
 * Buffer: what `outbox.add` of one work collects. The rows leave with the work's COMMIT; a rollback leaves none.
 *
 * Nothing is sent to the database by `add` itself, so a work that adds in a loop pays one statement, and a message
 * can neither be committed alone nor leave before its work (I6, B41).
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import type { OutboxRow } from '../store/outbox.ts'
import { type Message, type OutboxLimits, toRow } from './message.ts'

/** Where a work puts its messages. */
export interface Outbox {
  /**
   * Adds messages to the work's transaction, in order. They are published after its commit, at least once, and never
   * when it rolls back. A savepoint that the work rolls back does not take them back. (R22)
   *
   * @returns The id of the message, or the ids in order.
   * @throws {TypeError} at the call, naming the member of a malformed message, `messagesMax` or `bytesMax`.
   * @throws {OnceError} NOT_A_TRANSACTION when the work has ended.
   * @example
   * await outbox.add({ topic: 'order.created.v1', orderingKey: order.id, payload: { orderId: order.id } })
   */
  add(message: Message): Promise<string>
  add(messages: readonly Message[]): Promise<string[]>
}

/** Collects the messages of one work. */
export class OutboxBuffer {
  /** The user's side. */
  readonly outbox: Outbox
  readonly #limits: OutboxLimits
  readonly #rows: OutboxRow[] = []
  #bytes = 0
  #ended = false

  constructor(limits: OutboxLimits) {
    this.#limits = limits
    this.outbox = { add: this.#add.bind(this) as Outbox['add'] }
  }

  /** What was added so far, in order. */
  get rows(): readonly OutboxRow[] {
    return this.#rows
  }

  /** Refuses what comes later: the work has ended. */
  end(): readonly OutboxRow[] {
    this.#ended = true
    return this.#rows
  }

  /** Not async: a wrong message must fail the work even when its promise is not awaited. */
  #add(given: Message | readonly Message[]): Promise<string | string[]> {
    if (this.#ended) {
      throw new OnceError('NOT_A_TRANSACTION', 'outbox.add: the work that this outbox belongs to has ended')
    }
    if (!isList(given)) return Promise.resolve(this.#take([given])[0] as string)
    return Promise.resolve(this.#take(given))
  }

  /** All or none: a refused list leaves nothing behind. */
  #take(messages: readonly Message[]): string[] {
    const { messagesMax, bytesMax } = this.#limits
    if (this.#rows.length + messages.length > messagesMax) {
      throw new TypeError(`outbox.add: more than ${messagesMax} messages in one transaction (outbox.messagesMax)`)
    }
    const rows: OutboxRow[] = []
    let bytes = this.#bytes
    for (const message of messages) {
      const row = toRow(message, this.#limits)
      bytes += Buffer.byteLength(row.payload) + row.headers.length
      if (bytes > bytesMax) {
        throw new TypeError(`outbox.add: more than ${bytesMax} bytes of messages in one transaction (outbox.bytesMax)`)
      }
      rows.push(row)
    }
    for (const row of rows) this.#rows.push(row)
    this.#bytes = bytes
    return rows.map((row) => row.id)
  }
}

function isList(given: Message | readonly Message[]): given is readonly Message[] {
  return Array.isArray(given)
}
