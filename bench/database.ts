/**
 * Database: a private PostgreSQL whose commits are on disk before they are answered, and the user's side of the
 * measured work: one table, one prepared insert, the bare transaction around it.
 *
 * @module
 */

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { type PostgresService, startPostgres } from '../src/testing/services/postgres.ts'
import { type CpuMeter, cpuMeter } from './cpu.ts'

export interface BenchDatabase {
  readonly url: string
  /** CPU of this process and of the server. */
  readonly cpu: CpuMeter
  /** Read from the server, not from what we asked for. */
  readonly durable: boolean
  readonly version: string
  pool(options?: pg.PoolConfig): pg.Pool
  /** Writes the dirty pages out, so that the next measurement does not pay for the one before. */
  settle(): Promise<void>
  stop(): Promise<void>
}

/** As in PostgreSQL's own advice for a small server: the figures are about work, not about a starved cache. */
const SETTINGS = { shared_buffers: '1GB', max_wal_size: '4GB' }

export async function startDatabase(): Promise<BenchDatabase> {
  const server = await startPostgres({ settings: SETTINGS })
  try {
    return await prepare(server)
  } catch (error) {
    await server.stop()
    throw error
  }
}

async function prepare(server: PostgresService): Promise<BenchDatabase> {
  const pools: pg.Pool[] = []
  const pool = (options: pg.PoolConfig = {}): pg.Pool => {
    const made = new pg.Pool({ connectionString: server.url, max: 20, idleTimeoutMillis: 0, ...options })
    pools.push(made)
    return made
  }
  const own = pool({ max: 1 })
  const { rows } = await own.query(
    `select current_setting('fsync') as fsync, current_setting('synchronous_commit') as commit,
            current_setting('full_page_writes') as pages, current_setting('server_version') as version`,
  )
  await own.query(
    'create table orders (id bigint generated always as identity primary key, customer text not null, ' +
      'amount_cents integer not null, created_at timestamptz not null default clock_timestamp())',
  )
  const [pid] = readFileSync(join(server.dataDir, 'postmaster.pid'), 'utf8').split('\n')
  return {
    url: server.url,
    cpu: cpuMeter(Number(pid)),
    durable: rows[0].fsync === 'on' && rows[0].commit === 'on' && rows[0].pages === 'on',
    version: rows[0].version,
    pool,
    async settle() {
      await own.query('checkpoint')
    },
    async stop() {
      await Promise.all(pools.map((one) => one.end()))
      await server.stop()
    },
  }
}

/** The user's own statement, the same prepared one on both sides. */
export const orderInsert = (customer: string): { name: string; text: string; values: unknown[] } => ({
  name: 'order_insert',
  text: 'insert into orders (customer, amount_cents) values ($1, $2) returning id',
  values: [customer, 4_200],
})

/** What a careful user without us writes: three awaited trips. */
export async function bareTransaction(pool: pg.Pool): Promise<string> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const { rows } = await client.query(orderInsert('c-7'))
    await client.query('commit')
    client.release()
    return rows[0].id
  } catch (error) {
    client.release(true)
    throw error
  }
}
