/** The event is sent after COMMIT: a process that dies in between has an order of which nobody ever hears. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { channelOf, poolOf, publish } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table orders (ref text primary key, cents int not null)',
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, cents } = request.body
      const insert = 'insert into orders (ref, cents) values ($1, $2) on conflict (ref) do nothing'
      const { rowCount } = await pool.query(insert, [ref, cents])
      if (rowCount === 1) await publish(channel, 'order-created', `order-created/${ref}`, { ref, cents })
      response.status(201).json({ ref })
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', cents: 4200 } },
  effects: { orders: 'select count(*) from orders', events: { queue: 'order-created' } },
})
