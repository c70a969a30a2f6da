/**
 * The connection between the in-process broker and its users: up, down or blocked, and the faults of tests.
 *
 * @module
 */

import type { ConnectionState } from '../../broker/contract.ts'

/** Told of every change, in the order of registration. */
export type LinkListener = (state: ConnectionState) => void

export class MemoryLink {
  #state: ConnectionState = { kind: 'open' }
  readonly #listeners = new Set<LinkListener>()
  #held: (() => void)[] | undefined

  get state(): ConnectionState {
    return this.#state
  }

  /** Calls `listener` on every change until the returned function is called. */
  watch(listener: LinkListener): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  set(state: ConnectionState): void {
    this.#state = state
    for (const listener of this.#listeners) listener(state)
  }

  /** Delivers an answer of the broker after the current event, or when held answers are let go. */
  answer(deliver: () => void): void {
    if (this.#held === undefined) setImmediate(deliver)
    else this.#held.push(deliver)
  }

  /** Holds the broker's answers back (`true`) or lets all held ones go, in order. */
  hold(held: boolean): void {
    const waiting = this.#held ?? []
    this.#held = held ? waiting : undefined
    if (!held) for (const deliver of waiting) setImmediate(deliver)
  }
}
