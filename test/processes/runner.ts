/**
 * A worker of BullMQ, pg-boss or Graphile Worker in a process of its own, whose handler charges, says so, and then never
 * ends: it waits for its death. Environment: RUNNER, DATABASE_URL, QUEUE, REDIS_PORT.
 */
import { type Job, Worker } from 'bullmq'
import { run } from 'graphile-worker'
import pg from 'pg'
import PgBoss from 'pg-boss'
import { createOnce, type Op } from '../../src/index.ts'
import { processor } from '../../src/runners/bullmq/index.ts'
import { task } from '../../src/runners/graphile-worker/index.ts'
import { workHandler } from '../../src/runners/pg-boss/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

const { RUNNER, DATABASE_URL: connectionString = '', QUEUE: queue = '', REDIS_PORT } = process.env
const once = createOnce({ store: postgres(new pg.Pool({ connectionString, pipeline: true, max: 5 })) })
const keyed = { mode: 'run', scope: 'charge', leaseMs: 1_000 } as const

async function charge(op: Op<pg.PoolClient>): Promise<never> {
  await op.transaction('charge', ({ tx }) => tx.query('insert into charges (ref) values ($1)', [op.key]).then(() => 1))
  process.stdout.write('charged\n')
  return await new Promise<never>(() => {})
}

interface Data {
  readonly order: string
}

if (RUNNER === 'bullmq') {
  const guarded = processor(once, { ...keyed, key: (job: Job<Data>) => job.data.order, lockDurationMs: 1_000 }, charge)
  const connection = { host: '127.0.0.1', port: Number(REDIS_PORT) }
  new Worker(queue, guarded, { connection, lockDuration: 1_000, stalledInterval: 500 })
} else if (RUNNER === 'pg-boss') {
  const boss = new PgBoss({ connectionString, supervise: false, schedule: false })
  await boss.start()
  const guarded = workHandler(once, boss, { ...keyed, key: (job: PgBoss.Job<Data>) => job.data.order }, charge)
  await boss.work<Data>(queue, { pollingIntervalSeconds: 0.5 }, guarded)
} else {
  const guarded = task(
    once,
    { ...keyed, key: ({ payload }: { payload: Data }) => payload.order, onPoison() {} },
    charge,
  )
  await run({ connectionString, taskList: { [queue]: guarded as never }, noHandleSignals: true, pollInterval: 200 })
}
process.stdin.once('end', () => process.exit())
process.stdin.resume()
