/** The intent is committed first; the charge follows with a key that is on disk, and its answer is stored last. */
import { defineDrill, fakeProvider } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table payments (id int generated always as identity, order_id text primary key, charge_id text)`,
  provider: () => fakeProvider(),
  start({ databaseUrl, providerUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ orderId, cents }: { orderId: string; cents: number }) => {
      await pool.query('insert into payments (order_id) values ($1) on conflict (order_id) do nothing', [orderId])
      const { rows } = await pool.query('select id, charge_id from payments where order_id = $1', [orderId])
      if (rows[0].charge_id !== null) return
      const answer = await fetch(`${providerUrl}/v1/charges`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': `payment-${rows[0].id}` },
        body: JSON.stringify({ amount: cents, reference: orderId }),
      })
      if (!answer.ok) throw new Error(`the provider answered ${answer.status}`)
      const charge = (await answer.json()) as { id: string }
      await pool.query('update payments set charge_id = $2 where id = $1', [rows[0].id, charge.id])
    }
  },
  deliver: { job: { orderId: 'order-1', cents: 4200 } },
  effects: { booked: 'select count(charge_id) from payments', charged: ({ provider }) => provider.count() },
})
