/**
 * Path: one thing that this package does, as a drill of our own code, and what its paths share.
 *
 * A path says what is done and what must be there once. Which steps that takes, and so which windows it has, nobody writes
 * down: the trace of a run says it.
 */
import pg from 'pg'
import { createOnce, type Once, type OnceOptions } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type DrillFile, type DrillProvider, defineDrill } from '../../src/testing/index.ts'

/** Paths of one file, by name. */
export type Paths = Readonly<Record<string, DrillFile>>

/** The shortest lease there is: what a death leaves is taken over after it. */
export const LEASE_MS = 1_000

export interface Opened {
  readonly pool: pg.Pool
  readonly once: Once<pg.PoolClient>
}

/** What a process of a path starts with. */
export function open(
  databaseUrl: string,
  { pipeline = true, ...options }: { readonly pipeline?: boolean } & Partial<OnceOptions<pg.PoolClient>> = {},
): Opened {
  const pool = new pg.Pool({ connectionString: databaseUrl, pipeline, max: 6, connectionTimeoutMillis: 5_000 })
  // A connection that is cut fails its statements; it must not end the process as well.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return { pool, once: createOnce({ store: postgres(pool), ...options }) }
}

const TABLES = `
  create table orders (id int generated always as identity primary key, ref text not null);
  create table payments (id int generated always as identity primary key, ref text not null)`

type Prepare = (opened: Opened) => unknown

/** Our tables, and those of the handlers. Nothing in them forbids a second row. */
export function setUp(prepare: Prepare = () => {}): DrillFile['setUp'] {
  return async ({ databaseUrl }) => {
    const opened = open(databaseUrl)
    await opened.once.migrate()
    await opened.pool.query(TABLES)
    await prepare(opened)
    await opened.pool.end()
  }
}

/** A path whose work is one job. */
export function path<P extends DrillProvider = DrillProvider>(
  job: (opened: Opened, urls: { readonly amqpUrl: string; readonly providerUrl: string }) => Promise<unknown>,
  {
    prepare,
    open: options,
    ...file
  }: Omit<DrillFile<P>, 'start' | 'setUp'> & {
    readonly prepare?: Prepare
    readonly open?: Parameters<typeof open>[1]
  },
): DrillFile {
  return defineDrill({
    setUp: setUp(prepare),
    start({ databaseUrl, ...urls }) {
      const opened = open(databaseUrl, options)
      return () => job(opened, urls)
    },
    ...file,
    // What a dead owner held is waited for, and what is taken over may die again.
    settleMs: file.settleMs ?? 6 * LEASE_MS,
  }) as unknown as DrillFile
}

/** How many rows a table has. */
export const rowsIn = (table: string): string => `select count(*) from ${table}`

/** Outcomes that are stored for good. */
export const OUTCOMES = `select count(*) from effectively_once.operation where state in ('succeeded', 'rejected')`

/** Adds an order; its id. */
export async function order(tx: pg.PoolClient | pg.Pool, ref: string): Promise<number> {
  const { rows } = await tx.query<{ id: number }>('insert into orders (ref) values ($1) returning id', [ref])
  return Number(rows[0]?.id)
}

/** Says what is wrong when two answers to one question differ. */
export function same(first: unknown, second: unknown): void {
  const [a, b] = [JSON.stringify(first), JSON.stringify(second)]
  if (a !== b) throw new Error(`a repeat was told ${b}, the first one ${a}`)
}
