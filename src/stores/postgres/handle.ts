/**
 * Handle: what we call on the user's node-postgres objects, declared structurally so that any version fits and
 * nothing is installed twice.
 *
 * @module
 */

/** A statement as node-postgres takes it; `name` makes it a prepared statement. */
export interface PgStatement {
  text: string
  values?: unknown[]
  name?: string
  /** Columns of the answer, all of type text, for statements of ours that travel in a batch (./batch.ts). */
  columns?: readonly string[]
}

/** A result as node-postgres gives it. */
export interface PgResult {
  command: string
  rowCount: number | null
  rows: Record<string, unknown>[]
}

/** The subset of a `pg.PoolClient` that we call. */
export interface PgClient {
  query(statement: PgStatement): Promise<PgResult>
  release(error?: Error | boolean): void
}

/** The subset of a `pg.Pool` that we call. */
export interface PgPool {
  connect(): Promise<PgClient>
}

/** The client type that a pool hands out: the type of `tx` in every callback. */
export type ClientOf<P> = P extends { connect: { (): Promise<infer C>; (...args: never[]): void } }
  ? C
  : P extends { connect(): Promise<infer C> }
    ? C
    : never
