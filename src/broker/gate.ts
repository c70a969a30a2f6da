/**
 * Gate: waiters that look at a condition again whenever somebody says that it may have changed.
 *
 * @module
 */

export class Gate {
  readonly #waiting = new Set<() => void>()

  /** Lets every waiter look again, soon. */
  wake(): void {
    for (const look of this.#waiting) look()
  }

  /**
   * Resolves when `passes` returns true. Rejects with what `passes` throws, or with the signal's reason.
   * Bounded by the signal alone.
   */
  async until(passes: () => boolean, signal?: AbortSignal): Promise<void> {
    for (;;) {
      signal?.throwIfAborted()
      if (passes()) return
      await new Promise<void>((resolve) => {
        const look = () => {
          this.#waiting.delete(look)
          signal?.removeEventListener('abort', look)
          resolve()
        }
        this.#waiting.add(look)
        signal?.addEventListener('abort', look)
      })
    }
  }
}
