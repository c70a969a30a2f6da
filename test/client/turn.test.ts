import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import {
  createOperation,
  memoryStorage,
  type OperationOptions,
  type OperationStorage,
  pendingOperations,
  resumeOperations,
} from '../../src/client/index.ts'
import { fileStorage } from '../../src/client/storages/file.ts'
import { answer, jumpingClock, repeatable, reset, type Scripted, type Step, scripted } from './scripted.ts'

const open: Scripted[] = []
let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'effectively-once-turn-'))
})
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()))
  await rm(folder, { recursive: true })
})

const kinds = ['memory', 'file'] as const
const storageOf = (kind: (typeof kinds)[number]): OperationStorage =>
  kind === 'memory' ? memoryStorage() : fileStorage({ folder })

/** A request that waits in the server until it is let go. */
function gate(): { step: Step; reached: Promise<void>; release: () => void } {
  let reach = (): void => undefined
  let release = (): void => undefined
  const reached = new Promise<void>((resolve) => {
    reach = resolve
  })
  const released = new Promise<void>((resolve) => {
    release = resolve
  })
  const step: Step = async (response) => {
    reach()
    await released
    response.writeHead(201).end()
  }
  return { step, reached, release: () => release() }
}

async function scene(storage: OperationStorage, steps: readonly Step[]) {
  const clock = jumpingClock()
  const server = await scripted(steps, clock)
  open.push(server)
  const create = (options: Partial<OperationOptions> = {}) =>
    createOperation({ url: server.url, key: 'k-1', storage, ...repeatable(clock), ...options })
  return { clock, server, create, options: { storage, ...repeatable(clock) } }
}

test.each(kinds)(
  '%s: while one sends, a second one waits up to its deadline and a resume leaves it alone',
  async (kind) => {
    const storage = storageOf(kind)
    const { step, reached, release } = gate()
    const { server, create, options } = await scene(storage, [step, answer(201)])
    const first = create()()
    await reached
    expect(await create()({ deadlineMs: 2_000 })).toMatchObject({ state: 'gaveUp', reason: 'held', attempts: 1 })
    const report = await resumeOperations(options)
    expect(report.results.map(({ result }) => result)).toMatchObject([{ state: 'gaveUp', reason: 'held' }])
    expect(server.arrived).toHaveLength(1)
    release()
    expect((await first).state).toBe('completed')
    expect(await storage.entries()).toEqual([])
  },
)

test.each(kinds)('%s: a second sender that gets its turn in time sends the same request again', async (kind) => {
  const storage = storageOf(kind)
  const { step, reached, release } = gate()
  const { server, create } = await scene(storage, [step, answer(201, {}, { 'idempotent-replayed': 'true' })])
  const first = create()()
  await reached
  // Its clock stands still between looks, so it waits for the turn and not for the time.
  const clock = { now: () => 0, sleep: () => new Promise<void>((resolve) => setImmediate(resolve)) }
  const second = create({ clock })()
  release()
  expect((await first).state).toBe('completed')
  expect(await second).toMatchObject({ state: 'completed', replayed: true })
  expect(new Set(server.arrived.map(({ headers }) => headers['idempotency-key'])).size).toBe(1)
  expect(await storage.entries()).toEqual([])
})

test('R39: what another sender has finished is not sent again after its lifetime, also by one that never sent it', async () => {
  const storage = memoryStorage()
  const { step, reached, release } = gate()
  const { clock, server, create } = await scene(storage, [step, answer(201)])
  const first = create()()
  await reached
  const second = create()
  expect(await second({ deadlineMs: 100 })).toMatchObject({ state: 'gaveUp', reason: 'held' })
  release()
  expect((await first).state).toBe('completed')
  clock.advance(25 * 60 * 60 * 1_000)
  expect(await second()).toMatchObject({ state: 'unknown', reason: 'lifetime' })
  expect(server.arrived).toHaveLength(1)
})

test('an abort ends the waiting for a turn', async () => {
  const storage = memoryStorage()
  const { step, reached, release } = gate()
  const { create } = await scene(storage, [step])
  const first = create()()
  await reached
  const controller = new AbortController()
  const clock = { now: () => 0, sleep: async () => controller.abort() }
  expect(await create({ clock })({ signal: controller.signal })).toMatchObject({ state: 'gaveUp', reason: 'held' })
  release()
  await first
})

test('a turn is kept over long waits, and given back at the end, also after an error', async () => {
  const storage = memoryStorage()
  const { clock, create, options } = await scene(storage, [
    answer(503, {}, { 'retry-after': '3000' }),
    answer(201),
    reset,
    answer(201),
  ])
  const during: unknown[] = []
  const watching: OperationStorage = {
    ...storage,
    takeTurn: async (id, turn, now) => {
      during.push(turn.untilAt - now)
      return storage.takeTurn(id, turn, now)
    },
  }
  expect((await create({ storage: watching })({ deadlineMs: 4_000_000 })).state).toBe('completed')
  expect(Math.max(...(during as number[]))).toBeGreaterThan(3_000_000)

  const failing = create({ key: 'k-2', attemptHeaders: () => ({ 'content-type': 'x' }) })
  await expect(failing()).rejects.toThrow(TypeError)
  const free = { owner: 'test', untilAt: clock.now() + 1 }
  expect(await storage.takeTurn('k-1', free, clock.now())).toBeUndefined()
  expect(await storage.takeTurn('k-2', free, clock.now())).toBeUndefined()
  expect((await pendingOperations(options)).operations).toEqual([])
})
