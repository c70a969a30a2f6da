/**
 * Group: callers of one moment share one statement of many rows, and one commit.
 *
 * While two statements of a sort are under way the next callers gather; one caller alone waits for nothing. Rows are
 * sorted by their key, and the same key never lies twice in one statement. Each caller has its own answer: when the
 * server refuses a statement, its rows are halved until the bad one is alone (PROTOCOL C15).
 *
 * @module
 */

import { classify, sqlState } from './classify.ts'

/** Statements of one sort under way at once. */
const IN_FLIGHT_MAX = 2
/** Most rows of a statement. A claim takes a lock for each, and the server's table of locks is shared by all. */
const ROWS_MAX = 100
/** A statement is closed when its rows are about this big, in characters. A bigger row goes alone. */
const CHARS_MAX = 1_000_000

export interface GroupOptions<T, A> {
  keyOf(item: T): string
  /** About how many characters it sends, beyond a constant. */
  sizeOf(item: T): number
  /**
   * Sends one statement; the answers in the order of `items`. It rejects only when nothing was written for any of them: it
   * may be run again for a part of them. What has to be asked for one item alone is answered with a promise.
   */
  run(items: readonly T[]): Promise<readonly (A | Promise<A>)[]>
}

interface Waiting<T, A> {
  readonly item: T
  readonly key: string
  resolve(answer: A | Promise<A>): void
  reject(error: unknown): void
}

export class Group<T, A> {
  readonly #options: GroupOptions<T, A>
  #gathered: Waiting<T, A>[] = []
  #inFlight = 0
  #scheduled = false

  constructor(options: GroupOptions<T, A>) {
    this.#options = options
  }

  add(item: T): Promise<A> {
    return new Promise((resolve, reject) => {
      this.#gathered.push({ item, key: this.#options.keyOf(item), resolve, reject })
      this.#schedule()
    })
  }

  #schedule(): void {
    if (this.#scheduled || this.#inFlight >= IN_FLIGHT_MAX || this.#gathered.length === 0) return
    this.#scheduled = true
    // Behind what runs now and the promises that it settles: whoever they bring shares the statement.
    process.nextTick(() => {
      this.#scheduled = false
      const batch = this.#next()
      if (batch.length === 0) return
      this.#inFlight += 1
      void this.#settle(batch).finally(() => {
        this.#inFlight -= 1
        this.#schedule()
      })
      this.#schedule()
    })
  }

  /** Takes what goes into the next statement; the rest stays in its order. */
  #next(): readonly Waiting<T, A>[] {
    const taken = new Map<string, Waiting<T, A>>()
    const left: Waiting<T, A>[] = []
    let size = 0
    for (const waiting of this.#gathered) {
      const own = this.#options.sizeOf(waiting.item)
      const fits = taken.size === 0 || (taken.size < ROWS_MAX && size + own <= CHARS_MAX)
      if (!fits || taken.has(waiting.key)) {
        left.push(waiting)
        continue
      }
      size += own
      taken.set(waiting.key, waiting)
    }
    this.#gathered = left
    return [...taken.values()].sort((one, other) => (one.key < other.key ? -1 : 1))
  }

  /** Never rejects: every caller is told. */
  async #settle(batch: readonly Waiting<T, A>[]): Promise<void> {
    try {
      const answers = await this.#options.run(batch.map((waiting) => waiting.item))
      for (const [index, waiting] of batch.entries()) waiting.resolve(answers[index] as A)
    } catch (error) {
      if (batch.length === 1 || !isOfOneRow(error)) {
        for (const waiting of batch) waiting.reject(error)
        return
      }
      const half = batch.length >> 1
      await this.#settle(batch.slice(0, half))
      await this.#settle(batch.slice(half))
    }
  }
}

/** A value that the server or the encoder refuses, or a conflict of one row: the rest may pass without it. */
function isOfOneRow(error: unknown): boolean {
  if (error instanceof TypeError) return true
  return sqlState(error) !== undefined && ['other', 'retry', 'conflict'].includes(classify(error))
}
