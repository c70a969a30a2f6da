/**
 * A database of its own with our tables and an `orders` table, and what the tests of the guard do to it.
 */
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

/** A pool whose clients ask `intercept` before each query: what it returns is sent instead. */
export function interceptedPool(
  pool: pg.Pool,
  intercept: (text: string, client: pg.PoolClient) => string | undefined,
): pg.Pool {
  const wrap = (client: pg.PoolClient): pg.PoolClient =>
    new Proxy(client, {
      get(target, name) {
        if (name !== 'query') {
          const value: unknown = Reflect.get(target, name)
          return typeof value === 'function' ? value.bind(target) : value
        }
        return (...args: unknown[]) => {
          const [first] = args
          const text = typeof first === 'string' ? first : String((first as { text?: unknown }).text)
          const other = intercept(text, target)
          const query: unknown = Reflect.get(target, 'query')
          return Reflect.apply(query as (...all: unknown[]) => unknown, target, other === undefined ? args : [other])
        }
      },
    })
  return new Proxy(pool, {
    get(target, name) {
      if (name === 'connect') return () => target.connect().then(wrap)
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}
