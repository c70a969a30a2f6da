/** A key means something only together with its tenant, which is the scope. */
import { createOnce } from 'effectively-once'
import { idempotency, onceOf } from 'effectively-once/express'
import { postgres } from 'effectively-once/postgres'
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { migrate, poolOf } from './plumbing.ts'

const order = (tenant: string) => ({
  path: '/orders',
  headers: { 'x-tenant': tenant, 'idempotency-key': 'order-1' },
  body: { cents: 4200 },
})

export default defineDrill({
  async setUp({ databaseUrl, query }) {
    await migrate(databaseUrl)
    await query('create table orders (id int generated always as identity, tenant text, cents int)')
  },
  start({ databaseUrl }) {
    const once = createOnce({ store: postgres(poolOf(databaseUrl)) })
    const guard = idempotency(once, { scope: ({ headers }) => String(headers['x-tenant'] ?? '') })
    const app = express()
    app.post('/orders', guard, express.json(), async (request, response) => {
      const { cents } = request.body as { cents: number }
      const insert = 'insert into orders (tenant, cents) values ($1, $2) returning id'
      const values = [request.headers['x-tenant'], cents]
      const { rows } = await onceOf(once, request).tx.query(insert, values)
      response.status(201).json({ id: rows[0].id })
    })
    return app
  },
  deliver: [order('acme'), order('bolt')],
  effects: 'select count(*) from orders',
})
