/**
 * The door `effectively-once/postgres`: the store on the PostgreSQL pool that the application already has.
 *
 * @module
 */

import { quoted, SCHEMA_DEFAULT, schemaName } from '../../shared/identifier.ts'
import { booleanOption, integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import type { Store } from '../../store/store.ts'
import { Connections } from './connections.ts'
import type { ClientOf, PgClient, PgPool } from './handle.ts'
import { PostgresInbox } from './inbox.ts'
import { PostgresJobs } from './jobs.ts'
import { migrate } from './migrate.ts'
import { PostgresOperations, type PostgresSettings } from './operations.ts'
import { PostgresOutbox } from './outbox.ts'
import { PostgresProgress } from './progress.ts'
import { checkSchema } from './schema.ts'

export { type MadeOrExisting, type MadeOrExistingOptions, madeOrExisting, uniqueViolation } from './existing.ts'
export type { ClientOf, PgClient, PgPool, PgResult, PgStatement } from './handle.ts'
export type { PostgresMigrateOptions } from './migrate.ts'

export interface PostgresOptions {
  /** Schema of our tables. Default `effectively_once`. Lower-case letters, digits and `_`. */
  readonly schema?: string | undefined
  /**
   * Most of our transactions at once. Default: the pool's `max` less one, so that the application's own queries find
   * a connection; 9 when the pool does not tell.
   */
  readonly transactionsMax?: number | undefined
  /**
   * Longest wait for a connection, milliseconds; 1 to 60_000. It holds for the wait behind our other transactions and
   * for the pool together; whoever is not let in is told TOO_BUSY. Default 5_000, or the pool's own
   * `connectionTimeoutMillis` where that is shorter.
   */
  readonly acquireTimeoutMs?: number | undefined
  /** Longest wait for the answer to one of our own trips, milliseconds. Default 10_000; 100 to 300_000. */
  readonly answerTimeoutMs?: number | undefined
  /**
   * Whether our statements are prepared by name. Default true; switched off by itself when a pooler in transaction mode
   * turns out not to know them.
   */
  readonly preparedStatements?: boolean | undefined
}

const WAITERS_MAX = 10_000
const ACQUIRE_TIMEOUT_MS = 5_000
const POOL_MAX_UNKNOWN = 10

/**
 * The store on a `pg.Pool`. A pool made with `pipeline: true` gives full speed; a stock pool works too.
 *
 * @throws {TypeError} An unknown option, a value out of bounds, a schema that is no identifier (T9), or no pool.
 * @example
 * const store = postgres(new pg.Pool({ connectionString, pipeline: true }))
 */
export function postgres<P extends PgPool>(pool: P, options: PostgresOptions = {}): Store<ClientOf<P> & PgClient> {
  // A pg.Client has connect too, and is one connection for everybody.
  if (typeof pool?.connect !== 'function' || 'escapeIdentifier' in pool) {
    throw new TypeError('postgres() takes a pg.Pool')
  }
  refuseUnknownOptions('postgres', options, [
    'schema',
    'transactionsMax',
    'acquireTimeoutMs',
    'answerTimeoutMs',
    'preparedStatements',
  ])
  if (poolOption(pool, 'binary') === true) {
    throw new TypeError('postgres() takes a pool without binary: true, with which the driver misreads bytes and ids')
  }
  const schema = schemaName('schema', options.schema === undefined ? SCHEMA_DEFAULT : options.schema)
  const settings: PostgresSettings = {
    schema: quoted(schema),
    answerTimeoutMs: integerOption('answerTimeoutMs', options.answerTimeoutMs, {
      min: 100,
      max: 300_000,
      default: 10_000,
    }),
    prepare: booleanOption('preparedStatements', options.preparedStatements, true),
  }
  keepProcessAlive(pool)
  const connections = new Connections<ClientOf<P> & PgClient>(pool, {
    limit: integerOption('transactionsMax', options.transactionsMax, {
      min: 1,
      max: 10_000,
      default: Math.max(1, poolMax(pool) - 1),
    }),
    acquireTimeoutMs: integerOption('acquireTimeoutMs', options.acquireTimeoutMs, {
      min: 1,
      max: 60_000,
      default: poolPatienceMs(pool),
    }),
    waitersMax: WAITERS_MAX,
  })
  return {
    name: 'postgres',
    operations: new PostgresOperations(connections, settings),
    outbox: new PostgresOutbox(pool, settings),
    inbox: new PostgresInbox(connections, settings),
    jobs: new PostgresJobs(pool, poolMax(pool), connections, settings),
    progress: new PostgresProgress(connections, settings),
    migrate: async (migrateOptions = {}) => {
      // Before they are spread, which would drop a signal given in their place.
      refuseUnknownOptions('migrate', migrateOptions, ['dryRun', 'signal', 'lockTimeoutMs', 'waitMs'])
      return await migrate(pool, { ...migrateOptions, schema })
    },
    check: () => checkSchema(pool, { schema }),
  }
}

function poolMax(pool: PgPool): number {
  const max = poolOption(pool, 'max')
  return typeof max === 'number' ? max : POOL_MAX_UNKNOWN
}

/** Who has told the pool how long to wait for a connection means the wait in front of it too. */
function poolPatienceMs(pool: PgPool): number {
  const patienceMs = poolOption(pool, 'connectionTimeoutMillis')
  const told = typeof patienceMs === 'number' && Number.isFinite(patienceMs) && patienceMs >= 1
  return told ? Math.min(ACQUIRE_TIMEOUT_MS, Math.ceil(patienceMs)) : ACQUIRE_TIMEOUT_MS
}

function poolOption(pool: PgPool, name: string): unknown {
  const configured: unknown = 'options' in pool ? pool.options : undefined
  return typeof configured === 'object' && configured !== null ? (Reflect.get(configured, name) as unknown) : undefined
}

/**
 * An idle connection that the server drops makes the pool emit `error`, and an `error` nobody listens to ends the
 * process. The pool replaces the connection by itself, so there is nothing to do but to listen.
 */
function keepProcessAlive(pool: PgPool): void {
  if ('on' in pool && typeof pool.on === 'function') pool.on('error', () => {})
}
