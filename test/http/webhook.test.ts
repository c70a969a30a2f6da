/** Webhooks, received by processes that fail and die: a provider's redelivery is a repeat under the event's id. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { eventually } from '../eventually.ts'
import { type Guard, insertOrder, openGuard } from '../operation/guard.ts'
import type { HookEvent } from '../processes/webhook.ts'
import { type Answered, send } from './client.ts'

const SCRIPT = fileURLToPath(new URL('../processes/webhook.ts', import.meta.url))

let guard: Guard
const children: ChildProcess[] = []

beforeAll(async () => {
  guard = await openGuard()
})
afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await guard.close()
})

interface Receiver {
  deliver(path: '/now' | '/later', id: string): Promise<Answered>
  kill(): Promise<void>
  readonly died: Promise<string | null>
}

function receiver(env: Readonly<Record<string, string>> = {}): Promise<Receiver> {
  const child = spawn(process.execPath, ['--import', 'tsx', SCRIPT], {
    env: { ...process.env, DATABASE_URL: guard.url, ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  children.push(child)
  const died = new Promise<string | null>((resolve) => child.once('exit', (_code, signal) => resolve(signal)))
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', (line) =>
      resolve({
        deliver: (path, id) => send(Number(line), { path, body: JSON.stringify({ id } satisfies HookEvent) }),
        async kill() {
          child.kill('SIGKILL')
          await died
        },
        died,
      }),
    )
    void died.then(() => reject(new Error('the receiver did not start')))
  })
}

/** As a provider does: until the answer is a 2xx. */
async function untilTaken(to: Receiver, id: string): Promise<number[]> {
  const statuses: number[] = []
  await eventually('the event is taken', async () => {
    const { status } = await to.deliver('/now', id)
    statuses.push(status)
    return status < 300
  })
  return statuses
}

test('B91, I1: an event that reaches three processes five times at once is applied once, also when one of them starts anew', async () => {
  const receivers = await Promise.all([receiver(), receiver(), receiver()])
  const id = randomUUID()
  const deliverAll = (to: readonly [Receiver, Receiver, Receiver]) =>
    Promise.all([...to, to[0], to[1]].map((receiver) => receiver.deliver('/now', id)))
  const statuses = (await deliverAll(receivers)).map((answer) => answer.status)
  expect(statuses).toContain(200)
  expect(statuses.filter((status) => status !== 200 && status !== 409)).toEqual([])
  await receivers[0].kill()
  const again = await deliverAll([await receiver(), receivers[1], receivers[2]])
  expect(again.map((answer) => answer.status)).toEqual([200, 200, 200, 200, 200])
  expect(await guard.count(id)).toBe(1)
})

test('B94, I2: an event whose first delivery failed or died after the claim is applied when it comes again', async () => {
  const failing = await receiver({ FAIL: '1' })
  const failed = randomUUID()
  expect((await failing.deliver('/now', failed)).status).toBe(500)
  expect(await guard.count(failed)).toBe(0)
  expect((await failing.deliver('/now', failed)).status).toBe(200)

  const dying = await receiver({ KILL: '1' })
  const lost = randomUUID()
  await expect(dying.deliver('/now', lost)).rejects.toThrow()
  expect(await dying.died).toBe('SIGKILL')
  // Until the server has noticed that the connection is gone the event is in progress, and never refused as done.
  const statuses = await untilTaken(failing, lost)
  expect(statuses.slice(0, -1).filter((status) => status !== 409)).toEqual([])

  for (const id of [failed, lost]) {
    expect((await failing.deliver('/now', id)).status).toBe(200)
    expect(await guard.count(id)).toBe(1)
  }
})

test('B96: a slow event is answered when it is stored; its receiver may die then, and redeliveries run it no second time', async () => {
  const [first, other] = await Promise.all([receiver(), receiver()])
  const id = randomUUID()
  expect((await first.deliver('/later', id)).status).toBe(202)
  await first.kill()

  const once = guard.once()
  let [runs, goOn] = [0, (): void => {}]
  const slow = new Promise<void>((resolve) => {
    goOn = resolve
  })
  const book = once.define('hook.book', {
    async handler(op, event: HookEvent) {
      runs += 1
      await slow
      await op.transaction('book', async ({ tx }) => {
        await insertOrder(tx, event.id)
      })
    },
  })
  const worker = once.worker({ kinds: [book], pollMs: 20 })
  await worker.start()
  try {
    await eventually('the slow handler runs', () => runs === 1)
    const during = await Promise.all(Array.from({ length: 3 }, () => other.deliver('/later', id)))
    expect(during.map(({ status }) => status)).toEqual([202, 202, 202])
    goOn()
    await eventually('it is booked', async () => (await guard.count(id)) === 1)
    await worker.drain()
    expect((await other.deliver('/later', id)).status).toBe(202)
    await worker.drain()
  } finally {
    goOn()
    await worker.stop()
  }
  expect([runs, await guard.count(id)]).toEqual([1, 1])
})
