/** The bell between processes: what becomes of the connection that listens. */
import pg from 'pg'
import { expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import type { BellState } from '../../src/store/outbox.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'
import { eventually } from '../eventually.ts'

test('B34: a listening connection that is killed, twice, is made again and hears other processes', async () => {
  const database = await createDatabase()
  const open = () => {
    const pool = new pg.Pool({ connectionString: database.url, max: 5 })
    pool.on('error', () => {})
    return { pool, store: postgres(pool) }
  }
  const here = open()
  // Another store stands for another process: it has a bell of its own.
  const there = open()
  await createOnce({ store: here.store }).migrate()
  const states: BellState[] = []
  const kinds = () => states.map(({ kind }) => kind).join(' ')
  let rings = 0
  const listener = here.store.outbox.bell.listen(
    () => {
      rings += 1
    },
    (state) => states.push(state),
  )
  const heard = async () => {
    const before = rings
    await eventually('a ring of another process is heard', () => {
      there.store.outbox.bell.ring()
      return rings > before
    })
  }
  try {
    await eventually('it listens', () => kinds() === 'hearing')
    await heard()
    for (let time = 1; time <= 2; time++) {
      const { rowCount } = await there.pool.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen %'`,
      )
      expect(rowCount).toBe(1)
      await eventually('it listens again', () => kinds() === `hearing${' deaf hearing'.repeat(time)}`)
      await heard()
    }
  } finally {
    await listener.close()
    await Promise.all([here.pool.end(), there.pool.end()])
    await database.drop()
  }
})
