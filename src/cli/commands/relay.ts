/**
 * `effectively-once relay`: a relay as a process of its own, until it is told to stop.
 *
 * A first SIGINT or SIGTERM sends what is pending now, for at most `--drain-ms`, waits for confirms and hands the lanes
 * back; a second one ends the process. Whatever was not sent stays in the outbox for the next relay.
 *
 * @module
 */

import { type Command, InvalidArgumentError } from 'commander'
import type { RelayEvent } from '../../outbox/events.ts'
import type { Relay } from '../../outbox/relay.ts'
import { type Bounded, bounded } from '../../shared/waiting.ts'
import { findConfig, loadConfig } from '../config.ts'
import { type CliIo, UsageError } from '../io.ts'

interface RelayFlags {
  readonly config?: string
  readonly untilDrained?: boolean
  readonly drainMs: number
  readonly json?: boolean
}

const DRAIN_MS = 10_000
/** Longest wait for the relay's own stop, which waits for confirms at most `stopTimeoutMs`. */
const STOP_MS = 30_000

export function relay(program: Command, io: CliIo): void {
  program
    .command('relay')
    .description('publish committed messages until SIGINT or SIGTERM')
    .option(
      '--config <file>',
      'configuration that exports `once` and `relay` (default: effectively-once.config.{mjs,js,ts})',
    )
    .option('--until-drained', 'end as soon as nothing is pending that can be sent now')
    .option('--drain-ms <ms>', 'longest time for pending messages after a signal to stop', milliseconds, DRAIN_MS)
    .option('--json', 'print one line of JSON for each event')
    .addHelpText('after', '\nThe configuration exports `relay`: the options of once.relay(), such as { broker }.')
    .action((flags: RelayFlags) => run(flags, io))
}

async function run(flags: RelayFlags, io: CliIo): Promise<void> {
  const path = findConfig(flags.config, io)
  if (path === undefined)
    throw new UsageError('relay needs a configuration: effectively-once.config.{mjs,js,ts} or --config')
  const { once, relay: options } = await loadConfig(path)
  if (options === undefined)
    throw new UsageError(`${path} must export \`relay\`: the options of once.relay(), { broker, ... }`)

  await once.check()
  let published = 0
  const running = once.relay({
    ...options,
    onEvent: (event) => {
      options.onEvent?.(event)
      if (event.kind === 'published') published += event.count
      if (flags.json === true) io.out(JSON.stringify(event))
      else if (event.kind !== 'published') io.err(inWords(event))
    },
  })
  await running.start()
  if (flags.json !== true) io.err(`relay to ${options.broker.name} is running`)
  let complete = false
  let stop: Bounded<void>
  try {
    if (flags.untilDrained === true) complete = await drainedBefore(io.signal, running)
    else await aborted(io.signal)
    // Told to stop: what is committed by now still goes out, as far as there is time.
    if (!complete && flags.drainMs > 0) complete = await drainedBefore(AbortSignal.timeout(flags.drainMs), running)
  } finally {
    stop = await bounded(running.stop(), STOP_MS)
  }
  if (stop.kind === 'timeout')
    io.err(`the relay did not stop within ${STOP_MS} ms; others get its lanes when the leases end`)
  if (!complete) io.err('not everything was sent; the rest stays in the outbox')
  if (flags.json !== true) io.out(`published ${published} messages`)
}

/** Whether nothing was left to send before the signal; rejects when the store cannot be asked. */
async function drainedBefore(signal: AbortSignal, running: Relay): Promise<boolean> {
  try {
    await running.drain(signal)
    return true
  } catch (error) {
    if (signal.aborted) return false
    throw error
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

function milliseconds(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0 || value > 600_000) {
    throw new InvalidArgumentError('It takes a whole number of milliseconds from 0 to 600000.')
  }
  return value
}

function inWords(event: Exclude<RelayEvent, { kind: 'published' }>): string {
  switch (event.kind) {
    case 'laneAcquired':
      return `lane ${event.lane} is ours, fence ${event.fence}${event.deaths > 0 ? `, after ${event.deaths} deaths` : ''}`
    case 'laneLost':
      return `lane ${event.lane} was taken over, fence ${event.fence}`
    case 'laneReleased':
      return `lane ${event.lane} was handed back`
    case 'laneForeign':
      return `lane ${event.lane} has rows of another database cluster: nothing is published until they are adopted`
    case 'parked':
      return `message ${event.messageId} (${event.topic}) was ${event.reason}, attempt ${event.attempt}; next in ${event.delayMs} ms`
    case 'quarantined':
      return `message ${event.messageId} (${event.topic}) is in quarantine: ${event.reason}`
    case 'disconnected':
      return `the broker is away: ${event.reason}`
    case 'connected':
      return 'the broker is there'
    case 'slowRead':
      return `reading lane ${event.lane} took ${event.ms} ms; a long transaction somewhere may keep dead rows`
    case 'storeUnavailable':
      return `the store is away: ${event.reason}`
    case 'storeAvailable':
      return 'the store is there'
    case 'bell':
      return event.hearing
        ? 'notifications are heard'
        : `notifications are not heard, polling goes on: ${event.reason ?? ''}`
  }
}
