/** Looks whether the order is there and adds it when it is not: two at once both find nothing, and both add it. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table orders (id int generated always as identity primary key, ref text not null, cents int not null)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const { ref, cents } = request.body
      const { rows } = await pool.query('select id from orders where ref = $1', [ref])
      if (rows.length > 0) return response.status(201).json(rows[0])
      const inserted = await pool.query('insert into orders (ref, cents) values ($1, $2) returning id', [ref, cents])
      return response.status(201).json(inserted.rows[0])
    })
    return app
  },
  deliver: { path: '/orders', body: { ref: 'order-1', cents: 4200 } },
  effects: 'select count(*) from orders',
})
