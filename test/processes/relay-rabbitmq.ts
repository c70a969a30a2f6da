/**
 * A relay in a process that dies in front of a chosen step, or tells its steps and ends when there is nothing to do.
 *
 * Environment: DATABASE_URL, AMQP_URL, EXCHANGE, PUBLISH = how many messages can be published, one more cannot;
 * KILL_AT and TRACE as ../torture/steps.ts has them.
 */
import amqp from 'amqplib'
import pg from 'pg'
import { rabbitmq } from '../../src/brokers/rabbitmq/index.ts'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { followSteps } from '../torture/steps.ts'

const env = process.env
followSteps(env)

const pool = new pg.Pool({ connectionString: env['DATABASE_URL'], max: 6, application_name: `relay-${process.pid}` })
pool.on('error', () => {})
let left = Number(env['PUBLISH'])
let isParked = false
let allDone = (): void => {}
const done = new Promise<void>((resolve) => {
  allDone = resolve
})
const relay = createOnce({ store: postgres(pool) }).relay({
  broker: rabbitmq(() => amqp.connect(env['AMQP_URL'] ?? ''), { exchange: env['EXCHANGE'] ?? '' }),
  leaseMs: 1_500,
  publishTimeoutMs: 500,
  pollMs: 300,
  batchMax: 3,
  // What cannot be routed is tried again by whoever comes next.
  backoff: { minMs: 60_000, maxMs: 60_000 },
  onEvent: (event) => {
    if (event.kind === 'published') left -= event.count
    if (event.kind === 'parked') isParked = true
    if (left === 0 && isParked) allDone()
  },
})
await relay.start()
await done
await relay.stop()
await pool.end()
