/** Paths of leased operations: claim, steps, effects, completion; failures, hand-backs, takeovers, and what people decide. */
import type pg from 'pg'
import { providers } from '../../../src/effect/provider/index.ts'
import {
  type Delivery,
  found,
  isOnceError,
  type Job,
  type Kind,
  notApplied,
  type Once,
  type Op,
  rejected,
} from '../../../src/index.ts'
import type { DrillFile, FakeProvider } from '../../../src/testing/index.ts'
import { fakeProvider } from '../../../src/testing/provider/index.ts'
import { chargeAndBook, chargeEffect } from '../../../test/job/charge.ts'
import { LEASE_MS, type Opened, OUTCOMES, open, order, type Paths, path, rowsIn, same } from '../path.ts'

const operation = { scope: 'charges', key: 'charge-1', payload: {} }
const job: Job<null> = { scope: 'charges', key: 'charge-1', payload: null }
const leased = { leaseMs: LEASE_MS, whenInProgress: 'wait', waitMs: 10 * LEASE_MS } as const
const act = { actor: 'ops', reason: 'the provider says so' }
const BOOKINGS = 'create table bookings (id int generated always as identity primary key, ref text, charge text)'

type Handler = (op: Op<pg.PoolClient>, providerUrl: string) => unknown

const CHARGED = {
  charged: ({ provider }: { readonly provider: FakeProvider }) => provider.count('charge-1'),
  booked: rowsIn('bookings'),
  messages: rowsIn('effectively_once.outbox'),
  outcomes: OUTCOMES,
}

const charge =
  (delivery: Delivery): Handler =>
  (op, url) =>
    chargeAndBook(op, { url, profile: providers.stripeV1 }, { reference: 'charge-1', delivery })

/** Without a provider: a value, two transactions, another value. */
const steps: Handler = async (op) => {
  const first = await op.memo('first', () => 'a')
  const id = await op.transaction('order', ({ tx }) => order(tx, first))
  await op.memo('second', () => id)
  return await op.transaction('payment', async ({ tx, outbox }) => {
    await tx.query('insert into payments (ref) values ($1)', [String(id)])
    await outbox.add({ topic: 'paid', payload: { id } })
    return id
  })
}
const STEPPED = {
  orders: rowsIn('orders'),
  payments: rowsIn('payments'),
  messages: rowsIn('effectively_once.outbox'),
  outcomes: OUTCOMES,
}

const file = {
  provider: () => fakeProvider(),
  effects: CHARGED,
} satisfies Partial<DrillFile<FakeProvider>>

type More = Partial<DrillFile<FakeProvider>> & { readonly prepare?: (opened: Opened) => unknown }

const withTables =
  (prepare?: (opened: Opened) => unknown) =>
  async (opened: Opened): Promise<void> => {
    await opened.pool.query(BOOKINGS)
    await prepare?.(opened)
  }

/** Runs a closure, and asks once more. */
function run(handler: Handler, { prepare, ...more }: More = {}): DrillFile {
  return path<FakeProvider>(
    async ({ once }, { providerUrl }) => {
      const ask = () => once.run(operation, (op) => handler(op, providerUrl), leased)
      const first = await ask()
      const second = await ask()
      same({ ...first, replayed: true }, { ...second, replayed: true })
    },
    { ...file, ...more, prepare: withTables(prepare) },
  )
}

type Defined = Kind<pg.PoolClient, null, unknown>

function define(once: Once<pg.PoolClient>, handler: Handler, providerUrl: string, more = {}): Defined {
  return once.define('charge.book', { leaseMs: LEASE_MS, ...more, handler: (op) => handler(op, providerUrl) })
}

/** Works until the one job is done; says so by the worker's own event. */
async function work({ once, pool }: Opened, kind: Defined): Promise<void> {
  if (await isDone(pool)) return
  let allDone = (): void => {}
  const done = new Promise<void>((resolve) => {
    allDone = resolve
  })
  const worker = once.worker({
    kinds: [kind],
    pollMs: 250,
    graceMs: 0,
    onEvent: ({ type }) => {
      if (type === 'completed') allDone()
    },
  })
  await worker.start()
  await done
  await worker.stop()
}

async function isDone(pool: pg.Pool): Promise<boolean> {
  const { rows } = await pool.query<{ done: boolean }>(
    `select exists (select from effectively_once.operation where kind is not null and state = 'succeeded') as done`,
  )
  return rows[0]?.done === true
}

/** Stored for workers, and worked on by one. */
function worked(
  handler: Handler,
  {
    prepare,
    kind: settings,
    before,
    ...more
  }: More & {
    readonly kind?: object
    readonly before?: (opened: Opened, kind: Defined) => unknown
  } = {},
): DrillFile {
  return path<FakeProvider>(
    async (opened, { providerUrl }) => {
      const kind = define(opened.once, handler, providerUrl, settings)
      if (before === undefined) await kind.start(job)
      else await before(opened, kind)
      await work(opened, kind)
    },
    { ...file, ...more, prepare: withTables(prepare) },
  )
}

/** Leaves an operation as an owner does that loses everything in the middle of its handler. */
const deadOwner =
  (handler: (op: Op<pg.PoolClient>, die: () => never) => unknown, kind?: string) =>
  async ({ once, pool }: Opened): Promise<void> => {
    const lost = open(String(pool.options.connectionString))
    const die = (): never => {
      void lost.pool.end()
      throw new Error('lost')
    }
    const dying = (op: Op<pg.PoolClient>) => handler(op, die)
    const doing =
      kind === undefined
        ? lost.once.run(operation, dying, { leaseMs: LEASE_MS })
        : lost.once.define(kind, { leaseMs: LEASE_MS, handler: dying }).run(job)
    await doing.catch(() => {})
    await once.check()
  }

/** Only the intent is there: nobody knows whether the call was made. */
const diesBeforeTheCall =
  (delivery: Delivery) =>
  (op: Op<pg.PoolClient>, die: () => never): unknown =>
    op.effect(
      'charge',
      chargeEffect(
        { url: 'http://127.0.0.1:9', profile: providers.stripeV1 },
        { reference: 'charge-1', delivery },
        { call: die },
      ),
    )

/** A call that may have been made and cannot be made again: somebody asks the provider, and says what is so. */
const decidedByAPerson: DrillFile = path<FakeProvider>(
  async ({ once }, { providerUrl }) => {
    const handler = charge('at-most-once')
    const ask = () => once.run(operation, (op) => handler(op, providerUrl), leased)
    try {
      await ask()
    } catch (error) {
      if (!isOnceError(error) || error.code !== 'OUTCOME_UNKNOWN') throw error
      const response = await fetch(`${providerUrl}/charges?reference=charge-1`)
      const { data } = (await response.json()) as { readonly data: readonly { readonly id: string }[] }
      const [made] = data
      const proof = made === undefined ? notApplied() : found({ id: made.id })
      await once.resolve({ scope: 'charges', key: 'charge-1', effect: 'charge' }, proof, act)
      await ask()
    }
  },
  { ...file, prepare: withTables() },
)

const failsOnce: Handler = async (op, url) => {
  const id = await op.transaction('order', ({ tx }) => order(tx, 'a'))
  if (op.fence === 1n) throw new Error('the first attempt fails')
  await charge('keyed')(op, url)
  return id
}

export const leasedPaths: Paths = {
  'run, steps': run(steps, { effects: STEPPED }),
  'run, rejected': run(
    async (op) => {
      await op.transaction('order', ({ tx }) => order(tx, 'a'))
      return rejected('no stock')
    },
    { effects: { orders: rowsIn('orders'), outcomes: OUTCOMES } },
  ),
  'run, keyed effect': run(charge('keyed')),
  'run, reconciled effect': run(charge('reconciled')),
  'run, effect that a person decides': decidedByAPerson,
  'run, answer of the provider lost': run(charge('keyed'), {
    provider: async () => {
      const provider = await fakeProvider()
      provider.fault({ kind: 'answerLost' })
      return provider
    },
  }),
  'run, renewed in between': run(async (op, url) => {
    await op.memo('first', () => 'a')
    await new Promise((resolve) => setTimeout(resolve, LEASE_MS))
    return await charge('keyed')(op, url)
  }),
  'run, handed back and taken again': path<FakeProvider>(
    async ({ once }, { providerUrl }) => {
      const handler = charge('keyed')
      let reached = (): void => {}
      const there = new Promise<void>((resolve) => {
        reached = resolve
      })
      const first = once.run(
        operation,
        async (op) => {
          if (op.fence > 1n) return await handler(op, providerUrl)
          await op.memo('first', () => 'a')
          reached()
          await new Promise((_resolve, reject) => op.signal.addEventListener('abort', reject, { once: true }))
          return undefined
        },
        leased,
      )
      const ended = first.then(
        () => true,
        () => false,
      )
      await Promise.race([there, ended])
      await once.stop({ graceMs: 0 })
      if (await ended) return
      await once.run(
        operation,
        async (op) => {
          await op.memo('first', () => 'a')
          return await handler(op, providerUrl)
        },
        leased,
      )
    },
    { ...file, prepare: withTables() },
  ),
  'run, taken over behind a step': run(
    async (op, url) => {
      await op.memo('first', () => 'a')
      return await charge('keyed')(op, url)
    },
    {
      prepare: deadOwner(async (op, die) => {
        await op.memo('first', () => 'a')
        die()
      }),
    },
  ),
  'run, taken over behind an intent, reconciled': run(charge('reconciled'), {
    prepare: deadOwner(diesBeforeTheCall('reconciled')),
  }),
  'run, taken over behind an intent, keyed': run(charge('keyed'), {
    prepare: deadOwner(diesBeforeTheCall('keyed')),
  }),
  'kind, started and worked on': worked(charge('keyed')),
  'kind, started in a transaction': worked(charge('reconciled'), {
    before: async ({ once, pool }, kind) => {
      if (await isDone(pool)) return
      await once.transaction({ scope: 'shop', key: 'order-1', payload: null }, async ({ tx }) => {
        await order(tx, 'order-1')
        await kind.startIn(tx, job)
      })
    },
    effects: {
      ...CHARGED,
      outcomes: `select count(*) from effectively_once.operation where kind is not null and state = 'succeeded'`,
    },
  }),
  'kind, taken over by a worker': worked(charge('keyed'), {
    before: () => {},
    prepare: deadOwner(diesBeforeTheCall('keyed'), 'charge.book'),
  }),
  'kind, fails first': worked(failsOnce, { effects: { ...CHARGED, orders: rowsIn('orders') } }),
  'kind, parked and put back': worked(async (op, url) => await charge('keyed')(op, url), {
    before: async ({ once }) => {
      await once.redrive({ scope: 'charges', key: 'charge-1' }, act)
    },
    prepare: async (opened) => {
      const parking = define(
        opened.once,
        () => {
          throw new Error('never')
        },
        '',
        { failuresMax: 1 },
      )
      await parking.run(job).catch(() => {})
    },
  }),
}
