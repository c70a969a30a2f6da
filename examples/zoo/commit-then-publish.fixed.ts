/** Order and event are committed together; a relay reads the outbox, publishes, and removes what was confirmed. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table orders (ref text primary key, cents int not null);
    create table outbox (id text primary key, topic text not null, body jsonb not null)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, cents } = request.body
      await transaction(pool, async (client) => {
        const insert = 'insert into orders (ref, cents) values ($1, $2) on conflict (ref) do nothing'
        const { rowCount } = await client.query(insert, [ref, cents])
        if (rowCount === 0) return
        const event = [`order-created/${ref}`, 'order-created', { ref, cents }]
        await client.query('insert into outbox (id, topic, body) values ($1, $2, $3)', event)
      })
      response.status(201).json({ ref })
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', cents: 4200 } },
  effects: { orders: 'select count(*) from orders', events: 'select count(*) from outbox' },
})
