/** The database decides: `ref` is unique, and whoever comes second reads what is there. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table orders (id int generated always as identity primary key, ref text not null unique, cents int)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, cents } = request.body
      const insert = 'insert into orders (ref, cents) values ($1, $2) on conflict (ref) do nothing'
      await pool.query(insert, [ref, cents])
      const { rows } = await pool.query('select id from orders where ref = $1', [ref])
      response.status(201).json(rows[0])
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', cents: 4200 } },
  effects: 'select count(*) from orders',
})
