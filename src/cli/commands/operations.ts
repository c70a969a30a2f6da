/**
 * `effectively-once list`, `resolve`, `redrive`: leased operations and quarantined messages that wait for a person, and
 * what a person does about them. An act names who acts and why; both are written to the table `audit` with it.
 * (R45, R46, I16)
 *
 * @module
 */

import { type Command, InvalidArgumentError, Option } from 'commander'
import { found, notApplied } from '../../effect/options.ts'
import type { ResolveReference } from '../../job/resolve.ts'
import type { Once } from '../../once.ts'
import type { Quarantined, QuarantineReference, RedrivenMessage } from '../../repair/quarantine.ts'
import type { JobRecord, JobSummary } from '../../store/job.ts'
import { findConfig, loadConfig } from '../config.ts'
import { withDatabase } from '../database.ts'
import { type CliIo, ToldError, UsageError } from '../io.ts'

interface Flags {
  readonly config?: string
  readonly schema?: string
  readonly json?: boolean
}

interface ListFlags extends Flags {
  readonly only?: (typeof LISTS)[number]
  readonly state?: readonly string[]
  readonly limit?: number
  readonly after?: string
}

interface ActFlags extends Flags {
  readonly actor: string
  readonly reason: string
}

interface RedriveFlags extends ActFlags {
  readonly outbox?: boolean
  readonly inbox?: boolean
  readonly override?: boolean
}

interface ResolveFlags extends ActFlags {
  readonly effect?: string
  readonly providerKey?: string
  readonly found?: string
  readonly notApplied?: boolean
}

const STATES = ['processing', 'unknown', 'parked'] as const

const LISTS = ['operations', 'outbox', 'inbox'] as const

interface Listed {
  readonly operations: readonly JobSummary[]
  readonly outbox: Quarantined['outbox']
  readonly inbox: Quarantined['inbox']
}

export function list(program: Command, io: CliIo): void {
  const what = 'list what waits for a person: leased operations that are not finished, and quarantined messages'
  common(program.command('list').description(what))
    .addOption(new Option('--only <list>', 'one of the lists (default: all three)').choices(LISTS))
    .option('--state <state...>', `operations of ${STATES.join(', ')} (default: unknown parked)`)
    .option('--limit <n>', 'most lines of each list (default: 100; at most 1000)', wholeNumber)
    .option('--after <id>', 'go on behind this one, with --only operations or --only inbox')
    .action(async (flags: ListFlags) => tellList(await withOnce(flags, io, (once) => listed(once, flags)), flags, io))
}

async function listed(once: Once<unknown>, { only, state: states, limit, after }: ListFlags): Promise<Listed> {
  if (after !== undefined && (only === undefined || only === 'outbox')) {
    throw new UsageError('--after goes with --only operations or --only inbox')
  }
  if (states !== undefined && only !== undefined && only !== 'operations') {
    throw new UsageError('--state is of operations')
  }
  const filter = { states: states as readonly JobRecord['state'][] | undefined, limit, after }
  const operations = only === undefined || only === 'operations' ? await once.unfinished(filter) : []
  if (only === 'operations' || states !== undefined) return { operations, outbox: [], inbox: [] }
  return { operations, ...(await once.quarantined({ of: only, limit, after })) }
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
  const what = 'make operations that nobody holds due with a fresh budget, or send messages back from quarantine'
  act(program.command('redrive <id...>').description(what))
    .option('--outbox', 'the ids are of messages of the outbox')
    .option('--inbox', 'the ids are of deliveries in quarantine, as `list` prints them')
    .option('--override', 'with --inbox: also when the mark of the message is past its retention')
    .action(async (ids: readonly string[], flags: RedriveFlags) => {
      const reference = quarantineReference(ids, flags)
      const { actor, reason } = flags
      if (reference !== undefined) {
        tellRedriven(await withOnce(flags, io, (once) => once.redriveMessages(reference, { actor, reason })), flags, io)
        return
      }
      const [id, another] = ids
      if (id === undefined || another !== undefined) {
        throw new UsageError('redrive takes one operation; several ids go with --outbox or --inbox')
      }
      tellAct(await withOnce(flags, io, (once) => once.redrive({ id }, { actor, reason })), flags, io)
    })
}

function quarantineReference(ids: readonly string[], flags: RedriveFlags): QuarantineReference | undefined {
  const { outbox = false, inbox = false, override } = flags
  if (outbox && inbox) throw new UsageError('redrive takes either --outbox or --inbox')
  if (override === true && !inbox) throw new UsageError('--override goes with --inbox')
  if (inbox) return { inbox: ids, override }
  return outbox ? { outbox: ids } : undefined
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

function tellList({ operations, outbox, inbox }: Listed, flags: ListFlags, io: CliIo): void {
  if (flags.json === true) {
    const plain = operations.map((job) => ({ ...job, fence: String(job.fence) }))
    io.out(JSON.stringify({ operations: plain, outbox, inbox }))
    return
  }
  const line = (...parts: readonly string[]) => {
    io.out(
      parts
        .map(printable)
        .filter((part) => part !== '')
        .join('  '),
    )
  }
  for (const { id, state, scope, kind, ageMs, reason, unknownEffects } of operations) {
    const effects = unknownEffects.map(({ name, ageMs: age }) => `${name} (${seconds(age)})`).join(', ')
    line(id, state, seconds(ageMs), scope, kind ?? 'closure', reason ?? '-', effects)
  }
  for (const { id, quarantinedAtMs, topic, reason, lastError, stopsKey } of outbox) {
    const since = new Date(quarantinedAtMs).toISOString()
    line(id, 'outbox', since, topic, reason, cut(lastError ?? ''), stopsKey ? 'stops its key' : '')
  }
  for (const { id, quarantinedAt, consumer, topic, messageId, reason, lastError } of inbox) {
    line(id, 'inbox', quarantinedAt.toISOString(), consumer, topic, messageId ?? '-', reason, cut(lastError ?? ''))
  }
  if (operations.length + outbox.length + inbox.length === 0) io.out('nothing waits')
}

/** One line for each id; a message that was not sent back is a failure of the command. */
function tellRedriven(answers: readonly RedrivenMessage[], flags: Flags, io: CliIo): void {
  const left = answers.filter(({ answer }) => answer !== 'redriven').length
  if (flags.json === true) {
    io.out(JSON.stringify({ answers }))
    if (left > 0) throw new ToldError()
    return
  }
  for (const { id, answer } of answers) io.out(`${id}  ${answer}`)
  if (left > 0) throw new NothingDone(`${left} of ${answers.length} were not sent back`)
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
  notFound: 'there is no such unfinished operation or effect; messages are redriven with --outbox or --inbox',
}

class NothingDone extends Error {}

/** Names and errors come from senders, handlers and brokers: they must not break a line or steer the terminal. */
function printable(text: string): string {
  return text.replace(/[\p{C}\p{Z}]+/gu, ' ').trim()
}

function cut(text: string): string {
  return text.length > 200 ? `${text.slice(0, 200)}...` : text
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)}s`
}

function wholeNumber(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidArgumentError('It takes a whole number.')
  return value
}
