/** Paths of operations: the guard in its forms, and what is done inside of a transaction of the caller's. */
import type pg from 'pg'
import { rejected } from '../../../src/index.ts'
import { type Opened, OUTCOMES, order, type Paths, path, rowsIn, same } from '../path.ts'

const operation = { scope: 'shop', key: 'order-1', payload: { cents: 4200 } }
const created = { topic: 'order.created', payload: { ref: 'order-1' } }
const ONE_ORDER = { orders: rowsIn('orders'), outcomes: OUTCOMES }
const WITH_MESSAGE = { ...ONE_ORDER, messages: rowsIn('effectively_once.outbox') }

/** Asked twice, so that the second one is told what the first one was. */
async function twice(ask: () => Promise<unknown>): Promise<void> {
  same(plain(await ask()), plain(await ask()))
}

/** Without what says which of them was first. */
function plain(outcome: unknown): unknown {
  return { ...(outcome as object), replayed: undefined }
}

const guarded =
  (options?: Parameters<Opened['once']['transaction']>[2]) =>
  ({ once }: Opened) =>
    twice(() =>
      once.transaction(
        operation,
        async ({ tx, outbox }) => {
          const id = await order(tx, operation.key)
          await outbox.add(created)
          await tx.query('select 1')
          return { id }
        },
        options,
      ),
    )

/** BEGIN and COMMIT are the caller's. */
async function own<T>(pool: pg.Pool, work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const tx = await pool.connect()
  try {
    await tx.query('begin')
    const result = await work(tx)
    await tx.query('commit')
    tx.release()
    return result
  } catch (error) {
    tx.release(true)
    throw error
  }
}

export const operationPaths: Paths = {
  'transaction, gated': path(guarded(), { effects: WITH_MESSAGE }),
  'transaction, gated, stock pool': path(guarded(), { effects: WITH_MESSAGE, open: { pipeline: false } }),
  'transaction, optimistic': path(guarded({ optimistic: true }), { effects: WITH_MESSAGE }),
  'transaction, serializable': path(guarded({ isolation: 'serializable' }), { effects: WITH_MESSAGE }),
  'transaction, rejected': path(
    ({ once }) =>
      twice(() =>
        once.transaction(operation, async ({ tx }) => {
          await order(tx, operation.key)
          return rejected('no stock')
        }),
      ),
    { effects: { outcomes: OUTCOMES, clean: 'select 1 - count(*) from orders' } },
  ),
  statement: path(
    ({ once }) =>
      twice(() =>
        once.statement(operation, { text: 'insert into orders (ref) values ($1) returning id', values: ['order-1'] }),
      ),
    { effects: ONE_ORDER },
  ),
  'transactions, one behind the other': path(
    async ({ once }) => {
      for (const key of ['order-1', 'order-2', 'order-3']) {
        await once.transaction({ ...operation, key }, ({ tx }) => order(tx, key))
      }
    },
    { effects: { orders: rowsIn('orders'), outcomes: OUTCOMES }, expect: 3 },
  ),
  'in a transaction of the caller': path(
    ({ once, pool }) =>
      own(pool, async (tx) => {
        const inner = once.in(tx)
        const answer = await inner.claim(operation)
        if (answer.kind === 'replay') return
        if (answer.kind !== 'claimed') throw new Error(answer.kind)
        const id = await order(tx, operation.key)
        await inner.outbox.add(created)
        await inner.succeed(answer.claim, { id })
      }),
    { effects: WITH_MESSAGE },
  ),
}
