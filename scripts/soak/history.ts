/**
 * History: what every caller asked and what it was answered, with the moments of both, in a file outside the database.
 */
import { createWriteStream, type WriteStream } from 'node:fs'

export type Route = 'order' | 'charge' | 'job'

/** Instants are milliseconds of one clock. */
export interface Asked {
  readonly kind: 'asked'
  readonly at: number
  /** Number of the call; its answer has the same. */
  readonly call: number
  readonly key: string
  readonly route: Route
  readonly payload: string
}

/**
 * `outcome`: a final answer with what it says. `mismatch`: another payload holds the key. `open`: nothing is promised,
 * ask again (in progress, unavailable, no answer at all).
 */
export interface Answered {
  readonly kind: 'answered'
  readonly at: number
  readonly call: number
  readonly told: 'outcome' | 'mismatch' | 'open'
  readonly outcome?: string
  readonly status: number | undefined
}

export interface Disturbed {
  readonly kind: 'disturbed'
  readonly at: number
  readonly what: string
}

/**
 * An act of an operator. `done`: it was told so. `refused`: told that nothing was changed. `open`: no answer came, so nobody
 * knows.
 */
export interface Acted {
  readonly kind: 'acted'
  readonly at: number
  /** Each act has its own. */
  readonly reason: string
  readonly told: 'done' | 'refused' | 'open'
}

export type Entry = Asked | Answered | Disturbed | Acted

export class History {
  readonly entries: Entry[] = []
  readonly #file: WriteStream
  #closed = false

  constructor(path: string) {
    this.#file = createWriteStream(path)
  }

  add(entry: Entry): void {
    // A run that failed ends while its callers still hear answers.
    if (this.#closed) return
    this.entries.push(entry)
    this.#file.write(`${JSON.stringify(entry)}\n`)
  }

  close(): Promise<void> {
    this.#closed = true
    return new Promise((resolve) => this.#file.end(resolve))
  }
}
