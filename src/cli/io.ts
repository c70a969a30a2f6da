/**
 * What a command may use of the outside: texts out, the environment, and the wish to stop.
 *
 * @module
 */

export interface CliIo {
  /** Results: one line or one JSON value. */
  out(text: string): void
  /** Progress and errors, so that `--json` and `--dry-run` leave clean output. */
  err(text: string): void
  /** Shows this in place of what it showed before; undefined = nobody watches. */
  readonly progress?: ((text: string) => void) | undefined
  readonly env: Readonly<Record<string, string | undefined>>
  /** Folder from which configuration and the user's packages are found. */
  readonly cwd: string
  /** Aborts at the first SIGINT or SIGTERM. */
  readonly signal: AbortSignal
}

/** What the command line ends with. */
export const EXIT = { done: 0, failed: 1, usage: 2 } as const

/** Wrong use or set-up, told in one line that says what to do; exit code 2. */
export class UsageError extends Error {}

/** It failed, and what was printed says so: nothing is added to it. Exit code 1. */
export class ToldError extends Error {}
