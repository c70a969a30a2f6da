import pg from 'pg'
import { createLedger, type Ledger, type NewEntry, transfer } from '../../src/ledger/index.ts'
import { migrate } from '../../src/stores/postgres/migrate.ts'
import { createDatabase } from '../database.ts'

/** A database with our tables, a pool and a ledger on it. */
export interface Books {
  readonly url: string
  readonly pool: pg.Pool
  readonly ledger: Ledger
  /** A connection of its own, with BEGIN sent. */
  begin(isolation?: string): Promise<pg.Client>
  close(): Promise<void>
}

export async function openBooks(): Promise<Books> {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 16 })
  pool.on('error', () => {})
  await migrate(pool)
  const clients: pg.Client[] = []
  return {
    url: database.url,
    pool,
    ledger: createLedger(pool, { settleMs: 5_000 }),
    async begin(isolation = 'read committed') {
      const client = new pg.Client({ connectionString: database.url })
      client.on('error', () => {})
      await client.connect()
      clients.push(client)
      await client.query(`begin isolation level ${isolation}`)
      return client
    },
    async close() {
      await Promise.all(clients.map((client) => client.end()))
      await pool.end()
      await database.drop()
    },
  }
}

export function charge(id: string, amount: bigint | string, from = 'customer:7', to = 'revenue'): NewEntry {
  return { id, movements: transfer(from, to, amount, 'EUR') }
}
