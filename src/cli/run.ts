/**
 * Run: one command line from its words to its exit code.
 *
 * @module
 */

import { Command, CommanderError } from 'commander'
import { isOnceError } from '../shared/errors.ts'
import * as commands from './commands.ts'
import { type CliIo, EXIT, ToldError, UsageError } from './io.ts'

const EXIT_CODES = `
Exit codes: 0 done, 1 failed, 2 wrong use or set-up, 130 or 143 stopped by SIGINT or SIGTERM.`

/** Runs the words behind the program's name and returns the exit code. Never throws. */
export async function run(words: readonly string[], version: string, io: CliIo): Promise<number> {
  const program = new Command('effectively-once')
    .description('One intent, one outcome: tools around the tables of effectively-once.')
    .version(version)
    .addHelpText('after', EXIT_CODES)
    .exitOverride()
    .configureOutput({ writeOut: (text) => io.out(text.trimEnd()), writeErr: (text) => io.err(text.trimEnd()) })
  for (const register of Object.values(commands)) register(program, io)
  // Sub-commands do not inherit it from a parent that got it later.
  inherit(program)
  try {
    await program.parseAsync(words, { from: 'user' })
    return EXIT.done
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.done : EXIT.usage
    if (error instanceof ToldError) return EXIT.failed
    tell(error, words.includes('--json'), io)
    return error instanceof UsageError || error instanceof TypeError ? EXIT.usage : EXIT.failed
  }
}

function inherit(parent: Command): void {
  for (const command of parent.commands) {
    command.exitOverride().configureOutput(parent.configureOutput())
    inherit(command)
  }
}

function tell(error: unknown, json: boolean, io: CliIo): void {
  const message = error instanceof Error ? error.message : String(error)
  if (isOnceError(error)) {
    const { code, retryable, hint, docs } = error
    if (json) io.out(JSON.stringify({ error: { code, message, retryable, hint, docs } }))
    else io.err([`error: ${message}`, ...causeOf(error), hint, docs].join('\n  '))
    return
  }
  if (json) io.out(JSON.stringify({ error: { message } }))
  else io.err(`error: ${message}`)
}

/** Why there is no connection: the driver's own words, which at this point name hosts, users and databases only. */
function causeOf(error: Error & { readonly code: string }): readonly string[] {
  const { code, cause } = error
  return code === 'STORE_UNAVAILABLE' && cause instanceof Error && cause.message !== '' ? [cause.message] : []
}
