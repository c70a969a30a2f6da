/**
 * Stage: everything that the runs of one drill share, opened once: server, broker, template, processes made ahead.
 *
 * @module
 */

import type { Drill } from '../file/checked.ts'
import type { Compiled } from '../file/compile.ts'
import { processEntry, spawnHandler } from '../process/handler-process.ts'
import { Ahead } from '../run/ahead.ts'
import { Backlog } from '../run/backlog.ts'
import { type Stage, UNKNOWN } from '../run/execute.ts'
import { Slots } from '../run/slots.ts'
import { openBroker } from './broker.ts'
import { openDatabases } from './databases.ts'
import { openGround } from './ground.ts'
import type { Permissions } from './refuse.ts'

export interface StageOptions {
  readonly databaseUrl: string | undefined
  readonly amqpUrls: readonly string[]
  readonly workers: number
  readonly permissions: Permissions
  /** Environment of the handler's processes. */
  readonly env: Readonly<Record<string, string | undefined>>
}

export interface OpenStage extends Stage {
  /** Runs that can be under way at once; those that wait lend their slots to others. */
  readonly runs: number
  readonly versions: Readonly<Record<string, string>>
  readonly how: readonly string[]
  close(): Promise<void>
}

/** So many times more runs than workers: the others wait for a lease or a time-out. */
const WAITING = 2

export async function openStage(drill: Drill, compiled: Compiled, options: StageOptions): Promise<OpenStage> {
  const { permissions, env } = options
  const closing: (() => Promise<unknown>)[] = []
  const close = async (): Promise<void> => {
    const failures: unknown[] = []
    for (const one of closing.splice(0).reverse()) await one().catch((error: unknown) => failures.push(error))
    if (failures.length > 0) throw failures[0]
  }
  try {
    const [databases, broker] = await both(
      openDatabases(options.databaseUrl, drill.path, permissions),
      openBroker(drill, options.amqpUrls, WAITING * options.workers, permissions),
      closing,
    )
    await databases.prepare(drill.setUp, broker?.url ?? '')
    const runs = Math.min(WAITING * options.workers, broker?.vhosts ?? Number.POSITIVE_INFINITY)
    const workers = Math.min(options.workers, runs)
    const entry = await processEntry()
    closing.push(() => entry.remove())
    const kind = {
      module: compiled.url,
      entry: entry.path,
      hosts: permissions.allowHosts,
      databaseUrl: databases.url,
      amqpUrl: broker?.url,
      env,
    }
    const processes = new Ahead(
      workers,
      () => spawnHandler(kind),
      (process) => process.close(),
    )
    const copies = new Ahead(
      workers,
      () => databases.create(),
      (database) => databases.drop(database),
    )
    const backlog = new Backlog(2 * workers)
    closing.push(
      () => copies.close(),
      () => processes.close(),
      () => backlog.done(),
    )
    return {
      drill,
      runs,
      slots: new Slots(workers),
      usual: UNKNOWN,
      restart: databases.restart,
      versions: { node: process.version, postgres: databases.version },
      how: [`PostgreSQL: ${databases.how}`, ...(broker === undefined ? [] : [`RabbitMQ: ${broker.how}`])],
      openGround: async () => openGround({ drill, databases, broker }, await copies.take()),
      tidyUp: (work) => backlog.add(work),
      spawn: () => processes.take(),
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** Opens both at once; what was opened is closed also when the other one fails. */
async function both<A extends Closable, B extends Closable | undefined>(
  first: Promise<A>,
  second: Promise<B>,
  closing: (() => Promise<unknown>)[],
): Promise<readonly [A, B]> {
  const [a, b] = await Promise.allSettled([first, second])
  for (const one of [a, b]) {
    if (one.status === 'fulfilled' && one.value !== undefined) {
      const { value } = one
      closing.push(() => value.close())
    }
  }
  if (a.status === 'rejected') throw a.reason
  if (b.status === 'rejected') throw b.reason
  return [a.value, b.value]
}

interface Closable {
  close(): Promise<void>
}
