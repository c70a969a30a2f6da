/**
 * PostgreSQL is killed (SIGKILL of the postmaster and all its backends) and started again under load.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { expect, test } from 'vitest'
import { createOnce, isOnceError } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { startPostgres } from '../../src/testing/services/postgres.ts'

const CALLERS = 12
const KEYS_EACH = 40
const CRASHES = 2
const BOUND_MS = 90_000

/** Kills the postmaster and its children, as a power cut would. */
function killServer(dataDir: string): void {
  const postmaster = readFileSync(join(dataDir, 'postmaster.pid'), 'utf8').split('\n')[0] ?? ''
  const children = execFileSync('ps', ['-o', 'pid=', '--ppid', postmaster], { encoding: 'utf8' }).split('\n')
  for (const pid of [postmaster, ...children].map(Number)) {
    if (pid > 1) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // It was gone already.
      }
    }
  }
}

test(
  'I2, I12: PostgreSQL killed and restarted under load loses no acknowledged outcome, repeats none, and all settles',
  async () => {
    const server = await startPostgres()
    const pool = new pg.Pool({ connectionString: server.url, pipeline: true, max: 8 })
    try {
      const once = createOnce({ store: postgres(pool) })
      await once.migrate()
      await pool.query('create table orders (ref text not null)')
      const acknowledged: string[] = []
      let done = 0
      const deadline = performance.now() + BOUND_MS
      const place = async (key: string): Promise<void> => {
        for (;;) {
          if (performance.now() > deadline) throw new Error(`${key} did not settle`)
          try {
            await once.transaction({ scope: 'crash', key, payload: key }, async ({ tx, outbox }) => {
              await tx.query({ text: 'insert into orders (ref) values ($1)', values: [key] })
              await outbox.add({ topic: 'order.created.v1', payload: { key } })
            })
            acknowledged.push(key)
            return
          } catch (error) {
            // The promise to a caller: until it is told an outcome, the same key may be sent again.
            if (!isOnceError(error) || !error.retryable) throw error
            await new Promise((resolve) => setTimeout(resolve, 50))
          }
        }
      }
      const callers = Array.from({ length: CALLERS }, async (_, caller) => {
        for (let index = 0; index < KEYS_EACH; index++) {
          await place(`${caller}-${index}`)
          done += 1
        }
      })
      const load = Promise.all(callers)
      for (let crash = 1; crash <= CRASHES; crash++) {
        const reached = (CALLERS * KEYS_EACH * crash) / (CRASHES + 1)
        await expect.poll(() => done, { timeout: BOUND_MS, interval: 5 }).toBeGreaterThanOrEqual(reached)
        killServer(server.dataDir)
        await expect
          .poll(
            () =>
              server.start().then(
                () => true,
                () => false,
              ),
            { timeout: BOUND_MS, interval: 200 },
          )
          .toBe(true)
      }
      await load
      expect(acknowledged).toHaveLength(CALLERS * KEYS_EACH)
      const orders = await pool.query('select ref, count(*)::int as n from orders group by ref')
      expect(orders.rows.filter(({ n }) => n !== 1)).toEqual([])
      expect(orders.rows).toHaveLength(CALLERS * KEYS_EACH)
      const messages = await pool.query('select count(*)::int as n from effectively_once.outbox')
      expect(messages.rows[0].n).toBe(CALLERS * KEYS_EACH)
      // And what was told once is told again.
      const replay = await once.transaction({ scope: 'crash', key: '0-0', payload: '0-0' }, () => undefined)
      expect(replay.replayed).toBe(true)
    } finally {
      await pool.end()
      await server.stop()
    }
  },
  BOUND_MS * 2,
)
