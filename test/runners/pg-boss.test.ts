import PgBoss from 'pg-boss'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { rejected } from '../../src/index.ts'
import { workHandler } from '../../src/runners/pg-boss/index.ts'
import { eventually } from '../eventually.ts'
import { type Data, latch, openScene, type Scene } from './scene.ts'

let scene: Scene
let boss: PgBoss

beforeAll(async () => {
  scene = await openScene()
  boss = new PgBoss({ connectionString: scene.url, maintenanceIntervalSeconds: 1, schedule: false })
  boss.on('error', () => {})
  await boss.start()
})
afterAll(async () => {
  await boss?.stop({ graceful: false, close: true, wait: true })
  await scene?.close()
})

const key = (job: PgBoss.Job<Data>) => job.data.order
const charging = { scope: ['acme', 'charge'], key }
type Handle = (jobs: PgBoss.Job<Data>[]) => Promise<unknown>

let queues = 0
async function open(handle: Handle, work: PgBoss.WorkOptions = {}, workers = 1) {
  queues += 1
  const name = `q${queues}`
  await boss.createQueue(name)
  const start = async () => {
    for (let made = 0; made < workers; made++)
      await boss.work<Data>(name, { pollingIntervalSeconds: 0.5, ...work }, handle)
  }
  const send = async (data: Data, options: PgBoss.SendOptions = {}) =>
    (await boss.send(name, data, { retryLimit: 3, ...options })) as string
  const ended = async (id: string) => {
    const done = ['completed', 'failed', 'cancelled']
    const state = async () => (await boss.getJobById(name, id))?.state ?? ''
    await eventually(`job ${id} has ended`, async () => done.includes(await state()))
    const job = await boss.getJobById<Data>(name, id)
    return { state: job?.state, output: job?.output as unknown, retries: job?.retryCount }
  }
  return { name, start, send, ended }
}

test('R37: a second job of the same intent is completed with the stored result, and nothing is charged', async () => {
  const q = await open(
    workHandler(scene.once, boss, charging, async ({ tx }, job) => {
      await tx.query('insert into charges (ref) values ($1)', [job.data.order])
      return { charged: job.data.order }
    }),
  )
  const ids = [await q.send({ order: 'a' }), await q.send({ order: 'a' })]
  await q.start()
  for (const id of ids) expect(await q.ended(id)).toMatchObject({ state: 'completed', output: { charged: 'a' } })
  expect(await scene.charges('a')).toBe(1)
})

test('SC50, B28: two jobs of one intent at once: one charges, the other waits for it and uses up no retry', async () => {
  const works = latch()
  const go = latch()
  let delivered = 0
  const handle = workHandler(scene.once, boss, { ...charging, mode: 'run' }, (op, job) =>
    op.transaction('charge', async ({ tx }) => {
      await tx.query('insert into charges (ref) values ($1)', [job.data.order])
      works.open()
      await go.opened
      return { ref: job.data.order }
    }),
  )
  const counted: Handle = (jobs) => {
    delivered += jobs.length
    return handle(jobs)
  }
  const q = await open(counted, {}, 2)
  const ids = [await q.send({ order: 'b' }), await q.send({ order: 'b' })]
  await q.start()
  await works.opened
  await eventually('both were delivered', () => delivered === 2)
  go.open()
  for (const id of ids) {
    expect(await q.ended(id)).toEqual({ state: 'completed', output: { ref: 'b' }, retries: 0 })
  }
  expect(await scene.charges('b')).toBe(1)
})

for (const mode of ['atomic', 'run'] as const) {
  test(`B21, SC47: an expired handler that does not listen runs on beside its retry, ${mode}: it was told to stop, and stores nothing`, async () => {
    const order = `expired-${mode}`
    const retried = latch()
    const late = latch()
    let starts = 0
    let aborted = false
    let refusal: unknown
    const charge = async (
      tx: { query(text: string, values: unknown[]): Promise<unknown> },
      signal: AbortSignal,
      next: () => Promise<unknown>,
    ) => {
      starts += 1
      await tx.query('insert into charges (ref) values ($1)', [order])
      if (starts > 1) {
        retried.open()
        return { starts }
      }
      signal.addEventListener('abort', () => {
        aborted = true
      })
      await retried.opened
      refusal = await next().then(
        () => 'not refused',
        (error: unknown) => error,
      )
      late.open()
      return { starts: 0 }
    }
    const insert = "insert into charges (ref, step) values ($1, 'late')"
    const q = await open(
      mode === 'atomic'
        ? workHandler(scene.once, boss, charging, ({ tx, signal }) =>
            charge(tx, signal, () => tx.query(insert, [order])),
          )
        : workHandler(scene.once, boss, { ...charging, mode }, async (op) => {
            const own = {
              query: (text: string, values: unknown[]) =>
                op.transaction('charge', ({ tx }) => tx.query(text, values).then(() => 1)),
            }
            return await charge(own, op.signal, () =>
              op.transaction('late', ({ tx }) => tx.query(insert, [order]).then(() => 1)),
            )
          }),
      {},
      2,
    )
    const id = await q.send({ order }, { expireInSeconds: 2 })
    await q.start()
    expect(await q.ended(id)).toMatchObject({ state: 'completed', output: { starts: 2 } })
    await late.opened
    expect(aborted).toBe(true)
    expect(refusal).not.toBe('not refused')
    expect(await scene.charges(order)).toBe(1)
    const outcome = await scene.once.transaction({ ...charging, key: order, payload: { order } }, () => null)
    expect(outcome).toMatchObject({ replayed: true, value: { starts: 2 } })
  })
}

test('SC48: a worker that is killed behind a step is followed by another one, which does not repeat the step', async () => {
  let beside = 0
  const q = await open(
    workHandler(scene.once, boss, { ...charging, scope: 'charge', mode: 'run', leaseMs: 1_000 }, async (op) => {
      await op.transaction('charge', async () => {
        beside += 1
        return 1
      })
      return { fence: String(op.fence) }
    }),
  )
  const id = await q.send({ order: 'killed' }, { expireInSeconds: 3 })
  await scene.dieAfterCharge({ RUNNER: 'pg-boss', QUEUE: q.name })
  await q.start()
  expect(await q.ended(id)).toMatchObject({ state: 'completed', output: { fence: '2' } })
  expect(beside).toBe(0)
  expect(await scene.charges('killed')).toBe(1)
})

test('B28, R44: what no retry can mend is told and cancelled, with its retries unused', async () => {
  const told: string[] = []
  const onPoison = (_job: PgBoss.Job<Data>, error: { readonly code: string }) => void told.push(error.code)
  const q = await open(workHandler(scene.once, boss, { ...charging, onPoison }, () => null))
  await q.start()
  await q.ended(await q.send({ order: 'c', amount: 1 }))
  expect(await q.ended(await q.send({ order: 'c', amount: 2 }))).toMatchObject({ state: 'cancelled', retries: 0 })
  expect(await q.ended(await q.send({ order: '' }))).toMatchObject({ state: 'cancelled', retries: 0 })
  expect(told).toEqual(['IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_KEY_MISSING'])
})

test('a batch: what was done is completed with its own result, and only what has failed is tried again', async () => {
  const starts = new Map<string, number>()
  const q = await open(
    workHandler(scene.once, boss, charging, async ({ tx }, { data }) => {
      const start = (starts.get(data.order) ?? 0) + 1
      starts.set(data.order, start)
      await tx.query('insert into charges (ref) values ($1)', [data.order])
      if (data.order === 'f2' && start === 1) throw new Error('not yet')
      return data.order === 'f3' ? rejected('no') : { start }
    }),
    { batchSize: 5 },
  )
  const ids = [await q.send({ order: 'f1' }), await q.send({ order: 'f2' }), await q.send({ order: 'f3' })]
  await q.start()
  const ended = await Promise.all(ids.map((id) => q.ended(id)))
  expect(ended).toEqual([
    { state: 'completed', output: { start: 1 }, retries: 0 },
    { state: 'completed', output: { start: 2 }, retries: 1 },
    { state: 'completed', output: { rejected: 'no' }, retries: 0 },
  ])
  expect(Object.fromEntries(starts)).toEqual({ f1: 1, f2: 2, f3: 1 })
  expect(await scene.charges('f2')).toBe(1)
})
