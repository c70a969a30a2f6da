/**
 * A consumer in a process that dies in front of a chosen step, or tells its steps and ends when all is settled.
 *
 * Environment: DATABASE_URL, AMQP_URL, QUEUE, CONSUMER (its name), SHAPE, PIPELINE=0 for a stock pool, SETTLE = how many
 * ends of deliveries there are before it stops; KILL_AT and TRACE as ../torture/steps.ts has them.
 */
import amqp from 'amqplib'
import pg from 'pg'
import { rabbitmqQueue } from '../../src/brokers/rabbitmq/index.ts'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { projector, type Shape } from '../torture/projector.ts'
import { followSteps } from '../torture/steps.ts'

const env = process.env
followSteps(env)

const pool = new pg.Pool({
  connectionString: env['DATABASE_URL'],
  pipeline: env['PIPELINE'] !== '0',
  max: 4,
  application_name: `inbox-${process.pid}`,
})
pool.on('error', () => {})
const queue = env['QUEUE'] ?? ''
let settled = 0
let allSettled = (): void => {}
const done = new Promise<void>((resolve) => {
  allSettled = resolve
})
const consumer = projector(createOnce({ store: postgres(pool) }), env['SHAPE'] as Shape, {
  name: env['CONSUMER'] ?? '',
  source: rabbitmqQueue(() => amqp.connect(env['AMQP_URL'] ?? ''), queue),
  onEvent: (event) => {
    // For the story of a process that does not end.
    process.stdout.write(`event ${JSON.stringify(event)}\n`)
    if (event.kind !== 'applied' && event.kind !== 'duplicate' && event.kind !== 'quarantined') return
    settled += 1
    if (settled === Number(env['SETTLE'])) allSettled()
  },
})
await consumer.start()
await done
await consumer.drain()
await consumer.stop()
await pool.end()
