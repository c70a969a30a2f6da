/**
 * Child: the process in which the handler runs. It loads the drill file, waits until a run takes it, starts the handler
 * and does nothing else; whatever happens to it comes from outside.
 *
 * @module
 */

import { once } from 'node:events'
import { createServer, type RequestListener, Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { DrillFile } from '../file/format.ts'
import { bringOutgoing } from './outgoing.ts'
import type { FromProcess, ProcessArguments, ToProcess } from './protocol.ts'

const given = JSON.parse(process.argv[2] ?? '{}') as ProcessArguments
const tell = (message: FromProcess): void => {
  if (process.connected) process.send?.(message)
}
// Without its drill it has nothing to do here.
process.on('disconnect', () => process.exit(0))
bringOutgoing(given, tell)

let file: DrillFile | undefined
let job: ((job: unknown) => unknown) | undefined

process.on('message', (message: ToProcess) => {
  if (message.kind === 'start') void start(message)
  else if (message.kind === 'ping') setImmediate(tell, { kind: 'pong' })
  else void call(message.call, message.job)
})
try {
  const module = (await import(given.module)) as { readonly default: DrillFile }
  file = module.default
  tell({ kind: 'loaded' })
} catch (error) {
  tell({ kind: 'failed', message: inWords(error) })
}

async function start({ world, serves }: Extract<ToProcess, { kind: 'start' }>): Promise<void> {
  try {
    if (world.providerUrl !== '') process.env['PROVIDER_URL'] = world.providerUrl
    const started = await file?.start(world)
    if (serves) {
      const server = await listening(started as RequestListener | Server | undefined)
      tell({ kind: 'started', port: (server.address() as AddressInfo).port })
    } else {
      if (typeof started === 'function') job = started as (job: unknown) => unknown
      tell({ kind: 'started' })
    }
  } catch (error) {
    tell({ kind: 'failed', message: inWords(error) })
  }
}

async function listening(started: RequestListener | Server | undefined): Promise<Server> {
  const isServer = (value: unknown): value is Server =>
    value instanceof Server ||
    (typeof value === 'object' && value !== null && 'listening' in value && 'address' in value)
  if (!isServer(started) && typeof started !== 'function') {
    throw new TypeError(
      '`start` must return a request listener (an Express app is one) or a server: requests are delivered',
    )
  }
  const server = isServer(started) ? started : createServer(started)
  if (server.listening) return server
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server
}

async function call(number: number, argument: unknown): Promise<void> {
  try {
    if (job === undefined) throw new TypeError('`start` must return the function that does the job')
    await job(argument)
    tell({ kind: 'done', call: number })
  } catch (error) {
    tell({ kind: 'done', call: number, error: inWords(error) })
  }
}

function inWords(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error)
}
