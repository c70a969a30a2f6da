/** A relay marks the row as sent and publishes afterwards: when it dies in between, the message is sent by nobody. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, poolOf, publish } from './plumbing.ts'

export default defineDrill({
  setUp: `create table outbox (id text primary key, body jsonb not null, sent_at timestamptz);
    insert into outbox values ('m-1', '{"orderId": "order-1"}')`,
  queues: ['events'],
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    return async () => {
      const take = 'update outbox set sent_at = now() where sent_at is null returning id, body'
      const { rows } = await pool.query(take)
      for (const { id, body } of rows) await publish(channel, 'events', id, body)
    }
  },
  deliver: { job: 'relay' },
  effects: { queue: 'events' },
})
