/** The event is a row of the same transaction; `effectively-once relay` publishes it afterwards, as often as it takes. */
import { createOnce } from 'effectively-once'
import { idempotency, onceOf } from 'effectively-once/express'
import { postgres } from 'effectively-once/postgres'
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { migrate, poolOf } from './plumbing.ts'

export default defineDrill({
  async setUp({ databaseUrl, query }) {
    await migrate(databaseUrl)
    await query('create table orders (id int generated always as identity, cents int not null)')
  },
  start({ databaseUrl }) {
    const once = createOnce({ store: postgres(poolOf(databaseUrl)) })
    const app = express()
    app.post('/orders', idempotency(once, { scope: () => 'shop' }), express.json(), async (request, response) => {
      const { cents } = request.body as { cents: number }
      const { tx, outbox } = onceOf(once, request)
      const { rows } = await tx.query('insert into orders (cents) values ($1) returning id', [cents])
      await outbox.add({ topic: 'order-created', payload: { orderId: rows[0].id } })
      response.status(201).json({ id: rows[0].id })
    })
    return app
  },
  deliver: { path: '/orders', headers: { 'idempotency-key': 'k-1' }, body: { cents: 4200 } },
  effects: {
    orders: 'select count(*) from orders',
    events: 'select count(*) from effectively_once.outbox',
  },
})
