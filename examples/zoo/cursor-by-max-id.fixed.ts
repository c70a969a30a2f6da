/** Remembers every id: each movement is a row under its own. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table movements (id int primary key, sku text not null, pieces int not null)',
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'stock', async (message) => {
      const { id, sku, pieces } = JSON.parse(message.content.toString())
      const insert = 'insert into movements (id, sku, pieces) values ($1, $2, $3) on conflict (id) do nothing'
      await pool.query(insert, [id, sku, pieces])
      channel.ack(message)
    })
  },
  deliver: [
    { queue: 'stock', messageId: 'm-1', body: { id: 1, sku: 'chair', pieces: 4 } },
    { queue: 'stock', messageId: 'm-2', body: { id: 2, sku: 'table', pieces: 1 } },
  ],
  effects: 'select count(*) from movements',
})
