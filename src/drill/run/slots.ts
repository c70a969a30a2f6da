/**
 * Slots: so many runs work at once; one that only waits lends its slot to another.
 *
 * @module
 */

export class Slots {
  #free: number
  readonly #waiting: (() => void)[] = []

  constructor(size: number) {
    this.#free = size
  }

  async use<T>(work: () => Promise<T>): Promise<T> {
    await this.#take()
    try {
      return await work()
    } finally {
      this.#give()
    }
  }

  /** Called inside of `use`: whoever is next has the slot until `work` has ended; then it is taken again. */
  async lend<T>(work: Promise<T>): Promise<T> {
    this.#give()
    try {
      return await work
    } finally {
      await this.#take()
    }
  }

  async #take(): Promise<void> {
    if (this.#free > 0) this.#free -= 1
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  #give(): void {
    const next = this.#waiting.shift()
    if (next === undefined) this.#free += 1
    else next()
  }
}
