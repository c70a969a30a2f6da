/**
 * Store contract, progress: how far a stream or a schedule has come, stored with what was done on the way.
 *
 * A line of progress has a number that grows by one with each advance. An advance names the number that it goes on from,
 * so of all that go on from the same place one commits, and nobody goes back. (R37)
 *
 * @module
 */

/** Names one line of progress. */
export interface ProgressIdentity {
  /** UUID made of scope and name. */
  readonly id: string
  /** JSON text of the scope. */
  readonly scope: string
  readonly name: string
}

export interface ProgressRecord {
  /** 0 = never advanced. */
  readonly number: number
  /** JSON text; null = never advanced. */
  readonly position: string | null
  /** The store's clock at the time of the answer, milliseconds since 1970. */
  readonly nowMs: number
  /** Milliseconds since the last advance; null = never advanced. */
  readonly ageMs: number | null
}

export interface ProgressStore<Tx> {
  /** Reads from the primary. @throws {OnceError} STORE_UNAVAILABLE, REPLICA_REFUSED, SCHEMA_MISSING. */
  read(id: string): Promise<ProgressRecord>
  /**
   * Advances to `from` + 1 in the caller's transaction, with its COMMIT. `fenced`: it is not at `from` any more; nothing
   * was written, and the transaction is to be rolled back.
   *
   * @throws {OnceError} NOT_A_TRANSACTION; the errors of a statement in the caller's transaction.
   */
  advanceIn(tx: Tx, identity: ProgressIdentity, from: number, position: string): Promise<'advanced' | 'fenced'>
}
