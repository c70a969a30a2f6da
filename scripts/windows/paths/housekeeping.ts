/** Paths of what runs beside: schedules, chunks, purges, migrations, the ledger. */
import { createLedger, transfer } from '../../../src/ledger/index.ts'
import { pause } from '../../../src/shared/waiting.ts'
import { defineDrill } from '../../../src/testing/index.ts'
import { LEASE_MS, open, order, type Paths, path, rowsIn } from '../path.ts'

const DAY_MS = 86_400_000
const entry = { id: 'order-1/charge', movements: transfer('customer', 'shop', 4200n, 'EUR') }
const BALANCE = `select count(*) from effectively_once.ledger_entry`

export const housekeepingPaths: Paths = {
  'chunks of a stream': path(
    async ({ once }) => {
      for (;;) {
        const { advanced } = await once.chunk<number>(
          { scope: 'import', name: 'orders' },
          async ({ tx, outbox, position = 0 }) => {
            if (position === 4) return undefined
            await order(tx, `row-${position}`)
            await order(tx, `row-${position + 1}`)
            await outbox.add({ topic: 'imported', payload: { position } })
            return position + 2
          },
        )
        if (!advanced) return
      }
    },
    {
      effects: {
        rows: `select count(*) / 2 from orders`,
        different: `select count(distinct ref) / 2 from orders`,
        messages: rowsIn('effectively_once.outbox'),
      },
      expect: 2,
    },
  ),
  'ticks of a schedule': path(
    async ({ once, pool }) => {
      const kind = once.define('report', {
        leaseMs: LEASE_MS,
        handler: (op) => op.transaction('order', ({ tx }) => order(tx, op.key)),
      })
      const scheduler = once.schedule('daily', {
        everyMs: DAY_MS,
        kind,
        payload: null,
        catchUp: 'all',
        catchUpMaxMs: 30 * DAY_MS,
        pollMs: 1_000,
      })
      const worker = once.worker({ kinds: [kind], pollMs: 50, concurrency: 1, graceMs: 0 })
      await scheduler.start()
      await worker.start()
      const open = `select (select count(*) from effectively_once.operation where kind is not null and state = 'succeeded') >= 2
        and not exists (select from effectively_once.operation where state = 'processing') as done`
      while ((await pool.query<{ done: boolean }>(open)).rows[0]?.done !== true) await pause(50)
      await Promise.all([scheduler.stop(), worker.stop()])
    },
    {
      prepare: async ({ once, pool }) => {
        const kind = once.define('report', { leaseMs: LEASE_MS, handler: () => null })
        const scheduler = once.schedule('daily', { everyMs: DAY_MS, kind, payload: null, pollMs: 50 })
        await scheduler.start()
        for (;;) {
          const { rowCount } = await pool.query('select from effectively_once.progress')
          if (rowCount === 1) break
        }
        await scheduler.stop()
        await pool.query(
          `update effectively_once.progress set position = json_build_object('at',
             to_char((position::json ->> 'at')::timestamptz at time zone 'utc' - interval '49 hours', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))`,
        )
      },
      effects: {
        each: 'select (count(*) = count(distinct ref) and count(*) between 2 and 3)::int from orders',
        done: `select (count(*) = (select count(*) from orders))::int from effectively_once.operation
          where kind is not null and state = 'succeeded'`,
      },
    },
  ),
  'purge of records, marks and history': path(
    async ({ once }) => {
      await once.purge({ batchRows: 1, restMs: 0, historyMs: 1_000 })
    },
    {
      prepare: async ({ once, pool }) => {
        for (const key of ['old-1', 'old-2', 'kept']) {
          await once.transaction({ scope: 'shop', key, payload: null }, ({ tx }) => order(tx, key))
        }
        await pool.query(`
          update effectively_once.operation set expires_at = now() - interval '1 day'
            where id <> (select max(id::text)::uuid from effectively_once.operation);
          insert into effectively_once.outbox_history (lane, seq, id, topic, payload, encoding, content_type, headers, created_at, published_at)
            select 0, n, gen_random_uuid(), 'old', '{}', 'text', 'application/json', '{}', now(), now() - interval '1 hour'
            from generate_series(1, 2) n;
          insert into effectively_once.inbox (id, consumer, source, message_id, fingerprint, expires_at)
            select gen_random_uuid(), 'c', '', n::text, '\\x00', now() - interval '9 days' from generate_series(1, 2) n`)
      },
      effects: { left: 'select count(*) from effectively_once.operation', orders: 'select count(*) / 3 from orders' },
    },
  ),
  migration: defineDrill({
    setUp: 'create table orders (id int)',
    start({ databaseUrl }) {
      const { once } = open(databaseUrl)
      return async () => {
        await once.migrate()
        await once.check()
      }
    },
    effects: {
      complete: `select (count(*) = max(version) + 1 and count(*) >= 8)::int from effectively_once.migration`,
    },
    settleMs: 6 * LEASE_MS,
  }),
  'ledger, entry and its reversal': path(
    async ({ pool }) => {
      const ledger = createLedger(pool)
      await ledger.post(entry)
      await ledger.reverse(entry.id, { id: 'order-1/refund' })
    },
    { effects: { entries: BALANCE }, expect: 2 },
  ),
  'ledger, in a transaction of an operation': path(
    async ({ once, pool }) => {
      const ledger = createLedger(pool)
      await once.transaction({ scope: 'shop', key: 'order-1', payload: null }, async ({ tx }) => {
        await order(tx, 'order-1')
        await ledger.in(tx).post(entry)
      })
    },
    { effects: { entries: BALANCE, orders: rowsIn('orders') } },
  ),
}
