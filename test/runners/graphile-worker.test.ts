import { Logger, makeWorkerUtils, type Runner, run, runMigrations, runOnce, type WorkerUtils } from 'graphile-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { rejected } from '../../src/index.ts'
import { type TaskJob, task } from '../../src/runners/graphile-worker/index.ts'
import { eventually } from '../eventually.ts'
import { type Data, latch, openScene, type Scene } from './scene.ts'

let scene: Scene
let utils: WorkerUtils
const logger = new Logger(() => () => {})

beforeAll(async () => {
  scene = await openScene()
  await runMigrations({ connectionString: scene.url, logger })
  utils = await makeWorkerUtils({ connectionString: scene.url, logger })
})
afterAll(async () => {
  await utils?.release()
  await scene?.close()
})

const charging = {
  scope: ['acme', 'charge'],
  key: ({ payload }: TaskJob<Data>) => payload.order,
  onPoison: (_job: TaskJob<Data>, error: { readonly code: string }) => void told.push(error.code),
}
const told: string[] = []
type Handle = (payload: Data, helpers: never) => Promise<void>

/** Works until nothing is due. */
const workOff = (name: string, handle: Handle) =>
  runOnce({ connectionString: scene.url, taskList: { [name]: handle as never }, noHandleSignals: true, logger })

/** A worker until the end of the block. */
async function working(name: string, handle: Handle, options: object = {}): Promise<Runner & AsyncDisposable> {
  const taskList = { [name]: handle as never }
  const base = { connectionString: scene.url, taskList, noHandleSignals: true, pollInterval: 100, logger }
  const runner = await run({ ...base, ...options })
  return Object.assign(runner, { [Symbol.asyncDispose]: () => runner.stop().catch(() => {}) })
}
const left = async (name: string) => {
  const { rows } = await scene.pool.query(
    'select attempts, last_error from graphile_worker.jobs where task_identifier = $1',
    [name],
  )
  return rows
}

/** Runners release a job after they have said that they are done. */
const gone = (name: string) => eventually(`${name} is gone`, async () => (await left(name)).length === 0)
const kept = (name: string, error: string) =>
  eventually(`${name} waits for its retry`, async () => (await left(name))[0]?.last_error === error)

test('R37: a second job of the same intent succeeds without charging', async () => {
  let starts = 0
  const handle = task(scene.once, charging, async ({ tx }, { payload }) => {
    await tx.query('insert into charges (ref) values ($1)', [payload.order])
    starts += 1
  })
  await utils.addJob('a', { order: 'a' })
  await utils.addJob('a', { order: 'a' })
  await workOff('a', handle)
  await gone('a')
  expect([starts, await scene.charges('a')]).toEqual([1, 1])
})

test('SC50, B28: two jobs of one intent at once: one charges, the other waits for it and uses up no attempt', async () => {
  const works = latch()
  const go = latch()
  let delivered = 0
  const handle = task(scene.once, { ...charging, mode: 'run' }, (op, { payload }) =>
    op.transaction('charge', async ({ tx }) => {
      await tx.query('insert into charges (ref) values ($1)', [payload.order])
      works.open()
      await go.opened
      return 1
    }),
  )
  const failures: string[] = []
  const counted: Handle = async (payload, helpers) => {
    delivered += 1
    await handle(payload, helpers).catch((error: Error) => {
      failures.push(error.message)
      throw error
    })
  }
  await utils.addJob('b', { order: 'b' })
  await utils.addJob('b', { order: 'b' })
  await using _ = await working('b', counted, { concurrency: 2 })
  await works.opened
  await eventually('both were delivered', () => delivered === 2)
  go.open()
  await eventually('both are done', async () => (await left('b')).length === 0)
  expect(failures).toEqual([])
  expect(await scene.charges('b')).toBe(1)
})

test('SC48: a worker that is killed behind a step is followed by another one, which does not repeat the step', async () => {
  let beside = 0
  let fence: bigint | undefined
  const own = { ...charging, scope: 'charge', mode: 'run', leaseMs: 1_000 } as const
  const handle = task(scene.once, own, async (op) => {
    fence = op.fence
    await op.transaction('charge', async () => {
      beside += 1
      return 1
    })
  })
  await utils.addJob('killed', { order: 'killed' })
  await scene.dieAfterCharge({ RUNNER: 'graphile-worker', QUEUE: 'killed' })
  const { rows } = await scene.pool.query('select locked_by from graphile_worker.jobs where locked_by is not null')
  await utils.forceUnlockWorkers(rows.map(({ locked_by }) => locked_by as string))
  await workOff('killed', handle)
  await gone('killed')
  expect([fence, beside, await scene.charges('killed')]).toEqual([2n, 0, 1])
})

test('SC47, B21: a job that was unlocked while its handler works runs beside it: the retry waits, one charge commits', async () => {
  const works = latch()
  const go = latch()
  let delivered = 0
  let starts = 0
  const handle = task(scene.once, charging, async ({ tx }, { payload }) => {
    await tx.query('insert into charges (ref) values ($1)', [payload.order])
    starts += 1
    works.open()
    await go.opened
  })
  const counted: Handle = (payload, helpers) => {
    delivered += 1
    return handle(payload, helpers)
  }
  await utils.addJob('unlocked', { order: 'unlocked' })
  await using _ = await working('unlocked', counted)
  await works.opened
  const { rows } = await scene.pool.query('select locked_by from graphile_worker.jobs where locked_by is not null')
  await utils.forceUnlockWorkers(rows.map(({ locked_by }) => locked_by as string))
  await using __ = await working('unlocked', counted)
  await eventually('the retry was delivered', () => delivered === 2)
  go.open()
  await eventually('it is done', async () => (await left('unlocked')).length === 0)
  expect([starts, await scene.charges('unlocked')]).toEqual([1, 1])
})

test('B28, R44: what no retry can mend is told, and the job ends', async () => {
  const handle = task(scene.once, charging, () => null)
  await utils.addJob('c', { order: 'c', amount: 1 })
  await workOff('c', handle)
  await utils.addJob('c', { order: 'c', amount: 2 })
  await utils.addJob('c', { order: '' })
  await workOff('c', handle)
  await gone('c')
  expect(told.toSorted()).toEqual(['IDEMPOTENCY_KEY_MISSING', 'IDEMPOTENCY_KEY_REUSED'])
  expect(() => task(scene.once, { ...charging, onPoison: undefined } as never, () => null)).toThrow(/needs onPoison/)
})

test('a poison that cannot be told, a failure and a rejection that counts as one are retried by the runner', async () => {
  const deaf = task(scene.once, { ...charging, onPoison: () => Promise.reject(new Error('deaf')) }, () => null)
  const failing = task(scene.once, charging, () => Promise.reject(new Error('down')))
  const no = task(scene.once, { ...charging, whenRejected: 'fail' }, () => rejected('no'))
  await utils.addJob('deaf', { order: '' })
  await utils.addJob('failing', { order: 'failing' })
  await utils.addJob('no', { order: 'no' })
  await workOff('deaf', deaf)
  await workOff('failing', failing)
  await workOff('no', no)
  await kept('deaf', 'deaf')
  await kept('failing', 'down')
  await kept('no', 'the outcome is a rejection')
})

test('B32: when the runner stops, the handler is told, and its lease is given back', async () => {
  const works = latch()
  let aborted = false
  const handle = task(scene.once, { ...charging, mode: 'run' }, async (op) => {
    op.signal.addEventListener('abort', () => {
      aborted = true
    })
    works.open()
    return await new Promise<never>(() => {})
  })
  await utils.addJob('stopped', { order: 'stopped' })
  const runner = await working('stopped', handle, {
    preset: { worker: { gracefulShutdownAbortTimeout: 50 } },
  })
  await works.opened
  await runner.stop().catch(() => {})
  expect(aborted).toBe(true)
  const reference = { scope: ['acme', 'charge'], key: 'stopped' }
  await eventually('the lease was given back', async () =>
    (await scene.once.history(reference)).some(({ detail }) => detail === 'stopping'),
  )
})
