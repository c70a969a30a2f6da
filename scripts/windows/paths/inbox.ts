/** Paths of consumers: from a delivery to its acknowledgement, in all the ways in which a message can end. */
import amqp from 'amqplib'
import type pg from 'pg'
import { rabbitmqQueue } from '../../../src/brokers/rabbitmq/index.ts'
import type { ConsumerOptions } from '../../../src/index.ts'
import { type DrillFile, defineDrill } from '../../../src/testing/index.ts'
import { LEASE_MS, open, order, type Paths, path, rowsIn, setUp } from '../path.ts'

const QUEUE = 'orders'
const message = { queue: QUEUE, messageId: 'm-1', body: { ref: 'order-1' } }
const ONE_APPLIED = {
  applied: rowsIn('orders'),
  outputs: rowsIn('effectively_once.outbox'),
  marked: rowsIn('effectively_once.inbox'),
}

type Options = ConsumerOptions<pg.PoolClient>
type Handle = NonNullable<Options['handle']>

const apply: Handle = async ({ tx, message: { id }, outbox }) => {
  await order(tx, id)
  await outbox.add({ topic: 'applied', payload: { id } })
}

const settings = (
  amqpUrl: string,
): Pick<Options, 'name' | 'source' | 'concurrency' | 'leaseMs' | 'pollMs' | 'backoff'> => ({
  name: 'projection',
  source: rabbitmqQueue(() => amqp.connect(amqpUrl), QUEUE),
  concurrency: 1,
  leaseMs: LEASE_MS,
  pollMs: 250,
  backoff: { minMs: 1, maxMs: 1 },
})

/** A consumer that lives as long as its process. */
function consumed(
  options: Partial<Options>,
  file: Partial<DrillFile>,
  before?: (amqpUrl: string) => unknown,
): DrillFile {
  return defineDrill({
    setUp: setUp(),
    async start({ databaseUrl, amqpUrl }) {
      const { once } = open(databaseUrl)
      const by = 'handlers' in options || 'handleBatch' in options ? {} : { handle: apply }
      const begin = async (): Promise<void> => {
        await before?.(amqpUrl)
        await once.consumer({ ...settings(amqpUrl), ...by, ...options }).start()
      }
      if (before === undefined) await begin()
      else void begin()
    },
    deliver: message,
    effects: ONE_APPLIED,
    settleMs: 6 * LEASE_MS,
    ...file,
  })
}

/** Takes the first message and loses the broker, so that it comes again and says so. */
async function loseOne(amqpUrl: string): Promise<void> {
  const connection = await amqp.connect(amqpUrl)
  const channel = await connection.createChannel()
  await channel.assertQueue(QUEUE, { durable: true })
  await new Promise<void>((resolve) => {
    void channel.consume(QUEUE, () => resolve())
  })
  await connection.close()
}

const failsFirst: Handle = async (context) => {
  await apply(context)
  if (context.message.attempt === 1) throw new Error('the first attempt fails')
}

interface AtOnce {
  /** The second one fails at its first attempt. */
  readonly failing?: boolean
  readonly ids?: readonly string[]
  readonly effects?: DrillFile['effects']
}

/** Messages that are there at once, and a consumer until each of them has ended. */
function atOnce(
  options: Partial<Options>,
  { failing = false, ids = ['m-1', 'm-2', 'm-3'], effects = ONE_APPLIED }: AtOnce = {},
): DrillFile {
  return path(
    async ({ once, pool }, { amqpUrl }) => {
      // Sent anew it would be another attempt of the sender's.
      if ((await pool.query('select from effectively_once.inbox_quarantine')).rowCount !== 0) return
      const connection = await amqp.connect(amqpUrl)
      const channel = await connection.createConfirmChannel()
      await channel.assertQueue(QUEUE, { durable: true })
      for (const messageId of ids) channel.sendToQueue(QUEUE, Buffer.from('{}'), { persistent: true, messageId })
      await channel.waitForConfirms()
      await connection.close()
      const open = new Set(ids)
      let allDone = (): void => {}
      const done = new Promise<void>((resolve) => {
        allDone = resolve
      })
      const consumer = once.consumer({
        ...settings(amqpUrl),
        handleBatch: async ({ tx, messages, outbox }) => {
          for (const { id, attempt } of messages) {
            await order(tx, id)
            await outbox.add({ topic: 'applied', payload: { id } })
            if (failing && id === 'm-2' && attempt === 1) throw new Error('the first attempt fails')
          }
        },
        ...options,
        onEvent: (event) => {
          if (event.kind !== 'applied' && event.kind !== 'duplicate' && event.kind !== 'quarantined') return
          if (event.id !== undefined) open.delete(event.id)
          if (open.size === 0) allDone()
        },
      })
      await consumer.start()
      await done
      await consumer.drain()
      await consumer.stop()
    },
    { effects, expect: ids.length, queues: [QUEUE] },
  )
}

const QUARANTINED = {
  quarantined: rowsIn('effectively_once.inbox_quarantine'),
  clean: 'select 1 - count(*) from orders',
}

export const inboxPaths: Paths = {
  'inbox, each': consumed({}, {}),
  'inbox, eager': consumed({ eager: true }, {}),
  'inbox, comes again': consumed({}, { deliver: [message, message], expect: 1 }),
  'inbox, versions': consumed(
    {
      handle: async (context) => {
        const { ref, version } = context.message.body as { readonly ref: string; readonly version: number }
        if (await context.ifNewer(ref, version)) await apply(context)
      },
    },
    {
      deliver: [2, 1].map((version) => ({
        ...message,
        messageId: `m-${version}`,
        body: { ref: 'order-1', version },
      })),
      effects: { applied: rowsIn('orders'), marked: `select count(*) / 2 from effectively_once.inbox` },
      expect: 1,
    },
  ),
  'inbox, order of a key': atOnce(
    { handleBatch: undefined, handle: failsFirst, orderBy: () => 'order-1' },
    { ids: ['m-1', 'm-2'] },
  ),
  'inbox, redelivered': consumed({}, {}, loseOne),
  'inbox, fails first': atOnce({ handleBatch: undefined, handle: failsFirst }, { ids: ['m-1'] }),
  'inbox, fails for good': atOnce(
    {
      attemptsMax: 2,
      handleBatch: undefined,
      handle: () => {
        throw new Error('never')
      },
    },
    { ids: ['m-1'], effects: QUARANTINED },
  ),
  'inbox, no handler': consumed(
    { handlers: { 'another type': apply } },
    { effects: { waiting: rowsIn('effectively_once.inbox_waiting'), clean: 'select 1 - count(*) from orders' } },
  ),
  'inbox, cannot be read': consumed(
    {
      handle: async (context) => {
        void context.message.body
        await apply(context)
      },
    },
    { deliver: { ...message, body: '{"ref":' }, effects: QUARANTINED },
  ),
  'inbox, without an id': consumed({}, { deliver: { queue: QUEUE, body: {} }, effects: QUARANTINED }),
  'inbox, other content under the id': consumed(
    {},
    {
      deliver: [message, { ...message, body: { ref: 'order-2' } }],
      effects: { ...ONE_APPLIED, quarantined: rowsIn('effectively_once.inbox_quarantine') },
      expect: 1,
    },
  ),
  'inbox, batch': atOnce({}),
  'inbox, batch that is halved': atOnce({}, { failing: true }),
}
