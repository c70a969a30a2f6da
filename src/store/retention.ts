/**
 * Store contract, what the halves have in common for removing rows whose time is over: one batch a call, each a short
 * transaction of its own, by the store's clock. Several may purge at once: a row that somebody else holds is left to
 * them, so nobody waits and nobody is waited for longer than one batch. (I13, R40)
 *
 * @module
 */

/** One batch. */
export interface PurgeBatch {
  /** Milliseconds for which a row stays after its time. */
  readonly graceMs: number
  /** Most rows; 1 to 4_000. */
  readonly limit: number
  /**
   * What the batch before it gave: this one goes on there, so that the places of removed rows are not walked again while
   * an old snapshot keeps them. Rows that were held by somebody else are met by the next purge.
   */
  readonly after?: string | undefined
}

export interface Purged {
  /** Rows removed. */
  readonly removed: number
  /** Where the next batch goes on; undefined = nothing more is due. */
  readonly after: string | undefined
}
