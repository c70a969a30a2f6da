/** Only an answer whose writes are committed with it is kept; a failure leaves the key free. */
import { createOnce } from 'effectively-once'
import { idempotency, onceOf } from 'effectively-once/express'
import { postgres } from 'effectively-once/postgres'
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { migrate, poolOf } from './plumbing.ts'

export default defineDrill({
  async setUp({ databaseUrl, query }) {
    await migrate(databaseUrl)
    await query('create table orders (key text primary key, cents int not null)')
  },
  start({ databaseUrl }) {
    const once = createOnce({ store: postgres(poolOf(databaseUrl)) })
    const app = express()
    app.post('/orders', idempotency(once, { scope: () => 'shop' }), express.json(), async (request, response) => {
      const { cents } = request.body as { cents: number }
      const key = request.headers['idempotency-key']
      const insert = 'insert into orders (key, cents) values ($1, $2)'
      await onceOf(once, request).tx.query(insert, [key, cents])
      response.status(201).json({ order: key })
    })
    return app
  },
  deliver: { path: '/orders', headers: { 'idempotency-key': 'k-1' }, body: { cents: 4200 } },
  effects: 'select count(*) from orders',
})
