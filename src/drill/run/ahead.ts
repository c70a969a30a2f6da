/**
 * Ahead: keeps a few of something ready that takes time to make, such as loaded processes.
 *
 * @module
 */

export class Ahead<T> {
  readonly #make: () => Promise<T>
  readonly #discard: (thing: T) => Promise<void>
  readonly #ready: Promise<T>[] = []
  readonly #size: number
  #closed = false

  constructor(size: number, make: () => Promise<T>, discard: (thing: T) => Promise<void>) {
    this.#make = make
    this.#discard = discard
    this.#size = size
    this.#fill()
  }

  /** The oldest one; another is begun. */
  take(): Promise<T> {
    const taken = this.#ready.shift() ?? this.#make()
    this.#fill()
    return taken
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all(this.#ready.splice(0).map((making) => making.then(this.#discard).catch(() => {})))
  }

  #fill(): void {
    while (!this.#closed && this.#ready.length < this.#size) {
      const making = this.#make()
      making.catch(() => {})
      this.#ready.push(making)
    }
  }
}
