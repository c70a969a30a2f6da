/**
 * `effectively-once list`, `resolve`, `redrive`: leased operations that wait for a person, and what a person does about
 * them. An act names who acts and why; both are written to the table `audit` with it. (R46, I16)
 *
 * @module
 */

import { type Command, InvalidArgumentError } from 'commander'
import { found, notApplied } from '../../effect/options.ts'
import type { ResolveReference } from '../../job/resolve.ts'
import type { Once } from '../../once.ts'
import type { JobRecord, JobSummary } from '../../store/job.ts'
import { findConfig, loadConfig } from '../config.ts'
import { withDatabase } from '../database.ts'
import { type CliIo, UsageError } from '../io.ts'

interface Flags {
  readonly config?: string
  readonly schema?: string
  readonly json?: boolean
}

interface ListFlags extends Flags {
  readonly state?: readonly string[]
  readonly limit?: number
  readonly after?: string
}

interface ActFlags extends Flags {
  readonly actor: string
  readonly reason: string
}

interface ResolveFlags extends ActFlags {
  readonly effect?: string
  readonly providerKey?: string
  readonly found?: string
  readonly notApplied?: boolean
}

const STATES = ['processing', 'unknown', 'parked'] as const

export function list(program: Command, io: CliIo): void {
  common(program.command('list').description('list leased operations that are not finished, oldest first'))
    .option('--state <state...>', `of ${STATES.join(', ')} (default: unknown parked)`)
    .option('--limit <n>', 'most lines (default: 100; at most 1000)', wholeNumber)
    .option('--after <id>', 'go on behind this operation')
    .action(async (flags: ListFlags) => {
      const { state: states, limit, after } = flags
      const filter = { states: states as readonly JobRecord['state'][] | undefined, limit, after }
      tellList(await withOnce(flags, io, (once) => once.unfinished(filter)), flags, io)
    })
}

export function resolve(program: Command, io: CliIo): void {
  act(program.command('resolve [id]').description('attach a proven result to an effect, or to a whole operation'))
    .option('--effect <name>', 'the effect of this operation; without it the operation itself is resolved')
    .option('--provider-key <key>', 'the effect whose call carried this key, instead of an id')
    .option('--found <json>', 'it has happened, and this is its result')
    .option('--not-applied', 'it is proven that it has not happened')
    .action(async (id: string | undefined, flags: ResolveFlags) => {
      const reference = referenceOf(id, flags)
      const proof = proofOf(flags)
      const { actor, reason } = flags
      tellAct(await withOnce(flags, io, (once) => once.resolve(reference, proof, { actor, reason })), flags, io)
    })
}

export function redrive(program: Command, io: CliIo): void {
  act(
    program.command('redrive <id>').description('make an operation that nobody holds due, with a fresh budget'),
  ).action(async (id: string, flags: ActFlags) => {
    const { actor, reason } = flags
    tellAct(await withOnce(flags, io, (once) => once.redrive({ id }, { actor, reason })), flags, io)
  })
}

function common(command: Command): Command {
  return command
    .option('--config <file>', 'configuration that exports `once` (default: effectively-once.config.{mjs,js,ts})')
    .option('--schema <name>', 'schema of the tables, with DATABASE_URL (default: effectively_once)')
    .option('--json', 'print one line of JSON')
    .addHelpText('after', '\nWithout a configuration file the database is the one that DATABASE_URL names.')
}

function act(command: Command): Command {
  return common(command)
    .requiredOption('--actor <who>', 'who acts; written to the audit')
    .requiredOption('--reason <why>', 'why; written to the audit')
}

async function withOnce<T>(flags: Flags, io: CliIo, use: (once: Once<unknown>) => Promise<T>): Promise<T> {
  const config = findConfig(flags.config, io)
  if (config === undefined) {
    return withDatabase(io, async (pool) => {
      const [{ createOnce }, { postgres }] = await Promise.all([
        import('../../once.ts'),
        import('../../stores/postgres/index.ts'),
      ])
      return use(createOnce({ store: postgres(pool, { schema: flags.schema }) }) as Once<unknown>)
    })
  }
  if (flags.schema !== undefined) {
    throw new UsageError(`--schema goes with DATABASE_URL alone; ${config} says its schema itself`)
  }
  const { once } = await loadConfig(config)
  return use(once)
}

function referenceOf(id: string | undefined, { effect, providerKey }: ResolveFlags): ResolveReference {
  if (providerKey !== undefined && id === undefined && effect === undefined) return { providerKey }
  if (providerKey === undefined && id !== undefined) return { id, effect }
  throw new UsageError('resolve takes the id of an operation (with --effect), or --provider-key alone')
}

function proofOf(flags: ResolveFlags): ReturnType<typeof notApplied> | ReturnType<typeof found<unknown>> {
  if ((flags.found === undefined) === (flags.notApplied !== true)) {
    throw new UsageError('resolve takes either --found <json> or --not-applied')
  }
  if (flags.found === undefined) return notApplied()
  try {
    return found<unknown>(JSON.parse(flags.found))
  } catch {
    throw new UsageError('--found takes JSON, for instance \'{"id":"ch_1"}\' or null')
  }
}

function tellList(jobs: readonly JobSummary[], flags: Flags, io: CliIo): void {
  if (flags.json === true) {
    io.out(JSON.stringify({ operations: jobs.map((job) => ({ ...job, fence: String(job.fence) })) }))
    return
  }
  for (const { id, state, scope, kind, ageMs, reason, unknownEffects } of jobs) {
    const effects = unknownEffects.map(({ name, ageMs: age }) => `${name} (${seconds(age)})`).join(', ')
    const told = [id, state, seconds(ageMs), scope, kind ?? 'closure', reason ?? '-', effects]
    io.out(told.filter((part) => part !== '').join('  '))
  }
  if (jobs.length === 0) io.out('nothing waits')
}

/** An act that changed nothing is a failure of the command: whoever runs it wanted it done. */
function tellAct(answer: string, flags: Flags, io: CliIo): void {
  const hint = HINTS[answer]
  if (hint !== undefined) throw new NothingDone(`${answer}: ${hint}`)
  io.out(flags.json === true ? JSON.stringify({ answer }) : answer)
}

const HINTS: Readonly<Record<string, string>> = {
  busy: 'an owner works on it at this moment; nothing was changed',
  decided: 'it has its answer already; nothing was changed',
  notFound: 'there is no such unfinished operation or effect',
}

class NothingDone extends Error {}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)}s`
}

function wholeNumber(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidArgumentError('It takes a whole number.')
  return value
}
