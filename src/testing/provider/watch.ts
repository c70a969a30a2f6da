/**
 * Watch: waits for something to become true, looking again whenever something has changed.
 *
 * @module
 */

/** How long a test waits and how it gives up. */
export interface WaitOptions {
  /** Milliseconds. Default 10_000; 1 to 600_000. */
  readonly timeoutMs?: number | undefined
  readonly signal?: AbortSignal | undefined
}

export class Watch {
  readonly #waiting = new Set<() => void>()
  /** Grows with every change. */
  version = 0

  changed(): void {
    this.version += 1
    for (const look of this.#waiting) look()
  }

  /** Resolves when `reached` is true, at once or after a change. Rejects after `timeoutMs`, with what `describe` says. */
  until(reached: () => boolean, timeoutMs: number, describe: () => string, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (act: () => void) => {
        clearTimeout(timer)
        this.#waiting.delete(look)
        signal?.removeEventListener('abort', aborted)
        act()
      }
      const look = () => {
        try {
          if (reached()) end(resolve)
        } catch (cause) {
          end(() => reject(new Error('the predicate of a wait has thrown', { cause })))
        }
      }
      const aborted = () => end(() => reject(signal?.reason as Error))
      const timer = setTimeout(() => {
        end(() => reject(new Error(`not reached within ${timeoutMs} ms: ${describe()}`)))
      }, timeoutMs)
      this.#waiting.add(look)
      signal?.addEventListener('abort', aborted)
      if (signal?.aborted === true) aborted()
      else look()
    })
  }
}
