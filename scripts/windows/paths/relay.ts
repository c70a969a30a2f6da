/** Paths of the relay: from a committed row to the broker's confirm, and what cannot be sent. */
import amqp from 'amqplib'
import { rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import type { RelayOptions } from '../../../src/index.ts'
import type { DrillFile } from '../../../src/testing/index.ts'
import { LEASE_MS, type Opened, type Paths, path, rowsIn } from '../path.ts'

const QUEUE = 'events'
const PENDING = `effectively_once.outbox`

interface Relayed {
  readonly relay?: Partial<RelayOptions>
  readonly prepare: (opened: Opened) => unknown
  readonly effects: DrillFile['effects']
  readonly queues?: readonly string[]
  readonly expect?: number
  readonly lanes?: number
}

/** Runs a relay until nothing is pending. */
function relayed({ relay: options, prepare, effects, lanes, queues = [QUEUE], expect = 1 }: Relayed): DrillFile {
  return path(
    async ({ once, pool }, { amqpUrl }) => {
      const { rows } = await pool.query<{ left: number }>(
        `select ((select count(*) from effectively_once.outbox)
           + (select count(*) from effectively_once.outbox_parked where next_at < now() + interval '1 minute'))::int as left`,
      )
      let left = Number(rows[0]?.left)
      if (left === 0) return
      let allDone = (): void => {}
      const done = new Promise<void>((resolve) => {
        allDone = resolve
      })
      const relay = once.relay({
        broker: rabbitmq(() => amqp.connect(amqpUrl), { exchange: '' }),
        leaseMs: LEASE_MS,
        publishTimeoutMs: 300,
        pollMs: 400,
        ...options,
        onEvent: (event) => {
          if (event.kind === 'published') left -= event.count
          if (event.kind === 'parked' || event.kind === 'quarantined') left -= 1
          if (left <= 0) allDone()
        },
      })
      await relay.start()
      await done
      await relay.stop()
    },
    { prepare, effects, queues, expect, open: { outbox: { lanes } } },
  )
}

/** Commits messages, as works do. */
const adds =
  (count: number, message: { readonly topic?: string; readonly orderingKey?: string } = {}) =>
  ({ once }: Opened) =>
    once.transaction({ scope: 'shop', key: 'messages', payload: null }, async ({ tx, outbox }) => {
      await tx.query('select 1')
      for (let n = 1; n <= count; n += 1) await outbox.add({ topic: QUEUE, payload: { n }, ...message })
    })

const published = (count: number) => ({
  published: { queue: QUEUE },
  settled: `select ${count} - count(*) from ${PENDING}`,
})
const ONE_AT_A_TIME = { batchMax: 1, windowMax: 1 }
/** Whoever comes next tries again, not this one. */
const LATER = { minMs: 3_600_000, maxMs: 3_600_000 }

export const relayPaths: Paths = {
  'relay, one at a time': relayed({
    relay: ONE_AT_A_TIME,
    prepare: adds(2),
    effects: published(2),
    expect: 2,
  }),
  'relay, a window of three': relayed({ prepare: adds(3), effects: published(3), expect: 3 }),
  'relay, strict order': relayed({
    relay: { strictOrder: true },
    prepare: adds(3, { orderingKey: 'order-1' }),
    effects: published(3),
    expect: 3,
  }),
  'relay, history': relayed({
    relay: { ...ONE_AT_A_TIME, history: true },
    prepare: adds(2),
    effects: { ...published(2), kept: rowsIn('effectively_once.outbox_history') },
    expect: 2,
  }),
  'relay, two lanes': relayed({
    lanes: 2,
    prepare: async ({ once }) => {
      await once.transaction({ scope: 'shop', key: 'messages', payload: null }, async ({ tx, outbox }) => {
        await tx.query('select 1')
        for (const orderingKey of ['a', 'b', 'c', 'd']) {
          await outbox.add({ topic: QUEUE, payload: { orderingKey }, orderingKey })
        }
      })
    },
    effects: published(4),
    expect: 4,
  }),
  'relay, no queue for it': relayed({
    relay: { ...ONE_AT_A_TIME, backoff: LATER },
    prepare: async (opened) => {
      await adds(1, { topic: 'nowhere' })(opened)
      await opened.once.transaction({ scope: 'shop', key: 'next', payload: null }, async ({ tx, outbox }) => {
        await tx.query('select 1')
        await outbox.add({ topic: QUEUE, payload: {} })
      })
    },
    effects: { published: { queue: QUEUE }, parked: rowsIn('effectively_once.outbox_parked') },
  }),
  'relay, parked and due': relayed({
    relay: ONE_AT_A_TIME,
    prepare: async (opened) => {
      const { once, pool } = opened
      await adds(2)(opened)
      let allDone = (): void => {}
      const done = new Promise<void>((resolve) => {
        allDone = resolve
      })
      let parked = 0
      const refusing = once.relay({
        broker: {
          name: 'refusing',
          openPublisher: () => ({
            state: { kind: 'open' },
            publish: (_message, settled) => settled({ kind: 'returned', reason: 'no queue' }),
            ready: async () => {},
            close: async () => {},
          }),
        },
        backoff: LATER,
        pollMs: 50,
        onEvent: (event) => {
          parked += event.kind === 'parked' ? 1 : 0
          if (parked === 2) allDone()
        },
      })
      await refusing.start()
      await done
      await refusing.stop()
      await pool.query('update effectively_once.outbox_parked set next_at = now()')
    },
    effects: { published: { queue: QUEUE }, settled: 'select 2 - count(*) from effectively_once.outbox_parked' },
    expect: 2,
  }),
  'relay, a message that no broker takes': relayed({
    relay: ONE_AT_A_TIME,
    prepare: async (opened) => {
      await adds(1, { topic: 'x'.repeat(255) })(opened)
      await opened.pool.query(`update effectively_once.outbox set topic = repeat('x', 300)`)
      await opened.once.transaction({ scope: 'shop', key: 'next', payload: null }, async ({ tx, outbox }) => {
        await tx.query('select 1')
        await outbox.add({ topic: QUEUE, payload: {} })
      })
    },
    effects: { published: { queue: QUEUE }, quarantined: rowsIn('effectively_once.outbox_quarantine') },
  }),
}
