/** A relay from DATABASE_URL to the recorder at RECORDER_PORT, in a process that can be killed and stopped. */
import pg from 'pg'
import { createRelay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { recorderBroker } from '../torture/recorder.ts'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'], max: 6 })
const relay = createRelay({
  store: postgres(pool).outbox,
  broker: recorderBroker(Number(process.env['RECORDER_PORT'])),
  leaseMs: Number(process.env['LEASE_MS']),
  publishTimeoutMs: Math.floor(Number(process.env['LEASE_MS']) / 3),
  pollMs: 100,
  batchMax: 50,
})
await relay.start()
console.log('started')
