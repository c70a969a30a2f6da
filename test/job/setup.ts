/**
 * A database of its own with our tables and one of bookings, a provider that can fail, and what tests ask of both.
 */
import pg from 'pg'
import { createOnce, type Once } from '../../src/index.ts'
import { type PostgresOptions, postgres } from '../../src/stores/postgres/index.ts'
import { type FakeProvider, type FakeProviderOptions, fakeProvider } from '../../src/testing/provider/index.ts'
import { createDatabase } from '../database.ts'
import type { At } from './charge.ts'

export interface StoredJob {
  readonly id: string
  readonly state: string
  readonly fence: string | null
  readonly claims: number | null
  readonly failures: number | null
  readonly isLeased: boolean
}

export interface JobSetup {
  readonly url: string
  readonly admin: pg.Pool
  readonly provider: FakeProvider
  readonly at: At
  /** A new `once` on a pool of its own. */
  once(pool?: pg.PoolConfig, store?: PostgresOptions): Once<pg.PoolClient>
  /** Bookings with this reference. */
  booked(reference: string): Promise<readonly { readonly id: number; readonly charge: string }[]>
  /** Messages about this reference that wait in the outbox. */
  messages(reference: string): Promise<number>
  /** The operations whose key was the only one of this scope. */
  jobs(scope: readonly string[]): Promise<readonly StoredJob[]>
  /** Moves every stored instant into the past, as if time had passed. */
  advance(ms: number): Promise<void>
  close(): Promise<void>
}

export async function openJobs(options: FakeProviderOptions = {}): Promise<JobSetup> {
  const [database, provider] = await Promise.all([createDatabase(), fakeProvider(options)])
  const admin = new pg.Pool({ connectionString: database.url, max: 4 })
  admin.on('error', () => {})
  const pools: pg.Pool[] = [admin]
  await createOnce({ store: postgres(admin) }).migrate()
  await admin.query('create table bookings (id int generated always as identity, ref text not null, charge text)')
  return {
    url: database.url,
    admin,
    provider,
    at: { url: provider.url, profile: provider.profile },
    once(config = {}, store = {}) {
      const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 10, ...config })
      pool.on('error', () => {})
      pools.push(pool)
      return createOnce({ store: postgres(pool, store) })
    },
    async booked(reference) {
      const { rows } = await admin.query('select id, charge from bookings where ref = $1 order by id', [reference])
      return rows
    },
    async messages(reference) {
      const { rows } = await admin.query(
        'select count(*)::int as n from effectively_once.outbox where payload::json ->> $2 = $1',
        [reference, 'reference'],
      )
      return rows[0].n
    },
    async jobs(scope) {
      const { rows } = await admin.query(
        `select id, state, fence, claims, failures, coalesce(lease_until > clock_timestamp(), false) as "isLeased"
         from effectively_once.operation where scope = $1 order by created_at`,
        [JSON.stringify(scope)],
      )
      return rows
    },
    async advance(ms) {
      const { rows } = await admin.query(
        `select table_name, column_name from information_schema.columns
         where table_schema = 'effectively_once' and table_name in ('operation', 'step', 'job_event')
           and data_type like 'timestamp%'`,
      )
      for (const { table_name, column_name } of rows) {
        const [table, column] = [pg.escapeIdentifier(table_name), pg.escapeIdentifier(column_name)]
        await admin.query(
          `update effectively_once.${table} set ${column} = ${column} - $1::bigint * interval '1 millisecond'`,
          [ms],
        )
      }
    },
    async close() {
      await Promise.all(pools.map((pool) => pool.end()))
      await Promise.all([database.drop(), provider.stop()])
    },
  }
}
