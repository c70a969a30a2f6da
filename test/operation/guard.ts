/**
 * A database of its own with our tables and an `orders` table, and what the tests of the guard do to it.
 */
import type { Socket } from 'node:net'
import pg from 'pg'
import { createOnce, type Once, type OnceOptions } from '../../src/index.ts'
import { type PostgresOptions, postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export interface Guard {
  readonly url: string
  /** Pool of the tests themselves; the guard has its own. */
  readonly admin: pg.Pool
  /** A new `once` on a pool of its own; both end with `close`. */
  once(pool?: pg.PoolConfig, store?: PostgresOptions, options?: GuardOptions): Once<pg.PoolClient>
  /** How many orders have this reference. */
  count(ref: string): Promise<number>
  /** How many records there are for operations with this first part of the scope. */
  records(tenant: string): Promise<number>
  close(): Promise<void>
}

type GuardOptions = Omit<OnceOptions<pg.PoolClient>, 'store'>

export async function openGuard(): Promise<Guard> {
  const database = await createDatabase()
  const admin = new pg.Pool({ connectionString: database.url, max: 4 })
  admin.on('error', () => {})
  const pools: pg.Pool[] = [admin]
  await createOnce({ store: postgres(admin) }).migrate()
  await admin.query('create table orders (id int generated always as identity primary key, ref text not null)')
  return {
    url: database.url,
    admin,
    once(config = {}, store = {}, options = {}) {
      const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 10, ...config })
      pools.push(pool)
      return createOnce({ store: postgres(pool, store), ...options })
    },
    async count(ref) {
      const { rows } = await admin.query('select count(*)::int as n from orders where ref = $1', [ref])
      return rows[0].n
    },
    async records(tenant) {
      const { rows } = await admin.query(
        `select count(*)::int as n from effectively_once.operation where scope::json ->> 0 = $1`,
        [tenant],
      )
      return rows[0].n
    },
    async close() {
      await Promise.all(pools.map((pool) => pool.end()))
      await database.drop()
    },
  }
}

/** The two ways in which a pool can send; the guard must hold on both. */
export const POOLS: readonly (readonly [name: string, config: pg.PoolConfig])[] = [
  ['pipelined', { pipeline: true }],
  ['stock', { pipeline: false }],
]

export const insertOrder = (tx: pg.PoolClient, ref: string): Promise<pg.QueryResult<{ id: number }>> =>
  tx.query('insert into orders (ref) values ($1) returning id', [ref])

/** Waits until `condition` holds, at most `ms`. */
export async function until(condition: () => Promise<boolean> | boolean, ms = 10_000): Promise<void> {
  const deadline = performance.now() + ms
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not so within ${ms} ms: ${String(condition)}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

/**
 * Spoils `statement` on its way out, `times` times, so that the server answers it with a syntax error; what left in the
 * same packet is as it was. Sockets are where it is caught, because a batch is no statement that the driver knows.
 */
export function spoil(pool: pg.Pool, statement: string, times: number): { left: number } {
  const spoiled = { left: times }
  pool.on('connect', (client) => {
    const { stream } = (client as unknown as { connection: { stream: Socket } }).connection
    const write: (bytes: Buffer | string) => boolean = stream.write.bind(stream)
    stream.write = (bytes: Buffer | string) => {
      const at = spoiled.left === 0 ? -1 : bytes.indexOf(statement)
      if (at === -1 || typeof bytes === 'string') return write(bytes)
      spoiled.left -= 1
      const other = Buffer.from(bytes)
      other.write('~', at + statement.length - 1)
      return write(other)
    }
  })
  return spoiled
}
