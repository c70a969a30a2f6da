/** A failure inside of the transaction is caught and forgotten: COMMIT of a failed transaction is a ROLLBACK without error. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table orders (ref text primary key, customer text not null);
    create table customers (id text primary key, orders int not null);
    insert into customers values ('anna', 0)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, customer } = request.body
      await transaction(pool, async (client) => {
        const insert = 'insert into orders (ref, customer) values ($1, $2) on conflict (ref) do nothing'
        const { rowCount } = await client.query(insert, [ref, customer])
        if (rowCount === 0) return
        try {
          await client.query('update customers set orders = orders + 1 where id = $1', [customer])
        } catch {
          // Only statistics; they must not stop an order.
        }
      })
      response.status(201).json({ ref })
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', customer: 'anna' } },
  effects: 'select count(*) from orders',
})
