/**
 * `effectively-once purge`: removes what is past its retention, once; for a timer of the system.
 *
 * @module
 */

import { type Command, InvalidArgumentError } from 'commander'
import type { PurgeOptions, PurgeReport } from '../../retention/purge.ts'
import { findConfig, loadConfig } from '../config.ts'
import { withDatabase } from '../database.ts'
import { type CliIo, UsageError } from '../io.ts'

interface PurgeFlags {
  readonly config?: string
  readonly schema?: string
  readonly batchRows?: number
  readonly restMs?: number
  readonly timeMs?: number
  readonly historyMs?: number
  readonly json?: boolean
}

export function purge(program: Command, io: CliIo): void {
  program
    .command('purge')
    .description('remove expired outcomes, answers and marks, in short batches; any number may run')
    .option('--config <file>', 'configuration that exports `once` (default: effectively-once.config.{mjs,js,ts})')
    .option('--schema <name>', 'schema of the tables, with DATABASE_URL (default: effectively_once)')
    .option('--batch-rows <n>', 'most rows of a transaction (default: 1000; at most 4000)', wholeNumber)
    .option('--rest-ms <ms>', 'pause between transactions (default: 10)', wholeNumber)
    .option('--time-ms <ms>', 'longest time; the rest is left to the next run (default: 60000)', wholeNumber)
    .option('--history-ms <ms>', 'remove published messages that are older than this as well', wholeNumber)
    .option('--json', 'print one line of JSON')
    .addHelpText('after', '\nWithout a configuration file the database is the one that DATABASE_URL names.')
    .action(async (flags: PurgeFlags) => tell(await report(flags, io), flags, io))
}

async function report(flags: PurgeFlags, io: CliIo): Promise<PurgeReport> {
  const { batchRows, restMs, timeMs, historyMs, schema } = flags
  const options: PurgeOptions = { batchRows, restMs, timeMs, historyMs, signal: io.signal }
  const config = findConfig(flags.config, io)
  if (config === undefined) {
    return withDatabase(io, async (pool) => {
      const [{ createOnce }, { postgres }] = await Promise.all([
        import('../../once.ts'),
        import('../../stores/postgres/index.ts'),
      ])
      return createOnce({ store: postgres(pool, { schema }) }).purge(options)
    })
  }
  if (schema !== undefined) {
    throw new UsageError(`--schema goes with DATABASE_URL alone; ${config} says its schema itself`)
  }
  const { once } = await loadConfig(config)
  return once.purge(options)
}

function tell(report: PurgeReport, flags: PurgeFlags, io: CliIo): void {
  if (flags.json === true) {
    io.out(JSON.stringify(report))
    return
  }
  const { records, responses, marks, history, lagMs, complete } = report
  const also = flags.historyMs === undefined ? '' : `, ${history} published messages`
  io.out(`removed ${records} outcomes and ${marks} marks${also}; erased ${responses} answers`)
  if (!complete) {
    const lag = Math.max(lagMs.operations, lagMs.marks, lagMs.history)
    io.err(`not everything was removed; the oldest row that is left could have been removed ${lag} ms ago`)
  }
}

function wholeNumber(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidArgumentError('It takes a whole number.')
  return value
}
