/**
 * Conformance: contracts are proved by cases that are data, so that any test runner can run them: ours, or that of
 * somebody who writes an adapter.
 *
 * @module
 */

/** One claim about an adapter. `run` throws (node:assert) when it does not hold. */
export interface ConformanceCase<Harness> {
  /** A claim in the present tense, with the ids that it proves. */
  readonly name: string
  /** A capability that the case needs; a harness without it skips the case and says why. */
  readonly needs?: string | undefined
  run(harness: Harness): Promise<void>
}

/** What every harness can say about itself. */
export interface Capabilities {
  /** undefined = it can; otherwise the reason why it cannot. */
  lacks(need: string): string | undefined
}
