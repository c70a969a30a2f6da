/**
 * Writers of the relay's torture: each key's writers are serialised by a row lock and number their messages, so that
 * order of commit per key is known. They roll back, use savepoints, take their transaction id long before the lock,
 * and commit late.
 */
import pg from 'pg'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

export interface Writing {
  readonly url: string
  readonly seed: number
  readonly writers: number
  readonly keys: number
  readonly forMs: number
}

/** mulberry32 */
export function seededRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

/** The table of the application: the last number of each key. */
export const COUNTERS = 'create table counter (key text primary key, n int not null)'

export async function write({ url, seed, writers, keys, forMs }: Writing): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: writers + 1 })
  const once = createOnce({ store: postgres(pool) })
  const end = performance.now() + forMs
  const one = async (random: () => number) => {
    const client = await pool.connect()
    const pause = (maxMs: number) => client.query('select pg_sleep($1::float8)', [(random() * maxMs) / 1_000])
    const number = async (key: string) => {
      const { rows } = await client.query('update counter set n = n + 1 where key = $1 returning n', [key])
      await once.in(client).outbox.add({ topic: 'torture.v1', orderingKey: key, payload: { key, n: rows[0].n } })
    }
    try {
      while (performance.now() < end) {
        const key = `k${Math.floor(random() * keys)}`
        await client.query('begin')
        // The id of the transaction comes before its turn at the key: order of ids is not order of commits.
        if (random() < 0.5) await client.query('select pg_current_xact_id()')
        await pause(random() < 0.1 ? 40 : 4)
        if (random() < 0.2) {
          await client.query('savepoint s')
          await number(key)
          await client.query('rollback to s')
        }
        if (random() < 0.2) await client.query('savepoint t')
        await number(key)
        if (random() < 0.2) await number(key)
        await pause(random() < 0.1 ? 60 : 3)
        await client.query(random() < 0.1 ? 'rollback' : 'commit')
      }
    } finally {
      client.release()
    }
  }
  try {
    await Promise.all(Array.from({ length: writers }, (_, index) => one(seededRandom(seed * 1_000 + index))))
  } finally {
    await pool.end()
  }
}
