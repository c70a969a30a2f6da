import { type Job, type JobsOptions, Queue, Worker, type WorkerOptions } from 'bullmq'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { rejected } from '../../src/index.ts'
import { processor } from '../../src/runners/bullmq/index.ts'
import { type RedisService, startRedis } from '../../src/testing/services/redis.ts'
import { eventually } from '../eventually.ts'
import { canStartRedis } from '../redis.ts'
import { type Data, latch, openScene, type Scene } from './scene.ts'

describe.skipIf(!canStartRedis)('BullMQ', () => {
  let scene: Scene
  let redis: RedisService
  const closing: { close(): Promise<unknown> }[] = []

  beforeAll(async () => {
    ;[scene, redis] = await Promise.all([openScene(), startRedis()])
  })
  afterAll(async () => {
    await Promise.all(closing.map((one) => one.close()))
    await Promise.all([scene?.close(), redis?.stop()])
  })

  let queues = 0
  /** A queue of its own with workers of `handle`. */
  function open(
    handle: (job: Job<Data>, token?: string, signal?: AbortSignal) => Promise<unknown>,
    options: Partial<WorkerOptions> = {},
    workers = 1,
  ) {
    queues += 1
    const name = `q${queues}`
    const connection = { host: redis.host, port: redis.port }
    const queue = new Queue<Data>(name, { connection })
    const made = Array.from({ length: workers }, () => {
      const worker = new Worker<Data>(name, handle, { connection, concurrency: 4, drainDelay: 1, ...options })
      worker.on('error', () => {})
      return worker
    })
    closing.push(...made, queue)
    const add = (data: Data, given: JobsOptions = {}) => queue.add('charge', data, { attempts: 3, ...given })
    const ended = async (job: Job<Data>) => {
      await eventually(`job ${job.id} has ended`, async () => ['completed', 'failed'].includes(await job.getState()))
      const found = (await queue.getJob(job.id ?? '')) as Job<Data>
      return { state: await found.getState(), result: found.returnvalue as unknown, job: found }
    }
    return { name, queue, add, ended, workers: made }
  }
  const key = (job: Job<Data>) => job.data.order
  const charging = { scope: ['acme', 'charge'], key }

  test('R37: a second job of the same intent is completed with the stored result, and nothing is charged', async () => {
    const { add, ended } = open(
      processor(scene.once, charging, async ({ tx }, job) => {
        await tx.query('insert into charges (ref) values ($1)', [job.data.order])
        return { charged: job.data.order }
      }),
    )
    const first = await ended(await add({ order: 'a' }))
    const second = await ended(await add({ order: 'a' }))
    expect(first).toMatchObject({ state: 'completed', result: { charged: 'a' } })
    expect(second).toMatchObject({ state: 'completed', result: { charged: 'a' } })
    expect(await scene.charges('a')).toBe(1)
  })

  for (const mode of ['atomic', 'run'] as const) {
    test(`SC50, B28: two jobs of one intent at once, ${mode}: one charges, the other waits in "delayed" and uses up no attempt`, async () => {
      const works = latch()
      const go = latch()
      const charge = async (tx: { query(text: string, values: unknown[]): Promise<unknown> }, ref: string) => {
        await tx.query('insert into charges (ref) values ($1)', [ref])
        works.open()
        await go.opened
        return { ref }
      }
      const handle =
        mode === 'atomic'
          ? processor(scene.once, charging, ({ tx }, job) => charge(tx, job.data.order))
          : processor(scene.once, { ...charging, mode }, (op, job) =>
              op.transaction('charge', ({ tx }) => charge(tx, job.data.order)),
            )
      const { add, ended } = open(handle)
      const first = await add({ order: `b-${mode}` })
      await works.opened
      const second = await add({ order: `b-${mode}` })
      await eventually('the second one is delayed', () => second.isDelayed())
      go.open()
      expect(await ended(first)).toMatchObject({ state: 'completed', result: { ref: `b-${mode}` } })
      const told = await ended(second)
      expect(told).toMatchObject({ state: 'completed', result: { ref: `b-${mode}` } })
      // The one that completed it.
      expect(told.job.attemptsMade).toBe(1)
      expect(await scene.charges(`b-${mode}`)).toBe(1)
    })
  }

  test('SC47, B21: a stalled job is given to a second worker beside the first, which is at work: one charge, one result', async () => {
    const works = latch()
    const go = latch()
    const stalled = latch()
    let starts = 0
    const handle = processor(scene.once, { ...charging, mode: 'run', lockDurationMs: 1_000 }, (op, job) =>
      op.transaction('charge', async ({ tx }) => {
        starts += 1
        await tx.query('insert into charges (ref) values ($1)', [job.data.order])
        works.open()
        await go.opened
        return { starts }
      }),
    )
    // Nothing renews the lock: the runner takes a living worker for dead.
    const options = { lockDuration: 1_000, lockRenewTime: 3_600_000, stalledInterval: 300, maxStalledCount: 5 }
    const { add, ended, workers } = open(handle, options, 2)
    for (const worker of workers) worker.on('stalled', () => stalled.open())
    const job = await add({ order: 'stalled' })
    await works.opened
    await stalled.opened
    await eventually('the retry has met its owner', () => job.isDelayed())
    go.open()
    expect(await ended(job)).toMatchObject({ state: 'completed', result: { starts: 1 } })
    expect(await scene.charges('stalled')).toBe(1)
  })

  test('SC48: a worker that is killed behind a step is followed by another one, which does not repeat the step', async () => {
    let beside = 0
    const handle = processor(
      scene.once,
      { ...charging, scope: 'charge', mode: 'run', lockDurationMs: 1_000 },
      async (op, job) => {
        await op.transaction('charge', async ({ tx }) => {
          beside += 1
          await tx.query('insert into charges (ref) values ($1)', [job.data.order])
          return 1
        })
        return { fence: String(op.fence) }
      },
    )
    const { add, ended, name, workers } = open(handle, { lockDuration: 1_000, stalledInterval: 300, autorun: false })
    const job = await add({ order: 'killed' })
    await scene.dieAfterCharge({ RUNNER: 'bullmq', QUEUE: name, REDIS_PORT: String(redis.port) })
    void workers[0]?.run()
    expect(await ended(job)).toMatchObject({ state: 'completed', result: { fence: '2' } })
    expect(beside).toBe(0)
    expect(await scene.charges('killed')).toBe(1)
  })

  test('B28, R44: what no retry can mend is told, and fails for good at its first attempt', async () => {
    const told: string[] = []
    const onPoison = (_job: Job<Data>, error: { readonly code: string }) => void told.push(error.code)
    const { add, ended } = open(processor(scene.once, { ...charging, onPoison }, () => null))
    await ended(await add({ order: 'c', amount: 1 }))
    const mismatch = await ended(await add({ order: 'c', amount: 2 }))
    const keyless = await ended(await add({ order: '' }))
    expect([mismatch.state, keyless.state]).toEqual(['failed', 'failed'])
    expect([mismatch.job.attemptsMade, keyless.job.attemptsMade]).toEqual([1, 1])
    expect(mismatch.job.failedReason).toContain('IDEMPOTENCY_KEY_REUSED')
    expect(told).toEqual(['IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_KEY_MISSING'])
  })

  test('SC54: a job that has failed too often is parked, and its later deliveries are no attempts of the handler', async () => {
    let starts = 0
    const handle = processor(scene.once, { ...charging, mode: 'run', failuresMax: 2 }, () => {
      starts += 1
      throw new Error('down')
    })
    const { add, ended } = open(handle)
    const told = await ended(await add({ order: 'parked' }, { attempts: 5 }))
    expect(told.state).toBe('failed')
    expect(told.job.failedReason).toContain('OPERATION_PARKED')
    expect(starts).toBe(2)
  })

  test('a failed handler is the runner\u2019s to retry, and a rejection is an outcome: completed, or failed for good', async () => {
    let starts = 0
    const flaky = open(
      processor(scene.once, charging, async ({ tx }, job) => {
        starts += 1
        await tx.query('insert into charges (ref) values ($1)', [job.data.order])
        if (starts === 1) throw new Error('not yet')
        return starts
      }),
    )
    expect(await flaky.ended(await flaky.add({ order: 'd' }))).toMatchObject({ state: 'completed', result: 2 })
    expect(await scene.charges('d')).toBe(1)
    const no = () => rejected({ code: 'LIMIT' })
    const plain = open(processor(scene.once, charging, no))
    const asFailure = open(processor(scene.once, { ...charging, whenRejected: 'fail' }, no))
    expect(await plain.ended(await plain.add({ order: 'e' }))).toMatchObject({
      state: 'completed',
      result: { rejected: { code: 'LIMIT' } },
    })
    const failed = await asFailure.ended(await asFailure.add({ order: 'e' }))
    expect([failed.state, failed.job.attemptsMade]).toEqual(['failed', 1])
  })

  test('B32: a cancelled job stops, its lease is given back at once, and the next delivery starts with a fence of its own', async () => {
    const works = latch()
    const fences: bigint[] = []
    let aborted = false
    const handle = processor(scene.once, { ...charging, mode: 'run' }, async (op) => {
      fences.push(op.fence)
      if (fences.length > 1) return 'done'
      op.signal.addEventListener('abort', () => {
        aborted = true
      })
      works.open()
      return await new Promise<never>(() => {})
    })
    const { add, ended, workers } = open(handle)
    const job = await add({ order: 'cancelled' })
    await works.opened
    expect(workers[0]?.cancelJob(job.id ?? '', 'not now')).toBe(true)
    expect(await ended(job)).toMatchObject({ state: 'completed', result: 'done' })
    expect(aborted).toBe(true)
    expect(fences).toEqual([1n, 2n])
    const history = await scene.once.history({ scope: ['acme', 'charge'], key: 'cancelled' })
    expect(history.map(({ detail }) => detail)).toContain('stopping')
  })

  test('wrong options are told when the processor is made', () => {
    const handler = () => null
    const make = (options: object) => () => processor(scene.once, options as never, handler)
    expect(make({ scope: 'x' })).toThrow(/needs key/)
    expect(make({ key })).toThrow(/needs scope/)
    expect(make({ ...charging, leaseMs: 1_000 })).toThrow(/unknown option "leaseMs"/)
    expect(make({ ...charging, mode: 'run', leaseMs: 40_000 })).toThrow(
      /leaseMs takes a whole number from 1000 to 30000/,
    )
    expect(make({ ...charging, mode: 'run', leaseMs: 40_000, lockDurationMs: 60_000 })).not.toThrow()
  })
})
