/**
 * Lookup: look-ups of one moment leave as one statement.
 *
 * While a statement is under way the next callers gather; with one caller nothing waits. Bounded in ids per
 * statement; each caller gets its own record or its own error.
 *
 * @module
 */

/** Most ids in one statement. */
const IDS_MAX = 500
/** Statements under way at once. */
const IN_FLIGHT_MAX = 2

interface Waiting<R> {
  readonly id: string
  resolve(record: R | undefined): void
  reject(error: unknown): void
}

/** Groups single look-ups by id into `= any(...)` statements. */
export class LookupGroup<R extends { readonly id: string }> {
  readonly #fetch: (ids: readonly string[]) => Promise<readonly R[]>
  #gathered: Waiting<R>[] = []
  #inFlight = 0
  #scheduled = false

  constructor(fetch: (ids: readonly string[]) => Promise<readonly R[]>) {
    this.#fetch = fetch
  }

  find(id: string): Promise<R | undefined> {
    return new Promise((resolve, reject) => {
      this.#gathered.push({ id, resolve, reject })
      this.#schedule()
    })
  }

  #schedule(): void {
    if (this.#scheduled || this.#inFlight >= IN_FLIGHT_MAX || this.#gathered.length === 0) return
    this.#scheduled = true
    // Callers of the same turn of the event loop share the statement.
    setImmediate(() => {
      this.#scheduled = false
      this.#flush()
    })
  }

  #flush(): void {
    const batch = this.#gathered.splice(0, IDS_MAX)
    if (batch.length === 0) return
    this.#inFlight += 1
    const ids = [...new Set(batch.map((waiting) => waiting.id))]
    this.#fetch(ids)
      .then(
        (records) => {
          const byId = new Map(records.map((record) => [record.id, record]))
          for (const waiting of batch) waiting.resolve(byId.get(waiting.id))
        },
        (error: unknown) => {
          for (const waiting of batch) waiting.reject(error)
        },
      )
      .finally(() => {
        this.#inFlight -= 1
        this.#schedule()
      })
    this.#schedule()
  }
}
