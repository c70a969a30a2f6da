/** Keys of all tenants are in one pot: the second tenant with a common key gets the first one's answer, and no order. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf, transaction } from './plumbing.ts'

const order = (tenant: string) => ({
  path: '/orders',
  headers: { 'x-tenant': tenant, 'idempotency-key': 'order-1' },
  body: { cents: 4200 },
})

export default defineDrill({
  setUp: 'create table orders (id int generated always as identity, key text primary key, tenant text, cents int)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async ({ headers, body }, response) => {
      const key = headers['idempotency-key']
      const id = await transaction(pool, async (client) => {
        const insert = 'insert into orders (key, tenant, cents) values ($1, $2, $3) on conflict (key) do nothing'
        await client.query(insert, [key, headers['x-tenant'], body.cents])
        const { rows } = await client.query('select id from orders where key = $1', [key])
        return rows[0].id
      })
      response.status(201).json({ id })
    })
    return app
  },
  deliver: [order('acme'), order('bolt')],
  effects: 'select count(*) from orders',
})
