/** What the examples share: the pool, once, the table, and the one thing that their handlers do. */
import { createOnce } from 'effectively-once'
import { postgres } from 'effectively-once/postgres'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, pipeline: true })
export const once = createOnce({ store: postgres(pool) })
await once.migrate()
await pool.query('create table if not exists orders (id int generated always as identity primary key, cents int)')

/** One order and its event, in the transaction of the request. */
export async function placeOrder({ tx, outbox }, { cents }) {
  const { rows } = await tx.query('insert into orders (cents) values ($1) returning id', [cents])
  await outbox.add({ topic: 'order.created.v1', payload: { orderId: rows[0].id } })
  return { orderId: rows[0].id }
}

/** Tells where the server listens. */
export function listening(server) {
  process.stdout.write(`http://127.0.0.1:${server.address().port}\n`)
}
