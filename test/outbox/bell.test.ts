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

test('B34: no transaction of the application notifies: commits would stand in line for it', async () => {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  const store = postgres(pool)
  const once = createOnce({ store })
  await once.migrate()
  const [listener, writer] = [new pg.Client(database.url), await pool.connect()]
  const senders: number[] = []
  try {
    await listener.connect()
    listener.on('notification', ({ processId }) => senders.push(processId))
    await listener.query('listen effectively_once_outbox')
    const { rows } = await writer.query('select pg_backend_pid() as pid')
    await writer.query('begin')
    await once.in(writer).outbox.add({ topic: 'order.created.v1', payload: 1 })
    await writer.query('commit')
    await eventually('the bell of this process is heard', () => {
      store.outbox.bell.ring()
      return senders.length > 0
    })
    // Notifications come in the order of their commits, so one of the writer would have come before.
    expect(senders).not.toContain(rows[0].pid)
  } finally {
    writer.release()
    await listener.end()
    await pool.end()
    await database.drop()
  }
})
