/** One key for all attempts; the number of the attempt is for people who read the table. */
import { defineDrill, fakeProvider } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table charges (order_id text primary key, attempt int not null default 0, charge_id text);
    insert into charges (order_id) values ('order-1')`,
  provider: () => fakeProvider(),
  start({ databaseUrl, providerUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ orderId, cents }: { orderId: string; cents: number }) => {
      const take = `update charges set attempt = attempt + 1
        where order_id = $1 and charge_id is null returning attempt`
      const { rows } = await pool.query(take, [orderId])
      if (rows[0] === undefined) return
      const answer = await fetch(`${providerUrl}/v1/charges`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': `charge-${orderId}` },
        body: JSON.stringify({ amount: cents, reference: orderId }),
      })
      if (!answer.ok) throw new Error(`the provider answered ${answer.status}`)
      const charge = (await answer.json()) as { id: string }
      await pool.query('update charges set charge_id = $2 where order_id = $1', [orderId, charge.id])
    }
  },
  deliver: { job: { orderId: 'order-1', cents: 4200 } },
  effects: { booked: 'select count(charge_id) from charges', charged: ({ provider }) => provider.count() },
})
