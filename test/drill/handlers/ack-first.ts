/** A consumer that acknowledges in front of its work: what is acknowledged is not delivered again. */
import amqp from 'amqplib'
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  setUp: 'create table invoices (order_id text primary key)',
  async start({ databaseUrl, amqpUrl }) {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    const connection = await amqp.connect(amqpUrl)
    connection.on('error', () => process.exit(1))
    connection.on('close', () => process.exit(1))
    const channel = await connection.createChannel()
    await channel.consume('drill.orders', (message) => {
      if (message === null) return
      const { orderId } = JSON.parse(message.content.toString()) as { orderId: string }
      channel.ack(message)
      pool.query('insert into invoices values ($1) on conflict do nothing', [orderId]).catch(() => process.exit(1))
    })
  },
  deliver: { queue: 'drill.orders', messageId: 'm-1', body: { orderId: 'order-1' } },
  effects: 'select count(*) from invoices',
}

export default file
