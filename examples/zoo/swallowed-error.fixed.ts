/** What may fail without harm has a savepoint: going back to it makes the transaction whole again. */
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
        await client.query('savepoint statistics')
        try {
          await client.query('update customers set orders = orders + 1 where id = $1', [customer])
        } catch {
          await client.query('rollback to savepoint statistics')
        }
      })
      response.status(201).json({ ref })
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', customer: 'anna' } },
  effects: 'select count(*) from orders',
})
