import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Shop, startShop } from './shop.ts'

let shop: Shop
let folder: string
const children = new Set<ChildProcess>()

beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.close())
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'effectively-once-restart-'))
})
afterEach(async () => {
  await Promise.all([...children].map(kill))
  await rm(folder, { recursive: true })
})

function run(what: 'send' | 'resume', customer: string): ChildProcess {
  const child = spawn(process.execPath, ['--import', 'tsx', 'test/processes/client-sender.ts', what], {
    env: { ...process.env, FOLDER: folder, SHOP: shop.url, CUSTOMER: customer },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.add(child)
  return child
}

/** What a process says at its end. */
async function said(child: ChildProcess): Promise<unknown> {
  if (child.stdout === null) throw new Error('no output')
  const output = await text(child.stdout)
  return JSON.parse(output)
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGKILL')
  await gone
}

test.each(['before', 'after'] as const)(
  'R01: a process that is killed between send and answer, %s the commit: the next one resumes it to one order',
  { timeout: 90_000 },
  async (phase) => {
    const customer = `restart-${phase}`
    const held = shop.hold(phase)
    const first = run('send', customer)
    await held.reached

    // While it lives another process leaves the operation to it.
    const busy = { told: [{ state: 'gaveUp', attempts: 1, reason: 'held' }], failed: 0, unreadable: [], left: 1 }
    expect(await said(run('resume', customer))).toEqual(busy)

    await kill(first)
    held.release()
    expect(await said(run('resume', customer))).toMatchObject({
      told: [{ state: 'completed', ...(phase === 'after' ? { replayed: true } : {}) }],
      failed: 0,
      unreadable: [],
      left: 0,
    })
    expect((await shop.orders()).filter((order) => order.customer === customer)).toHaveLength(1)
    const requests = shop.requests.filter(({ body }) => body.includes(customer))
    expect(requests.length).toBeGreaterThanOrEqual(2)
    expect(new Set(requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
  },
)
