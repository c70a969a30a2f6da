/** The mark of the message is committed before its work: after a death in between, the repeat is taken for a duplicate. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table processed (message_id text primary key);
    create table invoices (order_id text not null)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'orders', async (message) => {
      const mark = 'insert into processed (message_id) values ($1) on conflict do nothing'
      const { rowCount } = await pool.query(mark, [message.properties.messageId])
      if (rowCount === 1) {
        const { orderId } = JSON.parse(message.content.toString())
        await pool.query('insert into invoices (order_id) values ($1)', [orderId])
      }
      channel.ack(message)
    })
  },
  deliver: { queue: 'orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  effects: 'select count(*) from invoices',
})
