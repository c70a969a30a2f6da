/** A database with a table of charges, and a worker in another process that dies in the middle of one. */
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { createOnce, type Once } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export interface Scene {
  readonly url: string
  readonly pool: pg.Pool
  readonly once: Once<pg.PoolClient>
  /** How often it was charged. */
  charges(ref: string): Promise<number>
  /** Starts a worker elsewhere, waits until it has charged, and kills it. */
  dieAfterCharge(env: { readonly RUNNER: string; readonly QUEUE: string; readonly REDIS_PORT?: string }): Promise<void>
  close(): Promise<void>
}

export interface Data {
  readonly order: string
  readonly amount?: number
}

const SCRIPT = fileURLToPath(new URL('../processes/runner.ts', import.meta.url))

export async function openScene(): Promise<Scene> {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 10 })
  const once = createOnce({ store: postgres(pool) })
  await once.migrate()
  await pool.query('create table charges (id int generated always as identity, ref text not null, step text)')
  const children: ChildProcess[] = []
  return {
    url: database.url,
    pool,
    once,
    async charges(ref) {
      const { rows } = await pool.query('select count(*)::int as n from charges where ref = $1', [ref])
      return rows[0].n
    },
    async dieAfterCharge(env) {
      const child = spawn(process.execPath, ['--import', 'tsx', SCRIPT], {
        env: { ...process.env, DATABASE_URL: database.url, ...env },
        stdio: ['pipe', 'pipe', 'inherit'],
      })
      children.push(child)
      const died = new Promise<void>((resolve) => child.once('exit', () => resolve()))
      await new Promise<void>((resolve, reject) => {
        createInterface({ input: child.stdout }).on('line', (line) => {
          if (line === 'charged') resolve()
        })
        void died.then(() => reject(new Error('the worker ended before it had charged')))
      })
      child.kill('SIGKILL')
      await died
    },
    async close() {
      for (const child of children) child.kill('SIGKILL')
      await pool.end()
      await database.drop()
    },
  }
}

/** A point that two sides of a test meet at. */
export function latch(): { readonly opened: Promise<void>; open(): void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}
