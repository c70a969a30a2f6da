/** The client is told "created" before COMMIT: when that does not come about, nobody will send the order again. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table orders (ref text primary key, cents int not null)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, cents } = request.body
      await transaction(pool, async (client) => {
        await client.query('insert into orders values ($1, $2) on conflict (ref) do nothing', [ref, cents])
        response.status(201).json({ ref })
      })
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', cents: 4200 } },
  effects: 'select count(*) from orders',
})
