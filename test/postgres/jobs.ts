/** Leased operations on a database of their own, for what is PostgreSQL's alone. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import type { NewJob, NewStep } from '../../src/store/job.ts'
import type { NewRecord } from '../../src/store/operation.ts'
import { Connections } from '../../src/stores/postgres/connections.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { PostgresJobs } from '../../src/stores/postgres/jobs.ts'
import type { PostgresSettings } from '../../src/stores/postgres/operations.ts'
import { createDatabase } from '../database.ts'

export interface JobsDatabase {
  readonly url: string
  /** Pool of the tests themselves. */
  readonly admin: pg.Pool
  /** Leased operations on a pool of their own. */
  jobs(
    pool?: pg.PoolConfig,
    settings?: Partial<PostgresSettings>,
  ): PostgresJobs<pg.PoolClient> & { readonly pool: pg.Pool }
  close(): Promise<void>
}

export async function openJobs(): Promise<JobsDatabase> {
  const database = await createDatabase()
  const admin = new pg.Pool({ connectionString: database.url, max: 6 })
  admin.on('error', () => {})
  await postgres(admin).migrate()
  await admin.query('create table business (name text not null)')
  const pools: pg.Pool[] = [admin]
  return {
    url: database.url,
    admin,
    jobs(config = {}, settings = {}) {
      const pool = new pg.Pool({ connectionString: database.url, max: 10, pipeline: true, ...config })
      pool.on('error', () => {})
      pools.push(pool)
      const max = pool.options.max
      const connections = new Connections<pg.PoolClient>(pool, {
        limit: Math.max(1, max - 1),
        acquireTimeoutMs: 5_000,
        waitersMax: 10_000,
      })
      const all = { schema: '"effectively_once"', answerTimeoutMs: 10_000, prepare: true, ...settings }
      return Object.assign(new PostgresJobs(pool, max, connections, all), { pool })
    },
    async close() {
      await Promise.all(pools.filter((pool) => !pool.ending).map((pool) => pool.end()))
      await database.drop()
    },
  }
}

export function newJob(over: Partial<NewJob> = {}): NewJob {
  return {
    id: randomUUID(),
    scope: '["tenant"]',
    token: randomUUID(),
    fingerprint: { mode: 'canonical', keyId: null, value: Buffer.alloc(32, 7) },
    kind: null,
    version: 1,
    payload: null,
    ...over,
  }
}

export function recordOf(job: NewJob, over: Partial<NewRecord> = {}): NewRecord {
  const { id, scope, token, fingerprint } = job
  return {
    id,
    scope,
    token,
    fingerprint,
    state: 'succeeded',
    outcomeVersion: 1,
    outcome: '"done"',
    retentionMs: 3_600_000,
    ...over,
  }
}

export function newStep(name: string, over: Partial<NewStep> = {}): NewStep {
  return { name, position: 0, type: 'memo', state: 'done', result: '1', resultVersion: 1, ...over }
}

export const EFFECT = { delivery: 'keyed', request: '{"a":1}', requestHash: 'ab', providerKey: 'pk-1' } as const
