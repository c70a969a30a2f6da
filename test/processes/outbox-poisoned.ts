/** A relay whose process dies whenever it sends a message that says "poison"; others are noted in the table `sent`. */
import pg from 'pg'
import type { Broker } from '../../src/broker/contract.ts'
import { createRelay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'], max: 6 })
const broker: Broker = {
  name: 'fragile',
  openPublisher: () => ({
    state: { kind: 'open' },
    publish({ payload }, settled) {
      if (String(payload).includes('poison')) process.kill(process.pid, 'SIGKILL')
      void pool.query('insert into sent values ($1)', [String(payload)]).then(() => settled({ kind: 'confirmed' }))
    },
    ready: async () => {},
    close: async () => {},
  }),
}
await createRelay({ store: postgres(pool).outbox, broker, leaseMs: 500, publishTimeoutMs: 150, pollMs: 50 }).start()
