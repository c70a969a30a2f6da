/** Each payment is a row, once; the sum changes only together with a new row. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table accounts (id text primary key, cents int not null);
    create table payments (id text primary key, account text not null references accounts, cents int not null);
    insert into accounts values ('anna', 0)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'payments', async (message) => {
      const { paymentId, account, cents } = JSON.parse(message.content.toString())
      await transaction(pool, async (client) => {
        const insert = 'insert into payments (id, account, cents) values ($1, $2, $3) on conflict (id) do nothing'
        const { rowCount } = await client.query(insert, [paymentId, account, cents])
        if (rowCount === 1) {
          await client.query('update accounts set cents = cents + $2 where id = $1', [account, cents])
        }
      })
      channel.ack(message)
    })
  },
  deliver: { queue: 'payments', messageId: 'm-1', body: { paymentId: 'p-1', account: 'anna', cents: 4200 } },
  effects: 'select cents / 4200 from accounts',
})
