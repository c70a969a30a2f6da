/** What the handlers of the zoo share, and what is right in all of them: a pool, a transaction, a consumer. */
import amqp, { type ConfirmChannel, type ConsumeMessage } from 'amqplib'
import { createOnce } from 'effectively-once'
import { postgres } from 'effectively-once/postgres'
import pg from 'pg'

export function poolOf(databaseUrl: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: databaseUrl })
  // A connection that is cut fails its statements; it must not end the process as well.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}

/** Runs `work` between BEGIN and COMMIT; an error ends the connection, and the transaction with it. */
export async function transaction<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const result = await work(client)
    await client.query('commit')
    client.release()
    return result
  } catch (error) {
    client.release(true)
    throw error
  }
}

/** The channel of a process that ends when the broker is lost: whoever runs it starts it again. */
export async function channelOf(amqpUrl: string): Promise<ConfirmChannel> {
  const connection = await amqp.connect(amqpUrl)
  for (const end of ['error', 'close']) connection.on(end, () => process.exit(1))
  return connection.createConfirmChannel()
}

/** Hands each message of a queue to `handle`, which acknowledges it; when it fails, the message comes again. */
export async function consume(
  channel: ConfirmChannel,
  queue: string,
  handle: (message: ConsumeMessage) => Promise<void>,
): Promise<void> {
  await channel.prefetch(10)
  await channel.consume(queue, (message) => {
    if (message !== null) handle(message).catch(() => channel.nack(message))
  })
}

/** Publishes to a queue and waits for the broker's confirm. */
export function publish(channel: ConfirmChannel, queue: string, messageId: string, body: object): Promise<void> {
  return new Promise((resolve, reject) => {
    channel.sendToQueue(queue, Buffer.from(JSON.stringify(body)), { persistent: true, messageId }, (error) => {
      if (error === null || error === undefined) resolve()
      else reject(new Error('the broker did not take the message', { cause: error }))
    })
  })
}

/** Creates the tables of effectively-once. */
export async function migrate(databaseUrl: string): Promise<void> {
  const pool = poolOf(databaseUrl)
  await createOnce({ store: postgres(pool) }).migrate()
  await pool.end()
}
