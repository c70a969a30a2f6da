/**
 * Bell: tells relays of this process that work was committed. A hint that saves a poll, never what delivery
 * depends on; a store that can tell other processes wraps it.
 *
 * @module
 */

import type { BellListener, BellState, OutboxBell } from '../store/outbox.ts'

export class LocalBell implements OutboxBell {
  readonly #listeners = new Set<() => void>()

  /** How many listen in this process. */
  get listeners(): number {
    return this.#listeners.size
  }

  ring(): void {
    for (const onRing of this.#listeners) {
      try {
        onRing()
      } catch {
        // A listener's fault must not reach the work that has just committed.
      }
    }
  }

  listen(onRing: () => void, onState?: (state: BellState) => void): BellListener {
    const listener = () => onRing()
    this.#listeners.add(listener)
    onState?.({ kind: 'hearing' })
    return {
      close: () => {
        this.#listeners.delete(listener)
        return Promise.resolve()
      },
    }
  }
}
