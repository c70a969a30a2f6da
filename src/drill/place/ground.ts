/**
 * Ground: the fresh database, queues and provider of one run, and the counting in them.
 *
 * @module
 */

import type { Drill } from '../file/checked.ts'
import type { Count, DrillPlace, DrillProvider, DrillWorld } from '../file/format.ts'
import type { Route } from '../process/gateway.ts'
import type { Broker, Vhost } from './broker.ts'
import { type Databases, rowsOf } from './databases.ts'
import type { PgClient } from './vendors.ts'

export interface Ground {
  readonly route: Route
  readonly world: DrillWorld
  readonly vhost: Vhost | undefined
  readonly place: DrillPlace
  /** How often each effect is there. */
  counts(): Promise<Readonly<Record<string, number>>>
  close(): Promise<void>
}

export interface Places {
  readonly drill: Drill
  readonly databases: Databases
  readonly broker: Broker | undefined
}

export async function openGround({ drill, databases, broker }: Places, database: string): Promise<Ground> {
  const [provider, vhost] = await Promise.all([drill.provider?.(), broker?.take()])
  const session = reopening(() => databases.client(database))
  const place: DrillPlace = {
    databaseUrl: databases.urlOf(database),
    amqpUrl: vhost?.url ?? '',
    query: session.query,
    get provider(): DrillProvider {
      if (provider === undefined) throw new TypeError('the drill names no `provider`')
      return provider
    },
  }
  return {
    route: {
      postgres: databases.address,
      database,
      amqp: broker?.address,
      vhost: vhost?.name ?? '/',
    },
    world: { databaseUrl: '', amqpUrl: '', providerUrl: provider?.url ?? '' },
    vhost,
    place,
    async counts() {
      const counted: [string, number][] = []
      for (const [name, count] of drill.counts) counted.push([name, await numberOf(name, count, place, vhost)])
      return Object.fromEntries(counted)
    },
    async close() {
      await vhost?.release()
      await session.end()
      await provider?.stop()
      await databases.drop(database)
    },
  }
}

async function numberOf(name: string, count: Count, place: DrillPlace, vhost: Vhost | undefined): Promise<number> {
  let value: unknown
  if (typeof count === 'function') value = await count(place)
  else if (typeof count === 'object') value = await vhost?.drain(count.queue)
  else value = Object.values((await place.query(count))[0] ?? {})[0]
  const number = Number(value)
  if (value === null || value === undefined || !Number.isFinite(number)) {
    throw new TypeError(`\`effects\` (${name}) gave no number`)
  }
  return number
}

/** A session that is opened at its first use, and again when the server was away in between. */
function reopening(open: () => Promise<PgClient>): { readonly query: DrillPlace['query']; end(): Promise<void> } {
  let client: PgClient | undefined
  const end = async (): Promise<void> => {
    await client?.end().catch(() => {})
    client = undefined
  }
  return {
    async query(text, values) {
      const before = client
      client ??= await open()
      try {
        return await rowsOf(client)(text, values)
      } catch (error) {
        // What the server itself says has a SQLSTATE of five characters; 57P is its farewell.
        const code = error instanceof Error && 'code' in error ? String(error.code) : ''
        if (before === undefined || (code.length === 5 && !code.startsWith('57P') && !code.startsWith('E'))) throw error
        await end()
        client = await open()
        return rowsOf(client)(text, values)
      }
    },
    end,
  }
}
