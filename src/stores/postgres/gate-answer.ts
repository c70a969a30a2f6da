/**
 * Gate answer: what the gate of one transaction said, for whoever waits for it.
 *
 * @module
 */

import type { PgResult } from './handle.ts'

export class GateAnswer {
  /** The gate's row, when the work may run. */
  passed: PgResult | undefined
  /** Why it may not, or why the gate could not be asked. */
  refusedBy: Error | undefined
  #waiting: Promise<PgResult> | undefined
  #tell: (() => void) | undefined

  get undecided(): boolean {
    return this.passed === undefined && this.refusedBy === undefined
  }

  /** The first answer counts. `results` are those of BEGIN and the gate, or of the gate alone. */
  decide(error: Error | null, results: readonly PgResult[]): void {
    if (!this.undecided) return
    const answer = results.at(-1)
    if (error === null && answer !== undefined) this.passed = answer
    else this.refusedBy = error ?? new Error('the gate gave no answer')
    this.#tell?.()
  }

  /** Resolves when the gate lets the work run, rejects when it refuses. Never an unhandled rejection; no bound. */
  wait(): Promise<PgResult> {
    if (this.#waiting === undefined) {
      this.#waiting = new Promise((resolve, reject) => {
        this.#tell = () => {
          if (this.passed !== undefined) resolve(this.passed)
          else reject(this.refusedBy ?? new Error('the gate gave no answer'))
        }
        if (!this.undecided) this.#tell()
      })
      this.#waiting.catch(() => {})
    }
    return this.#waiting
  }
}
