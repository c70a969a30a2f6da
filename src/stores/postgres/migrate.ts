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

import { performance } from 'node:perf_hooks'
import { isOnceError, OnceError } from '../../shared/errors.ts'
import { quoted, SCHEMA_DEFAULT, schemaName } from '../../shared/identifier.ts'
import { integerOption, refuseUnknownOptions, signalOption } from '../../shared/options.ts'
import { backoffMs, pause } from '../../shared/waiting.ts'
import type {
  AppliedMigration,
  MigrateOptions,
  MigrationFile,
  MigrationReport,
  MigrationStep,
} from '../../store/migration.ts'
import { classify, sqlState } from './classify.ts'
import type { PgClient, PgPool } from './handle.ts'
import { owned } from './own-types.ts'
import { lookAtSchema, refuseSchema, shippedMigrations, withClient } from './schema.ts'

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
const BETWEEN = { minMs: 100, maxMs: 2_000 }
const CONNECTION_LOSSES_MAX = 5

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

/** {@link migrate} with the files given. */
export async function runMigrations(
  pool: PgPool,
  files: readonly MigrationFile[],
  options: PostgresMigrateOptions = {},
): Promise<MigrationReport> {
  refuseUnknownOptions('migrate', options, ['schema', 'dryRun', 'signal', 'lockTimeoutMs', 'waitMs'])
  const schema = schemaName('schema', options.schema ?? SCHEMA_DEFAULT)
  const lockTimeoutMs = integerOption('lockTimeoutMs', options.lockTimeoutMs, { min: 10, max: 10_000, default: 1_000 })
  const waitMs = integerOption('waitMs', options.waitMs, { min: 100, max: 3_600_000, default: 60_000 })
  const signal = signalOption('signal', options.signal)
  const dryRun = options.dryRun === true

  const first = await withClient(pool, signal, (client) => lookAtSchema(client, schema, files))
  refuseSchema(first, schema)
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
  await client.query({ text: 'begin isolation level read committed' })
  const { rows } = await client.query(
    owned({
      text: `/* effectively-once:migrate.lock */
select set_config('search_path', 'pg_catalog, pg_temp', true), set_config('lock_timeout', $2, true),
  set_config('statement_timeout', $3, true), set_config('idle_in_transaction_session_timeout', $4, true),
  pg_try_advisory_xact_lock(hashtextextended('effectively-once migrate ' || $1, 0)) as locked`,
      values: [schema, String(lockTimeoutMs), String(STATEMENT_MS), String(IDLE_MS)],
    }),
  )
  if (rows[0]?.['locked'] !== true) {
    await client.query({ text: 'rollback' })
    return { kind: 'busy', why: 'another node is migrating' }
  }
  const look = await lookAtSchema(client, schema, files)
  refuseSchema(look, schema)
  const { plan, applied, schemaExists } = look
  const file = plan.kind === 'pending' ? plan.files[0] : undefined
  if (file === undefined) {
    await client.query({ text: 'rollback' })
    return { kind: 'current', applied }
  }
  const step = stepOf(file, schema)
  // Not `if not exists`: that asks for the right to create schemas even when a DBA has made this one.
  if (!schemaExists) await client.query({ text: `create schema ${quoted(schema)}` })
  await client.query({ text: step.sql })
  await client.query({
    text: `/* effectively-once:migrate.record */
insert into ${quoted(schema)}.migration (version, name, checksum, breaking) values ($1, $2, $3, $4)`,
    values: [file.version, file.name, file.checksum, file.breaking],
  })
  const { command } = await client.query({ text: 'commit' })
  // PostgreSQL answers COMMIT of a failed transaction with this tag and no error.
  if (command !== 'COMMIT') return { kind: 'busy', why: `COMMIT of ${file.name} was answered with ${command}` }
  return { kind: 'applied', step }
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
  if (sqlState(error) === '55P03') return { kind: 'busy', why: 'a lock was held by others', cause: error }
  if (classify(error) === 'retry') return { kind: 'busy', why: 'it lost against others', cause: error }
  // Whether the COMMIT of a lost connection arrived is read from the version table in the next turn.
  if (isOnceError(error, 'STORE_UNAVAILABLE')) return { kind: 'lost', why: 'the connection was lost', cause: error }
  throw error
}
