/**
 * Bench: `npm run bench -- SUITE [--json]`. Figures are ratios within one run; see docs/benchmarks.md.
 *
 * @module
 */

import { readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { Argument, Command, InvalidArgumentError } from 'commander'
import { guardSuite } from './guard.ts'
import { httpSuite } from './http.ts'
import { importSuite } from './import.ts'
import { inboxSuite } from './inbox.ts'
import { outboxSuite } from './outbox.ts'
import { relaySuite } from './relay.ts'
import type { Report } from './report.ts'
import { runSuite } from './run.ts'
import type { Suite } from './suite.ts'

const SUITES: Readonly<Record<string, Suite>> = {
  guard: guardSuite,
  outbox: outboxSuite,
  relay: relaySuite,
  inbox: inboxSuite,
  http: httpSuite,
  run: runSuite,
  import: importSuite,
}

interface Flags {
  readonly json: boolean
  readonly pairs?: number
  readonly only?: string
  readonly messages?: number
  readonly strict: boolean
}

const program = new Command('bench')
  .description('Measures one suite on private, durable services and compares it with its goals.')
  .addArgument(new Argument('<suite>', 'what to measure').choices(Object.keys(SUITES)))
  .option('--json', 'one line of JSON, last', false)
  .option('--pairs <n>', 'pairs of slices, or repetitions', atLeast(1))
  .option('--messages <n>', 'fewer messages than the goals are about (relay, inbox)', atLeast(1_000))
  .option('--only <name>', 'only the result of this name')
  .option('--strict', 'exit 1 when a goal is missed', false)
  .action(async (name: string, flags: Flags) => {
    const suite = SUITES[name]
    if (suite === undefined) throw new InvalidArgumentError(name)
    console.log(`${name}: ${process.version} on ${cpus().length} CPUs (${cpus()[0]?.model ?? 'unknown'})`)
    const measured = await suite({ say: (line) => console.log(line), ...flags })
    const report: Report = {
      suite: name,
      versions: { ...packageVersions(), ...measured.versions },
      durable: measured.durable,
      results: measured.results,
    }
    console.log(
      Object.entries(report.versions)
        .map((entry) => entry.join(' '))
        .join(', '),
    )
    if (flags.strict && report.results.some((result) => result.ok === false)) process.exitCode = 1
    if (flags.json) console.log(JSON.stringify(report))
  })

function atLeast(min: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (!Number.isInteger(value) || value < min || value > 1_000_000) {
      throw new InvalidArgumentError(`takes ${min} to 1000000`)
    }
    return value
  }
}

function packageVersions(): Record<string, string> {
  const versionOf = (folder: string): string => {
    const text = readFileSync(new URL(`../${folder}package.json`, import.meta.url), 'utf8')
    const { version }: { version: string } = JSON.parse(text)
    return version
  }
  return {
    'effectively-once': versionOf(''),
    node: process.versions.node,
    pg: versionOf('node_modules/pg/'),
    amqplib: versionOf('node_modules/amqplib/'),
  }
}

await program.parseAsync()
