/** Published first, marked after the broker's confirm: it may be sent twice, with one id, and is never lost. */
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
      const { rows } = await pool.query('select id, body from outbox where sent_at is null order by id')
      for (const { id, body } of rows) {
        await publish(channel, 'events', id, body)
        await pool.query('update outbox set sent_at = now() where id = $1', [id])
      }
    }
  },
  deliver: { job: 'relay' },
  effects: { queue: 'events' },
})
