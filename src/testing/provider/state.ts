/**
 * State of a fake provider as its control sees it, in the same process and over HTTP.
 *
 * @module
 */

import { Book, type ProviderEffect, type ProviderRequest } from './book.ts'
import { FaultScript, type ProviderFault, type SeededFaults } from './fault.ts'
import { Watch } from './watch.ts'

/** A request that is kept open. */
export interface HeldRequest {
  readonly request: number
  readonly reference: string | undefined
  readonly key: string | undefined
}

/** What tests look at. Arrays are live: copy what you keep. */
export interface ProviderState {
  /** What was really applied, oldest first. */
  readonly effects: readonly ProviderEffect[]
  /** The last 100_000 requests, oldest first. */
  readonly requests: readonly ProviderRequest[]
  readonly held: readonly HeldRequest[]
  /** The provider's own clock, milliseconds since 1970. */
  readonly now: number
}

/** Which held requests; all of them when nothing is given. */
export interface HeldFilter {
  readonly reference?: string | undefined
  readonly key?: string | undefined
}

export class Provider {
  readonly book: Book = new Book()
  readonly script: FaultScript
  readonly watch: Watch = new Watch()
  readonly #held = new Map<HeldRequest, () => void>()

  constructor(seeded: SeededFaults | undefined) {
    this.script = new FaultScript(seeded)
  }

  get state(): ProviderState {
    const { effects, requests, now } = this.book
    return { effects, requests, held: [...this.#held.keys()], now }
  }

  count(reference: string | undefined): number {
    return reference === undefined ? this.book.effects.length : this.book.withReference(reference).length
  }

  fault(fault: ProviderFault): void {
    this.script.add(fault)
  }

  advance(ms: number): void {
    if (!Number.isSafeInteger(ms) || ms < 0) throw new TypeError('advance takes whole milliseconds from 0')
    this.book.advance(ms)
    this.watch.changed()
  }

  forget(key: string | undefined): void {
    if (key === undefined) this.book.keys.clear()
    else this.book.keys.delete(key)
    this.watch.changed()
  }

  hold(held: HeldRequest): Promise<void> {
    return new Promise((resolve) => {
      this.#held.set(held, resolve)
      this.watch.changed()
    })
  }

  release({ reference, key }: HeldFilter): number {
    let count = 0
    for (const [held, resolve] of this.#held) {
      if (reference !== undefined && held.reference !== reference) continue
      if (key !== undefined && held.key !== key) continue
      this.#held.delete(held)
      count += 1
      resolve()
    }
    this.watch.changed()
    return count
  }
}
