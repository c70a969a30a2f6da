/** Remembers the highest id it has seen: what was late, and has a lower one, is taken for old and left out. */
import { defineDrill } from 'effectively-once/testing'
import { channelOf, consume, poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table progress (last_id int not null);
    create table movements (id int not null, sku text not null, pieces int not null);
    insert into progress values (0)`,
  async start({ databaseUrl, amqpUrl }) {
    const pool = poolOf(databaseUrl)
    const channel = await channelOf(amqpUrl)
    await consume(channel, 'stock', async (message) => {
      const { id, sku, pieces } = JSON.parse(message.content.toString())
      await transaction(pool, async (client) => {
        const { rows } = await client.query('select last_id from progress for update')
        if (id <= rows[0].last_id) return
        await client.query('insert into movements (id, sku, pieces) values ($1, $2, $3)', [id, sku, pieces])
        await client.query('update progress set last_id = $1', [id])
      })
      channel.ack(message)
    })
  },
  deliver: [
    { queue: 'stock', messageId: 'm-1', body: { id: 1, sku: 'chair', pieces: 4 } },
    { queue: 'stock', messageId: 'm-2', body: { id: 2, sku: 'table', pieces: 1 } },
  ],
  effects: 'select count(*) from movements',
})
