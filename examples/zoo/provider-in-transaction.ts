/** Charged inside of the transaction, with its row's id as the key: after a rollback the row has another id. */
import { defineDrill, fakeProvider } from 'effectively-once/testing'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table payments (id int generated always as identity, order_id text primary key, charge_id text)`,
  provider: () => fakeProvider(),
  start({ databaseUrl, providerUrl }) {
    const pool = poolOf(databaseUrl)
    return ({ orderId, cents }: { orderId: string; cents: number }) =>
      transaction(pool, async (client) => {
        const insert = 'insert into payments (order_id) values ($1) on conflict (order_id) do nothing returning id'
        const { rows } = await client.query(insert, [orderId])
        if (rows[0] === undefined) return
        const answer = await fetch(`${providerUrl}/v1/charges`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', 'idempotency-key': `payment-${rows[0].id}` },
          body: JSON.stringify({ amount: cents, reference: orderId }),
        })
        if (!answer.ok) throw new Error(`the provider answered ${answer.status}`)
        const charge = (await answer.json()) as { id: string }
        await client.query('update payments set charge_id = $2 where id = $1', [rows[0].id, charge.id])
      })
  },
  deliver: { job: { orderId: 'order-1', cents: 4200 } },
  effects: { booked: 'select count(charge_id) from payments', charged: ({ provider }) => provider.count() },
})
