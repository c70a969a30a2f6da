/**
 * `effectively-once migrate`: creates or updates our tables.
 *
 * @module
 */

import type { Command } from 'commander'
import type { MigrationReport } from '../../store/migration.ts'
import { findConfig, loadConfig } from '../config.ts'
import { withDatabase } from '../database.ts'
import { type CliIo, UsageError } from '../io.ts'

interface MigrateFlags {
  readonly config?: string
  readonly schema?: string
  readonly dryRun?: boolean
  readonly json?: boolean
}

export function migrate(program: Command, io: CliIo): void {
  program
    .command('migrate')
    .description('create or update the tables; safe to run from several nodes at once')
    .option('--config <file>', 'configuration that exports `once` (default: effectively-once.config.{mjs,js,ts})')
    .option('--schema <name>', 'schema of the tables, with DATABASE_URL (default: effectively_once)')
    .option('--dry-run', 'print the SQL that would run and change nothing')
    .option('--json', 'print one line of JSON')
    .addHelpText('after', '\nWithout a configuration file the database is the one that DATABASE_URL names.')
    .action(async (flags: MigrateFlags) => tell(await report(flags, io), flags, io))
}

async function report(flags: MigrateFlags, io: CliIo): Promise<MigrationReport> {
  const options = { dryRun: flags.dryRun === true, signal: io.signal }
  const config = findConfig(flags.config, io)
  if (config === undefined) {
    return withDatabase(io, async (pool) => {
      const postgres = await import('../../stores/postgres/migrate.ts')
      return postgres.migrate(pool, { ...options, schema: flags.schema })
    })
  }
  if (flags.schema !== undefined) {
    throw new UsageError(`--schema goes with DATABASE_URL alone; ${config} says its schema itself`)
  }
  const { once } = await loadConfig(config)
  return once.migrate(options)
}

function tell(report: MigrationReport, flags: MigrateFlags, io: CliIo): void {
  const { schema, before, after, steps } = report
  if (flags.json === true) {
    const shown =
      flags.dryRun === true ? steps : steps.map(({ version, name, breaking }) => ({ version, name, breaking }))
    io.out(JSON.stringify({ ...report, steps: shown }))
    return
  }
  if (flags.dryRun === true) {
    for (const step of steps) io.out(step.sql)
    io.err(
      `schema ${schema}: ${steps.length} files would run (version ${at(before)} to ${at(after)}); nothing was changed`,
    )
    return
  }
  for (const step of steps)
    io.out(`applied ${step.name}${step.breaking ? ' (breaking: older releases refuse the schema now)' : ''}`)
  io.out(`schema ${schema} is at version ${at(after)}${steps.length === 0 ? ', nothing to do' : ''}`)
}

const at = (version: number | null): string => (version === null ? 'none' : String(version))
