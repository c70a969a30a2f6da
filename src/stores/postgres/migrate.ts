/**
 * Migrate: brings one schema of a PostgreSQL database to the version of this release, file by file.
 *
 * Each file runs in a transaction of its own under a transaction-level advisory lock, and its row in the version
 * table commits with it: any number of nodes may migrate at once, a killed one leaves whole files only, and
 * nothing depends on the session, so PgBouncer in transaction mode is fine. A statement that waits for a table
 * lock makes every later reader of that table wait behind it; so a file waits at most `lockTimeoutMs`, gives way,
 * and comes back with jitter. (SC58, B114)
 *
 * @module
 */

import { readdir, readFile } from 'node:fs/promises'
import { performance } from 'node:perf_hooks'
import { isOnceError, OnceError } from '../../shared/errors.ts'
import { identifier, quoted, SCHEMA_DEFAULT } from '../../shared/identifier.ts'
import { integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import { backoffMs, bounded, pause } from '../../shared/waiting.ts'
import {
  type AppliedMigration,
  type MigrateOptions,
  type MigrationFile,
  type MigrationPlan,
  type MigrationReport,
  type MigrationStep,
  parseMigration,
  planMigrations,
} from '../../store/migration.ts'

/** What a statement answers, as far as it is used here. */
interface PgResult {
  readonly command: string
  readonly rows: readonly Readonly<Record<string, unknown>>[]
}

/** What is called of a connection. */
interface PgClient {
  query(text: string, values?: unknown[]): Promise<PgResult>
  release(error?: Error | boolean): void
  on?(event: 'error', listener: (error: Error) => void): unknown
  removeListener?(event: 'error', listener: (error: Error) => void): unknown
}

/** What is called of a pool. */
interface PgPool {
  connect(): Promise<PgClient>
}

/** Options of {@link migrate}. */
export interface PostgresMigrateOptions extends MigrateOptions {
  /** Schema of our tables, made when it is missing. Default `effectively_once`. */
  readonly schema?: string | undefined
  /** How long a statement may wait for a lock before it gives way to live traffic. Default 1_000; 10 to 10_000. */
  readonly lockTimeoutMs?: number | undefined
  /** How long all waiting together may take, for locks and for another migrating node. Default 60_000; 100 to 3_600_000. */
  readonly waitMs?: number | undefined
}

/** A statement of a migration that runs longer than this is stuck. */
const STATEMENT_MS = 600_000
/** A migrating node that vanished gives its lock back after this. */
const IDLE_MS = 60_000
const CONNECT_MS = 15_000
const BETWEEN = { minMs: 100, maxMs: 2_000 }
const CONNECTION_LOSSES_MAX = 5
const SERVER_VERSION_MIN = 140_000

/**
 * Applies the SQL files of this release that the schema does not have yet.
 *
 * Safe to call from every node at start: with nothing to do it is three reads, and needs no right but to read
 * the version table.
 *
 * @throws {OnceError} `SCHEMA_NEWER` a newer release made a breaking change, or an applied file has another content
 *   here; `REPLICA_REFUSED` the pool leads to a standby or a read-only server; `TOO_BUSY` locks could not be had
 *   within `waitMs`, nothing half done; `STORE_UNAVAILABLE` the connection was lost again and again.
 * @throws {TypeError} An unknown option, or `schema` is no plain lower-case identifier. (T9)
 */
export async function migrate(pool: PgPool, options: PostgresMigrateOptions = {}): Promise<MigrationReport> {
  return runMigrations(pool, await shippedMigrations(), options)
}

/**
 * Refuses a database that this release cannot work with. Reads only.
 *
 * @throws {OnceError} `SCHEMA_MISSING` our tables are missing or older; `SCHEMA_NEWER`; `REPLICA_REFUSED`.
 */
export async function checkSchema(
  pool: PgPool,
  options: { readonly schema?: string | undefined; readonly signal?: AbortSignal | undefined } = {},
): Promise<void> {
  const schema = identifier('schema', options.schema ?? SCHEMA_DEFAULT)
  const files = await shippedMigrations()
  const { plan } = await withClient(pool, options.signal, (client) => look(client, schema, files))
  refuse(plan, schema)
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

/** {@link migrate} with the files given. */
export async function runMigrations(
  pool: PgPool,
  files: readonly MigrationFile[],
  options: PostgresMigrateOptions = {},
): Promise<MigrationReport> {
  refuseUnknownOptions('migrate', options, ['schema', 'dryRun', 'signal', 'lockTimeoutMs', 'waitMs'])
  const schema = identifier('schema', options.schema ?? SCHEMA_DEFAULT)
  const lockTimeoutMs = integerOption('lockTimeoutMs', options.lockTimeoutMs, { min: 10, max: 10_000, default: 1_000 })
  const waitMs = integerOption('waitMs', options.waitMs, { min: 100, max: 3_600_000, default: 60_000 })
  const { signal } = options
  const dryRun = options.dryRun === true

  const first = await withClient(pool, signal, (client) => look(client, schema, files))
  refuse(first.plan, schema)
  const before = newest(first.applied)
  const planned = first.plan.kind === 'pending' ? first.plan.files : []
  if (dryRun || planned.length === 0) {
    const steps = planned.map((file) => stepOf(file, schema))
    return { schema, dryRun, before, after: newest([...first.applied, ...steps]), steps }
  }

  const steps: MigrationStep[] = []
  const deadline = performance.now() + waitMs
  let waits = 0
  let losses = 0
  for (;;) {
    const turn = await withClient(pool, signal, (client) => applyNext(client, schema, files, lockTimeoutMs)).catch(
      (error: unknown): Turn => afterError(error),
    )
    if (turn.kind === 'current') return { schema, dryRun, before, after: newest(turn.applied), steps }
    if (turn.kind === 'applied') {
      steps.push(turn.step)
      waits = 0
      continue
    }
    if (turn.kind === 'lost' && ++losses > CONNECTION_LOSSES_MAX) {
      throw new OnceError(
        'STORE_UNAVAILABLE',
        `migration of schema ${schema}: the connection was lost ${losses} times`,
        {
          cause: turn.cause,
        },
      )
    }
    const delayMs = backoffMs(++waits, BETWEEN)
    if (performance.now() + delayMs > deadline) {
      throw new OnceError('TOO_BUSY', `migration of schema ${schema}: ${turn.why} for ${waitMs} ms (waitMs)`, {
        cause: turn.cause,
      })
    }
    await pause(delayMs, signal)
    signal?.throwIfAborted()
  }
}

/** How one turn ended: a file committed, nothing left to do, or a reason to come back later. */
type Turn =
  | { readonly kind: 'applied'; readonly step: MigrationStep }
  | { readonly kind: 'current'; readonly applied: readonly AppliedMigration[] }
  | { readonly kind: 'busy' | 'lost'; readonly why: string; readonly cause?: unknown }

/** Runs the first missing file and its row in the version table in one transaction. */
async function applyNext(
  client: PgClient,
  schema: string,
  files: readonly MigrationFile[],
  lockTimeoutMs: number,
): Promise<Turn> {
  await client.query('begin isolation level read committed')
  const { rows } = await client.query(
    `/* effectively-once:migrate.lock */
select set_config('search_path', 'pg_catalog, pg_temp', true), set_config('lock_timeout', $2, true),
  set_config('statement_timeout', $3, true), set_config('idle_in_transaction_session_timeout', $4, true),
  pg_try_advisory_xact_lock(hashtextextended('effectively-once migrate ' || $1, 0)) as locked`,
    [schema, String(lockTimeoutMs), String(STATEMENT_MS), String(IDLE_MS)],
  )
  if (rows[0]?.['locked'] !== true) {
    await client.query('rollback')
    return { kind: 'busy', why: 'another node is migrating' }
  }
  const { plan, applied, schemaExists } = await look(client, schema, files)
  refuse(plan, schema)
  const file = plan.kind === 'pending' ? plan.files[0] : undefined
  if (file === undefined) {
    await client.query('rollback')
    return { kind: 'current', applied }
  }
  const step = stepOf(file, schema)
  // Not `if not exists`: that asks for the right to create schemas even when a DBA has made this one.
  if (!schemaExists) await client.query(`create schema ${quoted(schema)}`)
  await client.query(step.sql)
  await client.query(
    `/* effectively-once:migrate.record */
insert into ${quoted(schema)}.migration (version, name, checksum, breaking) values ($1, $2, $3, $4)`,
    [file.version, file.name, file.checksum, file.breaking],
  )
  const { command } = await client.query('commit')
  if (command !== 'COMMIT') throw new Error(`migration ${file.name}: COMMIT was answered with ${command}`)
  return { kind: 'applied', step }
}

interface Look {
  readonly plan: MigrationPlan
  readonly applied: readonly AppliedMigration[]
  readonly schemaExists: boolean
}

/** Reads what the schema has. The server's role is asked each time: a fail-over can come between two files. */
async function look(client: PgClient, schema: string, files: readonly MigrationFile[]): Promise<Look> {
  const { rows } = await client.query(
    `/* effectively-once:migrate.look */
select pg_catalog.pg_is_in_recovery() as standby,
  pg_catalog.current_setting('transaction_read_only') = 'on' as read_only,
  pg_catalog.current_setting('server_version_num')::int as server_version,
  pg_catalog.to_regnamespace($1) is not null as schema_exists,
  pg_catalog.to_regclass($1 || '.migration') is not null as table_exists`,
    [quoted(schema)],
  )
  const facts = rows[0] ?? {}
  if (facts['standby'] === true) throw new OnceError('REPLICA_REFUSED', 'the server is a standby')
  if (facts['read_only'] === true) throw new OnceError('REPLICA_REFUSED', 'the server or the role is read-only')
  if (Number(facts['server_version']) < SERVER_VERSION_MIN) {
    throw new Error(`PostgreSQL 14 or newer is needed, this server is ${String(facts['server_version'])}`)
  }
  const schemaExists = facts['schema_exists'] === true
  const applied = facts['table_exists'] === true ? await readApplied(client, schema) : []
  return { plan: planMigrations(files, applied), applied, schemaExists }
}

async function readApplied(client: PgClient, schema: string): Promise<readonly AppliedMigration[]> {
  const { rows } = await client.query(
    `/* effectively-once:migrate.applied */
select version, name, checksum, breaking from ${quoted(schema)}.migration order by version`,
  )
  return rows.map((row) => ({
    version: Number(row['version']),
    name: String(row['name']),
    checksum: String(row['checksum']),
    breaking: row['breaking'] === true,
  }))
}

function refuse(plan: MigrationPlan, schema: string): void {
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

function stepOf(file: MigrationFile, schema: string): MigrationStep {
  // `::schema` would be a cast; everything else that says `:schema` is ours.
  const sql = file.sql.replaceAll(/(?<!:):schema\b/g, quoted(schema))
  return { version: file.version, name: file.name, breaking: file.breaking, sql }
}

function newest(applied: readonly { readonly version: number }[]): number | null {
  return applied.reduce<number | null>((most, { version }) => (most === null || version > most ? version : most), null)
}

/** What an error means for the next turn; errors that a repeat cannot mend are thrown on. */
function afterError(error: unknown): Turn {
  const code = error instanceof Error && 'code' in error ? String(error.code) : undefined
  if (code === '55P03') return { kind: 'busy', why: 'a lock was held by others', cause: error }
  if (code === '40P01' || code === '40001') return { kind: 'busy', why: 'it lost against others', cause: error }
  // Whether the COMMIT of a lost connection arrived is read from the version table in the next turn.
  if (isOnceError(error, 'STORE_UNAVAILABLE')) return { kind: 'lost', why: 'the connection was lost', cause: error }
  throw error
}

/** STORE_UNAVAILABLE for a connection that could not be made or was lost; any other error unchanged. */
function unavailable(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof OnceError) return error
  const code = 'code' in error && typeof error.code === 'string' ? error.code : undefined
  const lost =
    code === undefined
      ? /connection|client has encountered/i.test(error.message)
      : /^(08...|57P0[123]|53300|E[A-Z]+)$/.test(code)
  return lost ? new OnceError('STORE_UNAVAILABLE', 'the connection failed or was lost', { cause: error }) : error
}

/**
 * Runs `use` on a client of its own; afterwards the client is released, or destroyed after an error or an abort
 * so that nobody inherits an open transaction.
 */
async function withClient<T>(
  pool: PgPool,
  signal: AbortSignal | undefined,
  use: (client: PgClient) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted()
  const connecting = pool.connect()
  const connected = await bounded(connecting, CONNECT_MS).catch((error: unknown) => {
    throw unavailable(error)
  })
  if (connected.kind === 'timeout') {
    connecting.then(
      (late) => late.release(true),
      () => {},
    )
    throw new OnceError('STORE_UNAVAILABLE', `no connection within ${CONNECT_MS} ms`)
  }
  const client = connected.value
  // A connection that dies between two statements tells only its listeners; without one it ends the process.
  client.on?.('error', ignore)
  const aborted = new AbortController()
  try {
    const result = await Promise.race([use(client), rejection(signal, aborted.signal)])
    client.removeListener?.('error', ignore)
    client.release()
    return result
  } catch (error) {
    client.release(true)
    throw unavailable(error)
  } finally {
    aborted.abort()
  }
}

const ignore = (): void => {}

/** Rejects with the signal's reason when it aborts; forgets the signal when `over` aborts. */
function rejection(signal: AbortSignal | undefined, over: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason as Error), { once: true, signal: over })
  })
}
