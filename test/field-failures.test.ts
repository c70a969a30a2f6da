/** Classes of failures from the field that cross several parts: deliveries of somebody else's retries, and what waits. */
import type pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { memoryBroker } from '../src/brokers/memory/index.ts'
import type { Once } from '../src/index.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { type Guard, insertOrder, openGuard, until } from './operation/guard.ts'
import { startGuardChild } from './torture/guard-child.ts'

let guard: Guard
let once: Once<pg.PoolClient>

beforeAll(async () => {
  guard = await openGuard()
  once = guard.once()
})
afterAll(() => guard.close())

const SCHEMA = 'effectively_once'
afterEach(async () => {
  await guard.admin.query(`truncate ${SCHEMA}.outbox, ${SCHEMA}.outbox_parked`)
})
const delivery = (key: string) => ({ scope: ['hooks', 'paid'], key, payload: { event: key } })

async function counted(table: string, where = 'true'): Promise<number> {
  const { rows } = await guard.admin.query(`select count(*)::int as n from ${SCHEMA}.${table} where ${where}`)
  return rows[0].n
}

test('B91: an event that comes five times at once to each of three processes, one of them killed and started again, has one effect', async () => {
  const children = await Promise.all([1, 2, 3].map(() => startGuardChild(guard.url)))
  const keys = ['evt-1', 'evt-2', 'evt-3']
  const deliver = { mode: 'gated', keys, callers: 5, persistent: true, wait: true } as const
  const [killed, ...others] = children
  if (killed === undefined) throw new Error('no child')
  const met = new Promise<void>((resolve) => killed.send(deliver, () => resolve()))
  const answers = Promise.all(others.map((child) => child.ask(deliver)))
  await met
  killed.process.kill('SIGKILL')
  await killed.gone
  const again = await startGuardChild(guard.url)
  const all = [...(await answers).flat(), ...(await again.ask(deliver))]
  expect(all.filter(({ error }) => error !== undefined)).toEqual([])
  expect(all).toHaveLength(45)
  for (const key of keys) {
    expect(await guard.count(key)).toBe(1)
    expect(new Set(all.filter((answer) => answer.key === key).map(({ value }) => value)).size).toBe(1)
  }
  await Promise.all([...others, again].map((child) => child.stop()))
})

test('B94: a delivery that failed after its claim runs again; only a finished one is a duplicate', async () => {
  for (const failing of ['transaction', 'run'] as const) {
    let runs = 0
    const deliver = () => {
      runs += 1
      if (runs === 1) throw new Error('the first delivery fails')
      return runs
    }
    const receive = () =>
      failing === 'transaction'
        ? once.transaction(delivery(failing), async ({ tx }) => {
            await insertOrder(tx, failing)
            return deliver()
          })
        : once.run(delivery(failing), (op) =>
            op.transaction('book', async ({ tx }) => {
              await insertOrder(tx, failing)
              return deliver()
            }),
          )
    await expect(receive()).rejects.toThrow('the first delivery fails')
    expect(await receive()).toMatchObject({ value: 2, replayed: false })
    expect(await receive()).toMatchObject({ value: 2, replayed: true })
    expect([runs, await guard.count(failing)]).toEqual([2, 1])
  }
})

test('B96: an endpoint that only stores answers four deliveries while the work is not begun, and a later process does it once', async () => {
  const define = (from: Once<pg.PoolClient>, handler: () => Promise<number>) =>
    from.define<{ event: string }, Promise<number>>('hooks.slow', {
      version: 1,
      handler: (op) => op.transaction('book', handler),
    })
  const endpoint = define(once, () => Promise.reject(new Error('the endpoint works on nothing')))
  const answers = await Promise.all([1, 2, 3, 4].map(() => endpoint.start(delivery('slow'))))
  expect(answers.sort()).toEqual(['exists', 'exists', 'exists', 'started'])

  // The process that has answered is gone; another one finds what it has stored.
  const later = guard.once()
  let runs = 0
  const release: (() => void)[] = []
  const kind = define(later, () => {
    runs += 1
    return new Promise((resolve) => release.push(() => resolve(runs)))
  })
  const worker = later.worker({ kinds: [kind], pollMs: 10 })
  await worker.start()
  await until(() => runs === 1)
  expect(await endpoint.start(delivery('slow'))).toBe('exists')
  for (const go of release) go()
  await worker.drain()
  await worker.stop()
  expect(await endpoint.start(delivery('slow'))).toBe('exists')
  expect(runs).toBe(1)
})

test.each([['purge first'], ['recovery first']])(
  'B102: leases that ended an hour ago are recovered and nothing undelivered is removed, %s',
  async (order) => {
    const own = guard.once()
    let runs = 0
    const name = `recovered.${order.split(' ')[0]}`
    const make = (from: Once<pg.PoolClient>) =>
      from.define<{ event: string }, Promise<number>>(name, {
        version: 1,
        handler: (op) =>
          op.transaction('book', () => {
            runs += 1
            return Promise.resolve(runs)
          }),
      })
    const kind = make(own)
    await kind.start(delivery(`${order} leased`))
    await kind.start(delivery(`${order} pending`))
    await own.transaction(delivery(`${order} message`), async ({ outbox }) => {
      await outbox.add({ topic: order, payload: 1 })
    })
    // An owner that died an hour ago.
    const claimed = await postgres(guard.admin).jobs.claimDue(
      [{ kind: name, version: 1, leaseMs: 1_000, claimsMax: 5 }],
      1,
    )
    expect(claimed.claimed).toHaveLength(1)
    await guard.admin.query(
      `update ${SCHEMA}.operation set due_at = due_at - interval '1 hour', lease_until = lease_until - interval '1 hour' where state = 'processing'`,
    )
    const before = [await counted('operation', `state = 'processing'`), await counted('outbox')]
    const purge = async () => {
      await own.purge({ historyMs: 0 })
    }
    if (order === 'purge first') {
      await purge()
      expect([await counted('operation', `state = 'processing'`), await counted('outbox')]).toEqual(before)
    }
    const worker = own.worker({ kinds: [kind], pollMs: 10 })
    await worker.start()
    await worker.drain()
    await worker.stop()
    await purge()
    expect(runs).toBe(2)
    expect(await kind.start(delivery(`${order} leased`))).toBe('exists')
    const broker = memoryBroker()
    const queue = broker.queue('all', { topics: ['#'] })
    const relay = own.relay({ broker })
    await relay.start()
    await relay.drain(AbortSignal.timeout(20_000))
    await relay.stop()
    expect(queue.length).toBe(1)
  },
)

test('B103: a snapshot held open elsewhere stops neither claims nor the relay, and removed rows do not come back', async () => {
  const reader = await guard.admin.connect()
  try {
    await reader.query('begin isolation level repeatable read')
    await reader.query(`select count(*) from ${SCHEMA}.outbox`)
    const broker = memoryBroker()
    const queue = broker.queue('all', { topics: ['#'] })
    const relay = once.relay({ broker })
    const kind = once.define('beside.snapshot', { version: 1, handler: async (_op, payload: number) => payload })
    const worker = once.worker({ kinds: [kind], pollMs: 10 })
    await relay.start()
    await worker.start()
    const keys = Array.from({ length: 500 }, (_, at) => `snapshot-${at}`)
    await Promise.all(
      keys.map((key) =>
        once.transaction({ scope: ['snapshot'], key, payload: 1 }, async ({ outbox }) => {
          await outbox.add({ topic: 'beside', payload: key })
        }),
      ),
    )
    await Promise.all(keys.slice(0, 100).map((key, at) => kind.start({ scope: ['jobs'], key, payload: at })))
    await relay.drain(AbortSignal.timeout(20_000))
    await worker.drain({ signal: AbortSignal.timeout(20_000) })
    expect([await counted('outbox'), queue.length]).toEqual([0, keys.length])
    expect(await counted('operation', `kind = 'beside.snapshot' and state = 'succeeded'`)).toBe(100)
    await Promise.all([relay.stop(), worker.stop()])
    await reader.query('commit')
  } finally {
    reader.release()
  }
})

test('B104: a thousand quarantined messages are listed in pages, stay outside the hot table through a purge, and go back in bulk with an audit', async () => {
  const broker = memoryBroker()
  broker.queue('hooks', { topics: ['#'] })
  const { outbox, inbox } = postgres(guard.admin)
  const publisher = guard.once()
  const added = Array.from({ length: 1_000 }, (_, at) => ({ topic: 'dead.v1', payload: { at } }))
  await publisher.transaction(delivery('thousand'), async (context) => {
    await context.outbox.add(added)
  })
  const relay = publisher.relay({ broker })
  await relay.start()
  await relay.drain(AbortSignal.timeout(20_000))
  await relay.stop()
  const refusing = once.consumer({
    name: 'thousand',
    source: broker.source('hooks'),
    decode: 'bytes',
    identify: ({ messageId }) => ({ id: messageId ?? '', source: 'thousand' }),
    attemptsMax: 1,
    handle: () => Promise.reject(new Error('never')),
  })
  await refusing.start()
  await until(async () => (await counted('inbox_quarantine', `consumer = 'thousand'`)) === 1_000, 40_000)
  await refusing.stop()
  expect([
    await counted('inbox_waiting', `consumer = 'thousand'`),
    await counted('inbox', `consumer = 'thousand'`),
  ]).toEqual([0, 0])

  await guard.admin.query(`update ${SCHEMA}.inbox_quarantine set quarantined_at = quarantined_at - interval '1 year'`)
  await once.purge({ historyMs: 0 })
  const ids: string[] = []
  for (let after: string | undefined; ; after = ids.at(-1)) {
    const page = await inbox.listQuarantine({ consumer: 'thousand', limit: 300, after })
    if (page.length === 0) break
    ids.push(...page.map(({ id }) => id))
  }
  expect(new Set(ids).size).toBe(1_000)
  expect(await inbox.listQuarantine({ consumer: 'somebody else', limit: 10 })).toEqual([])

  const act = { actor: 'ann', reason: 'the handler was mended', override: false }
  expect(new Set(await inbox.redrive(ids, act))).toEqual(new Set(['redriven']))
  expect(new Set(await inbox.redrive(ids, act))).toEqual(new Set(['absent']))
  expect([
    await counted('inbox_quarantine', `consumer = 'thousand'`),
    await counted('inbox_waiting', `consumer = 'thousand'`),
  ]).toEqual([0, 1_000])
  expect(await counted('audit', `actor = 'ann'`)).toBe(1_000)
  expect((await outbox.pending()).oldestMs).toBeNull()
}, 90_000)
