/**
 * Wake: one loop sleeps, anybody wakes it; a wake that comes while it works is not lost.
 *
 * @module
 */

export class Wake {
  #rung = false
  #sleeper: (() => void) | undefined

  /** Ends the sleep, or the next one at once. */
  ring(): void {
    this.#rung = true
    this.#sleeper?.()
  }

  /** Sleeps until rung, at most `ms`. @returns whether it was rung. */
  sleep(ms: number): Promise<boolean> {
    if (this.#rung) {
      this.#rung = false
      return Promise.resolve(true)
    }
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer)
        this.#sleeper = undefined
        const rung = this.#rung
        this.#rung = false
        resolve(rung)
      }
      const timer = setTimeout(end, ms)
      this.#sleeper = end
    })
  }
}
