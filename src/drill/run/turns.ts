/**
 * Turns: runs go on together, except those that need everything for themselves, such as a restart of the server.
 *
 * @module
 */

export class Turns {
  #together = 0
  #alone = false
  readonly #waiting: (() => void)[] = []

  async together<T>(work: () => Promise<T>): Promise<T> {
    await this.#when(() => !this.#alone)
    this.#together += 1
    try {
      return await work()
    } finally {
      this.#together -= 1
      this.#wake()
    }
  }

  async alone<T>(work: () => Promise<T>): Promise<T> {
    await this.#when(() => !this.#alone)
    // Nobody else begins from here on.
    this.#alone = true
    await this.#when(() => this.#together === 0)
    try {
      return await work()
    } finally {
      this.#alone = false
      this.#wake()
    }
  }

  async #when(free: () => boolean): Promise<void> {
    while (!free()) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake()
  }
}
