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
    await this.#when(() => {
      if (this.#alone) return false
      this.#together += 1
      return true
    })
    try {
      return await work()
    } finally {
      this.#together -= 1
      this.#wake()
    }
  }

  async alone<T>(work: () => Promise<T>): Promise<T> {
    await this.#when(() => {
      if (this.#alone) return false
      // Nobody else begins from here on.
      this.#alone = true
      return true
    })
    await this.#when(() => this.#together === 0)
    try {
      return await work()
    } finally {
      this.#alone = false
      this.#wake()
    }
  }

  /** `enter` takes the turn in the same instant in which it finds it free, or returns false. */
  async #when(enter: () => boolean): Promise<void> {
    while (!enter()) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake()
  }
}
