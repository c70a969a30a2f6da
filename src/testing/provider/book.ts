/**
 * Book of a fake provider: what was really applied, what was asked, and which keys are remembered. Its clock stands still
 * until it is advanced.
 *
 * @module
 */

import type { MetFault } from './fault.ts'

/** Something that the provider really did. Two for one reference are a double charge. */
export interface ProviderEffect {
  readonly id: string
  /** Path that the request was sent to. */
  readonly path: string
  readonly reference: string | undefined
  readonly amount: number
  readonly currency: string
  /** Key of the request, also where the provider ignores keys. */
  readonly key: string | undefined
  /** Number of the request that applied it. */
  readonly request: number
  /** The provider's own clock, milliseconds since 1970. */
  readonly at: number
  /** The whole body of the request. */
  readonly body: Readonly<Record<string, unknown>>
}

/** A request and what became of it. */
export interface ProviderRequest {
  readonly number: number
  readonly method: string
  readonly path: string
  readonly key: string | undefined
  readonly reference: string | undefined
  readonly fault: MetFault['kind'] | undefined
  /** Status that was sent; `lost` when the connection was destroyed, `silent` when no answer comes, `open` until then. */
  readonly answer: number | 'lost' | 'silent' | 'open'
  /** The answer of an earlier request was given again. */
  readonly replayed: boolean
}

/** An answer as it is sent. */
export interface StoredAnswer {
  readonly status: number
  readonly body: Buffer
}

/** What a provider knows about one key. */
export interface KeyRecord {
  readonly fingerprint: string
  readonly firstAt: number
  running: boolean
  answer: StoredAnswer | undefined
  effect: ProviderEffect | undefined
}

/** Older requests are forgotten, so that a long soak does not fill the memory. */
const REQUESTS_MAX = 100_000

export class Book {
  readonly effects: ProviderEffect[] = []
  readonly requests: ProviderRequest[] = []
  readonly keys: Map<string, KeyRecord> = new Map()
  readonly #byId = new Map<string, ProviderEffect>()
  readonly #byReference = new Map<string, ProviderEffect[]>()
  #now = Date.now()
  #number = 0

  get now(): number {
    return this.#now
  }

  advance(ms: number): void {
    this.#now += ms
  }

  /** Writes a request down as open. */
  open(request: Omit<ProviderRequest, 'number' | 'answer' | 'replayed'>): number {
    this.#number += 1
    this.requests.push({ ...request, number: this.#number, answer: 'open', replayed: false })
    if (this.requests.length > REQUESTS_MAX) this.requests.shift()
    return this.#number
  }

  close(number: number, answer: ProviderRequest['answer'], replayed: boolean): void {
    // Numbers are consecutive, so the place follows from the number of the oldest one.
    const place = number - (this.requests[0]?.number ?? 0)
    const request = this.requests[place]
    if (request !== undefined) this.requests[place] = { ...request, answer, replayed }
  }

  apply(effect: Omit<ProviderEffect, 'id' | 'at'>): ProviderEffect {
    const applied = { ...effect, id: `fx_${this.effects.length + 1}`, at: this.#now }
    this.effects.push(applied)
    this.#byId.set(applied.id, applied)
    if (applied.reference !== undefined) {
      const same = this.#byReference.get(applied.reference)
      if (same === undefined) this.#byReference.set(applied.reference, [applied])
      else same.push(applied)
    }
    return applied
  }

  effect(id: string): ProviderEffect | undefined {
    return this.#byId.get(id)
  }

  withReference(reference: string): readonly ProviderEffect[] {
    return this.#byReference.get(reference) ?? []
  }

  /** The record of a key that has not lapsed; one that has is forgotten now. */
  key(name: string, lifetimeMs: number | null): KeyRecord | undefined {
    const record = this.keys.get(name)
    if (record === undefined) return undefined
    if (lifetimeMs === null || this.#now - record.firstAt < lifetimeMs || record.running) return record
    this.keys.delete(name)
    return undefined
  }
}
