/** Paths of guarded routes, from the request to the answer. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type pg from 'pg'
import { createOperation, resumeOperations } from '../../../src/client/index.ts'
import { fileStorage } from '../../../src/client/storages/file.ts'
import { providers } from '../../../src/effect/provider/index.ts'
import { type HandlerContext, idempotency, type NodeRouteOptions } from '../../../src/frameworks/node/index.ts'
import { type DrillFile, defineDrill, type FakeProvider } from '../../../src/testing/index.ts'
import { fakeProvider } from '../../../src/testing/provider/index.ts'
import { chargeAndBook } from '../../../test/job/charge.ts'
import { LEASE_MS, OUTCOMES, open, order, type Paths, path, rowsIn, setUp } from '../path.ts'

const request = (key = 'k-1') => ({
  path: '/orders',
  headers: { 'idempotency-key': key },
  body: { ref: 'order-1', cents: 4200 },
})
const ONE_ORDER = { orders: rowsIn('orders'), outcomes: OUTCOMES }

type Respond = (
  response: ServerResponse,
  context: HandlerContext<pg.PoolClient>,
  providerUrl: string,
  request: IncomingMessage,
) => unknown

const answer = (response: ServerResponse, status: number, body: unknown): void => {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

const creates: Respond = async (response, { tx, key, outbox }) => {
  const id = await order(tx, String(key))
  await outbox.add({ topic: 'order.created', payload: { id } })
  answer(response, 201, { id })
}

function route(
  respond: Respond,
  options: Partial<NodeRouteOptions> = {},
  { prepare, ...file }: Partial<DrillFile<FakeProvider>> & { readonly prepare?: Parameters<typeof setUp>[0] } = {},
): DrillFile {
  return defineDrill<FakeProvider>({
    setUp: setUp(prepare),
    start({ databaseUrl, providerUrl }) {
      const { once } = open(databaseUrl)
      return idempotency(
        once,
        { scope: { anonymous: 'shop' }, operation: 'POST /orders', onError: () => {}, ...options },
        (incoming, response, context) => respond(response, context, providerUrl, incoming),
      )
    },
    deliver: request(),
    effects: ONE_ORDER,
    settleMs: 6 * LEASE_MS,
    ...file,
  }) as unknown as DrillFile
}

const charged: Respond = async (response, { op, key }, url) => {
  const made = await chargeAndBook(
    op,
    { url, profile: providers.stripeV1 },
    { reference: String(key), delivery: 'keyed' },
  )
  answer(response, 201, made)
}

const runMode = {
  provider: () => fakeProvider(),
  prepare: async ({ pool }: { readonly pool: pg.Pool }) => {
    await pool.query('create table bookings (id int generated always as identity primary key, ref text, charge text)')
  },
  effects: {
    charged: ({ provider }: { readonly provider: FakeProvider }) => provider.count('k-1'),
    booked: rowsIn('bookings'),
    outcomes: OUTCOMES,
  },
}

/** Sends one operation of a client, whose storage outlives the process as a file does. */
const client: DrillFile = path<FakeProvider>(
  async (_opened, { providerUrl }) => {
    const folder = folderOf(providerUrl)
    const storage = fileStorage({ folder })
    await resumeOperations({ storage, origins: [providerUrl] })
    const body = { amount: 100, currency: 'eur', reference: 'charge-1' }
    const send = createOperation({ url: `${providerUrl}/charges`, body, key: 'charge-1', storage })
    const { state } = await send()
    if (state !== 'completed') throw new Error(state)
  },
  {
    provider: async () => {
      const { rm } = await import('node:fs/promises')
      const provider = await fakeProvider()
      const clear = (): Promise<void> => rm(folderOf(provider.url), { recursive: true, force: true })
      await clear()
      return {
        ...provider,
        count: (reference: string) => provider.count(reference),
        stop: async () => {
          await provider.stop()
          await clear()
        },
      }
    },
    effects: { charged: ({ provider }) => provider.count('charge-1') },
  },
)

const folderOf = (url: string): string => `.tmp/windows/client-${new URL(url).port}`

export const httpPaths: Paths = {
  'route, atomic': route(creates, {}, { effects: { ...ONE_ORDER, messages: rowsIn('effectively_once.outbox') } }),
  'route, atomic, gate with the first statement': route(creates, { gate: 'first-statement' }),
  'route, two requests': route(creates, {}, { deliver: [request('k-1'), request('k-2')] }),
  'route, refusal that is kept': route(
    async (response, { tx, key }) => {
      await order(tx, String(key))
      answer(response, 422, { error: 'no stock' })
    },
    {},
    { effects: { outcomes: OUTCOMES, clean: 'select 1 - count(*) from orders' }, sameResponse: false },
  ),
  'route, refusal that commits': route(
    async (response, { tx, key }) => {
      await order(tx, String(key))
      answer(response, 422, { error: 'written down' })
    },
    { commitOn: (status) => status === 422 },
    { sameResponse: false },
  ),
  // A repeat is told that it was done, and not what: 409 without a time to come again.
  'route, answer that is not kept': route(creates, { keepResponse: false }, { sameResponse: false }),
  'route, run mode': route(charged, { mode: 'run', run: { leaseMs: LEASE_MS } }, runMode),
  client,
}
