/** The event leaves before COMMIT: when that fails, the world knows of an order that does not exist, and then of another. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { channelOf, poolOf, publish, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table orders (id int generated always as identity, key text primary key, cents int not null)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const key = request.headers['idempotency-key']
      const id = await transaction(pool, async (client) => {
        const insert = 'insert into orders (key, cents) values ($1, $2) on conflict (key) do nothing returning id'
        const { rows } = await client.query(insert, [key, request.body.cents])
        if (rows[0] === undefined) {
          const existing = await client.query('select id from orders where key = $1', [key])
          return existing.rows[0].id
        }
        await publish(channel, 'order-created', `order-created/${rows[0].id}`, { orderId: rows[0].id })
        return rows[0].id
      })
      response.status(201).json({ id })
    })
    return app
  },
  deliver: { path: '/orders', headers: { 'idempotency-key': 'k-1' }, body: { cents: 4200 } },
  effects: { orders: 'select count(*) from orders', events: { queue: 'order-created' } },
})
