/** The consumer's name is part of the mark: each applies the message once for itself. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table processed (consumer text, message_id text, primary key (consumer, message_id));
    create table invoices (order_id text not null);
    create table shipments (order_id text not null)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    const consumer = (queue: string, insert: string) =>
      consume(channel, queue, async (message) => {
        await transaction(pool, async (client) => {
          const mark = 'insert into processed (consumer, message_id) values ($1, $2) on conflict do nothing'
          const { rowCount } = await client.query(mark, [queue, message.properties.messageId])
          if (rowCount === 1) await client.query(insert, [JSON.parse(message.content.toString()).orderId])
        })
        channel.ack(message)
      })
    await consumer('billing', 'insert into invoices (order_id) values ($1)')
    await consumer('shipping', 'insert into shipments (order_id) values ($1)')
  },
  deliver: ['billing', 'shipping'].map((queue) => ({ queue, messageId: 'm-1', body: { orderId: 'order-1' } })),
  effects: { invoices: 'select count(*) from invoices', shipments: 'select count(*) from shipments' },
  expect: 1,
})
