/** An amount is added and nothing remembers for which payment: a message that comes again adds it again. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table accounts (id text primary key, cents int not null);
    insert into accounts values ('anna', 0)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'payments', async (message) => {
      const { account, cents } = JSON.parse(message.content.toString())
      await pool.query('update accounts set cents = cents + $2 where id = $1', [account, cents])
      channel.ack(message)
    })
  },
  deliver: { queue: 'payments', messageId: 'm-1', body: { paymentId: 'p-1', account: 'anna', cents: 4200 } },
  effects: 'select cents / 4200 from accounts',
})
