/** The message is acknowledged before its work is stored: a process that dies in between has lost it for good. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table shipments (order_id text primary key)',
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'orders', async (message) => {
      channel.ack(message)
      const { orderId } = JSON.parse(message.content.toString())
      await pool.query('insert into shipments (order_id) values ($1) on conflict do nothing', [orderId])
    })
  },
  deliver: { queue: 'orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  effects: 'select count(*) from shipments',
})
