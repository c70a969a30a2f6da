/** The order's id is the provider's key: a repeat gets the charge that is already there. */
import { defineDrill, fakeProvider } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table charges (order_id text primary key, charge_id text not null)',
  provider: () => fakeProvider(),
  start({ databaseUrl, providerUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ orderId, cents }: { orderId: string; cents: number }) => {
      const { rows } = await pool.query('select charge_id from charges where order_id = $1', [orderId])
      if (rows.length > 0) return
      const answer = await fetch(`${providerUrl}/v1/charges`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': `charge-${orderId}` },
        body: JSON.stringify({ amount: cents, reference: orderId }),
      })
      if (!answer.ok) throw new Error(`the provider answered ${answer.status}`)
      const charge = (await answer.json()) as { id: string }
      await pool.query('insert into charges values ($1, $2) on conflict do nothing', [orderId, charge.id])
    }
  },
  deliver: { job: { orderId: 'order-1', cents: 4200 } },
  effects: { booked: 'select count(*) from charges', charged: ({ provider }) => provider.count() },
})
