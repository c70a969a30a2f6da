/** Marks of messages are kept for five minutes, and the broker delivers again after an hour: the message is new by then. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table processed (message_id text primary key, until timestamptz not null);
    create table invoices (order_id text not null)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'orders', async (message) => {
      await transaction(pool, async (client) => {
        const { messageId } = message.properties
        await client.query('delete from processed where message_id = $1 and until < now()', [messageId])
        const mark = `insert into processed (message_id, until) values ($1, now() + interval '5 minutes')
          on conflict (message_id) do nothing`
        const { rowCount } = await client.query(mark, [messageId])
        if (rowCount === 0) return
        const { orderId } = JSON.parse(message.content.toString())
        await client.query('insert into invoices (order_id) values ($1)', [orderId])
      })
      channel.ack(message)
    })
  },
  deliver: { queue: 'orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  // What was dead-lettered, or lay in a queue whose consumer was down, comes an hour later.
  expire: `update processed set until = until - interval '1 hour'`,
  effects: 'select count(*) from invoices',
})
