/**
 * Database: the one that DATABASE_URL names, through the `pg` that the user's project has.
 *
 * @module
 */

import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { PgPool } from '../stores/postgres/handle.ts'
import { type CliIo, UsageError } from './io.ts'

interface EndingPool extends PgPool {
  on(event: 'error', listener: () => void): unknown
  end(): Promise<void>
}

interface PgModule {
  readonly Pool: new (options: Readonly<Record<string, unknown>>) => EndingPool
}

const CONNECT_MS = 10_000

/** Runs `use` with a pool of one connection, and closes it. */
export async function withDatabase<T>(io: CliIo, use: (pool: PgPool) => Promise<T>): Promise<T> {
  const connectionString = io.env['DATABASE_URL']
  if (connectionString === undefined || connectionString === '') {
    throw new UsageError(
      'no effectively-once.config.{mjs,js,ts} here and no DATABASE_URL: one of them must say which database',
    )
  }
  const pg = await pgOf(io.cwd)
  const pool = new pg.Pool({
    connectionString,
    max: 1,
    connectionTimeoutMillis: CONNECT_MS,
    application_name: 'effectively-once',
  })
  pool.on('error', () => {})
  try {
    return await use(pool)
  } finally {
    await pool.end()
  }
}

async function pgOf(cwd: string): Promise<PgModule> {
  let path: string
  try {
    path = createRequire(join(cwd, 'package.json')).resolve('pg')
  } catch {
    throw new UsageError(`the package pg was not found from ${cwd}; run: npm install pg`)
  }
  const module = (await import(pathToFileURL(path).href)) as { readonly default: PgModule }
  return module.default
}
