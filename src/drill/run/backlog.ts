/**
 * Backlog: work for which nobody waits, such as removing what a run has left, as long as there is not too much of it.
 *
 * @module
 */

export class Backlog {
  readonly #size: number
  readonly #going = new Set<Promise<void>>()
  #failure: { readonly error: unknown } | undefined

  /** @param size - From so much on, whoever adds to it waits. */
  constructor(size: number) {
    this.#size = size
  }

  async add(work: () => Promise<void>): Promise<void> {
    const going = work().then(
      () => {},
      (error: unknown) => {
        this.#failure ??= { error }
      },
    )
    this.#going.add(going)
    void going.then(() => this.#going.delete(going))
    if (this.#going.size >= this.#size) await Promise.race(this.#going)
  }

  /** Resolves when nothing is left. @throws whatever failed first. */
  async done(): Promise<void> {
    await Promise.all(this.#going)
    if (this.#failure !== undefined) throw this.#failure.error
  }
}
