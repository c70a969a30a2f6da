/** Mark and work are one transaction: either both are there, or the message is new. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table processed (message_id text primary key);
    create table invoices (order_id text not null)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'orders', async (message) => {
      await transaction(pool, async (client) => {
        const mark = 'insert into processed (message_id) values ($1) on conflict do nothing'
        const { rowCount } = await client.query(mark, [message.properties.messageId])
        if (rowCount === 0) return
        const { orderId } = JSON.parse(message.content.toString())
        await client.query('insert into invoices (order_id) values ($1)', [orderId])
      })
      channel.ack(message)
    })
  },
  deliver: { queue: 'orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  effects: 'select count(*) from invoices',
})
