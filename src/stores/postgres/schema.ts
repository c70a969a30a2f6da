/**
 * Schema: which of our SQL files a database has, and whether this release can work with it.
 *
 * @module
 */

import { readdir, readFile } from 'node:fs/promises'
import { OnceError } from '../../shared/errors.ts'
import { quoted, SCHEMA_DEFAULT, schemaName } from '../../shared/identifier.ts'
import {
  type AppliedMigration,
  type MigrationFile,
  type MigrationPlan,
  parseMigration,
  planMigrations,
} from '../../store/migration.ts'
import { classify, toOnceError } from './classify.ts'
import { Connections } from './connections.ts'
import type { PgClient, PgPool } from './handle.ts'
import { owned } from './own-types.ts'

/** What one look at a schema found. */
export interface SchemaLook {
  readonly plan: MigrationPlan
  readonly applied: readonly AppliedMigration[]
  readonly schemaExists: boolean
  /** As `server_version_num`: 170010 is 17.10. */
  readonly serverVersion: number
}

const ACQUIRE_TIMEOUT_MS = 15_000
const SERVER_VERSION_MIN = 140_000

/**
 * Refuses a database that this release cannot work with. Reads only.
 *
 * @throws {OnceError} `SCHEMA_MISSING` our tables are missing or older; `SCHEMA_NEWER`; `REPLICA_REFUSED`.
 */
export async function checkSchema(
  pool: PgPool,
  options: { readonly schema?: string | undefined; readonly signal?: AbortSignal | undefined } = {},
): Promise<void> {
  const schema = schemaName('schema', options.schema ?? SCHEMA_DEFAULT)
  const files = await shippedMigrations()
  const look = await withClient(pool, options.signal, (client) => lookAtSchema(client, schema, files))
  refuseSchema(look, schema)
  const { plan } = look
  if (plan.kind === 'pending') {
    const names = plan.files.map((file) => file.name).join(', ')
    throw new OnceError('SCHEMA_MISSING', `schema ${schema} lacks ${names}`)
  }
}

let shipped: Promise<readonly MigrationFile[]> | undefined

/** The files of this release in order; `sql/postgres` lies at the same distance from `src` and from `dist`. */
export function shippedMigrations(): Promise<readonly MigrationFile[]> {
  shipped ??= readMigrations(new URL('../../../sql/postgres/', import.meta.url))
  return shipped
}

/** Reads a folder of migration files in ascending order. */
export async function readMigrations(folder: URL): Promise<readonly MigrationFile[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort()
  const files = await Promise.all(
    names.map(async (name) => parseMigration(name, await readFile(new URL(name, folder), 'utf8'))),
  )
  files.forEach((file, index) => {
    if (file.version === files[index - 1]?.version) throw new Error(`two migrations have number ${file.version}`)
  })
  return files
}

/**
 * Reads what the schema has. The server's role is asked each time: a fail-over can come between two files. The catalog is
 * read as tables: `to_regclass` and its like answer from a cache that may not know yet what another node has just
 * committed. (SC58)
 */
export async function lookAtSchema(
  client: PgClient,
  schema: string,
  files: readonly MigrationFile[],
): Promise<SchemaLook> {
  const { rows } = await client.query(
    owned({
      text: `/* effectively-once:migrate.look */
select pg_catalog.pg_is_in_recovery() as standby,
  pg_catalog.current_setting('transaction_read_only') = 'on' as read_only,
  pg_catalog.current_setting('server_version_num')::int as server_version,
  exists (select from pg_catalog.pg_namespace where nspname = $1::text) as schema_exists,
  exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1::text and c.relname = 'migration') as table_exists`,
      values: [schema],
    }),
  )
  const facts = rows[0] ?? {}
  if (facts['standby'] === true) throw new OnceError('REPLICA_REFUSED', 'the server is a standby')
  if (facts['read_only'] === true) throw new OnceError('REPLICA_REFUSED', 'the server or the role is read-only')
  const schemaExists = facts['schema_exists'] === true
  const applied = facts['table_exists'] === true ? await readApplied(client, schema) : []
  return {
    plan: planMigrations(files, applied),
    applied,
    schemaExists,
    serverVersion: Number(facts['server_version']),
  }
}

async function readApplied(client: PgClient, schema: string): Promise<readonly AppliedMigration[]> {
  const { rows } = await client.query(
    owned({
      text: `/* effectively-once:migrate.applied */
select version, name, checksum, breaking from ${quoted(schema)}.migration order by version`,
    }),
  )
  return rows.map((row) => ({
    version: Number(row['version']),
    name: String(row['name']),
    checksum: String(row['checksum']),
    breaking: row['breaking'] === true,
  }))
}

/** Throws when this release must not touch the schema. */
export function refuseSchema(look: SchemaLook, schema: string): void {
  if (look.serverVersion < SERVER_VERSION_MIN) {
    throw new Error(`PostgreSQL 14 or newer is needed, this server is ${look.serverVersion}`)
  }
  const { plan } = look
  if (plan.kind === 'newer') {
    throw new OnceError('SCHEMA_NEWER', `schema ${schema} has ${plan.name}, a breaking change of a newer release`)
  }
  if (plan.kind === 'edited') {
    throw new OnceError(
      'SCHEMA_NEWER',
      `schema ${schema} got ${plan.name} with other content than this release ships: an applied file was edited`,
    )
  }
}

/**
 * Runs `use` on a client of its own, given back afterwards, or destroyed after an error or an abort so that nobody
 * inherits an open transaction.
 *
 * @throws {OnceError} `STORE_UNAVAILABLE` no connection, or it was lost; `REPLICA_REFUSED` a standby said so.
 */
export async function withClient<T>(
  pool: PgPool,
  signal: AbortSignal | undefined,
  use: (client: PgClient) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted()
  const connections = new Connections(pool, { limit: 1, waitersMax: 1, acquireTimeoutMs: ACQUIRE_TIMEOUT_MS })
  const client = await connections.acquire()
  const over = new AbortController()
  try {
    const result = await Promise.race([use(client), rejection(signal, over.signal)])
    connections.release(client)
    return result
  } catch (error) {
    connections.release(client, error instanceof Error ? error : new Error('aborted'))
    if (signal?.aborted === true) throw error
    const kind = classify(error)
    throw kind === 'connection' || kind === 'replica' || kind === 'privilege' ? toOnceError(error, 'migrate') : error
  } finally {
    over.abort()
  }
}

/** Rejects with the signal's reason when it aborts; forgets the signal when `over` aborts. */
function rejection(signal: AbortSignal | undefined, over: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason as Error), { once: true, signal: over })
  })
}
