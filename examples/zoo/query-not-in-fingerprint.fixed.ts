/** Everything that changes the effect is compared, the query as well: the other wallet is refused with 422. */
import { createHash } from 'node:crypto'
import { defineDrill } from 'effectively-once/testing'
import express from 'express'
import { poolOf, transaction } from './plumbing.ts'

const request = { headers: { 'idempotency-key': 'k-1' }, body: { cents: 4200 } }

export default defineDrill({
  setUp: `create table keys (key text primary key, fingerprint text not null);
    create table top_ups (wallet text not null, cents int not null)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    const app = express()
    app.post('/top-ups', express.json(), async ({ originalUrl, headers, query, body }, response) => {
      const key = headers['idempotency-key']
      const fingerprint = createHash('sha256').update(originalUrl).update(JSON.stringify(body)).digest('hex')
      const status = await transaction(pool, async (client) => {
        const insert = 'insert into keys (key, fingerprint) values ($1, $2) on conflict (key) do nothing'
        const { rowCount } = await client.query(insert, [key, fingerprint])
        const { rows } = await client.query('select fingerprint from keys where key = $1', [key])
        if (rows[0].fingerprint !== fingerprint) return 422
        if (rowCount === 1) await client.query('insert into top_ups values ($1, $2)', [query['wallet'], body.cents])
        return 201
      })
      response.sendStatus(status)
    })
    return app
  },
  deliver: { ...request, path: '/top-ups?wallet=anna' },
  otherPayload: { ...request, path: '/top-ups?wallet=bert' },
  effects: 'select count(*) from top_ups',
})
