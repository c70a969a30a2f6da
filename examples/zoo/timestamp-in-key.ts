/** The time of processing is part of the key: the same message a moment later is another one, and is invoiced again. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table invoices (key text primary key, order_id text not null)',
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'orders', async (message) => {
      const { orderId } = JSON.parse(message.content.toString())
      const key = `${orderId}:${Date.now()}`
      await pool.query('insert into invoices (key, order_id) values ($1, $2) on conflict do nothing', [key, orderId])
      channel.ack(message)
    })
  },
  deliver: { queue: 'orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  effects: 'select count(*) from invoices',
})
