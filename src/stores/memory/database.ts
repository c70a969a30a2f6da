/**
 * The memory "database": committed state, a clock, and transactions that apply all their writes at once or not at all.
 *
 * It is the shortest readable reference of what a store does, and good for unit tests. It holds nothing across a
 * restart and nothing across processes, so it is never a store for production.
 *
 * @module
 */

/** The handle that a work gets from the memory store. */
export interface MemoryTx {
  get(name: string): unknown
  put(name: string, value: unknown): void
}

export class MemoryDatabase {
  /** The application's own committed data. */
  readonly data: Map<string, unknown> = new Map()
  #offsetMs = 0

  /** The store's clock, milliseconds. */
  now(): number {
    return Date.now() + this.#offsetMs
  }

  /** Moves the store's clock forward, for tests. */
  advance(ms: number): void {
    this.#offsetMs += ms
  }
}

/** Buffered writes of one transaction. */
export class MemoryTransaction {
  readonly #database: MemoryDatabase
  readonly #writes: Map<string, unknown> = new Map()
  readonly #atEnd: ((committed: boolean) => void)[] = []
  #ended = false

  constructor(database: MemoryDatabase) {
    this.#database = database
  }

  get ended(): boolean {
    return this.#ended
  }

  get(name: string): unknown {
    return this.#writes.has(name) ? this.#writes.get(name) : this.#database.data.get(name)
  }

  put(name: string, value: unknown): void {
    this.#writes.set(name, value)
  }

  /** What is to be done when the transaction ends. */
  atEnd(act: (committed: boolean) => void): void {
    this.#atEnd.push(act)
  }

  /** Applies the writes; nothing can fail in between. */
  commit(): void {
    if (this.#ended) return
    this.#ended = true
    for (const [name, value] of this.#writes) this.#database.data.set(name, value)
    for (const act of this.#atEnd) act(true)
  }

  rollback(): void {
    if (this.#ended) return
    this.#ended = true
    for (const act of this.#atEnd) act(false)
  }
}
