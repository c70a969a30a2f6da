/** Every answer is kept under the key, failures as well: after a short one, each retry is told of it again. */
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table answers (key text primary key, status int not null, body jsonb not null);
    create table orders (key text primary key, cents int not null)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/orders', express.json(), async (request, response) => {
      const key = request.headers['idempotency-key']
      const { rows } = await pool.query('select status, body from answers where key = $1', [key])
      if (rows[0] !== undefined) return response.status(rows[0].status).json(rows[0].body)
      let answer = { status: 201, body: { order: key as string } as object }
      try {
        const insert = 'insert into orders (key, cents) values ($1, $2) on conflict (key) do nothing'
        await pool.query(insert, [key, request.body.cents])
      } catch {
        answer = { status: 500, body: { error: 'something went wrong' } }
      }
      const keep = 'insert into answers (key, status, body) values ($1, $2, $3) on conflict (key) do nothing'
      await pool.query(keep, [key, answer.status, answer.body])
      return response.status(answer.status).json(answer.body)
    })
    return app
  },
  deliver: { path: '/orders', headers: { 'idempotency-key': 'k-1' }, body: { cents: 4200 } },
  effects: 'select count(*) from orders',
})
