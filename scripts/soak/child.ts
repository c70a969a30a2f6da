/**
 * One process of the soak: an API, a worker, a relay, a consumer or a purge.
 *
 * Environment: ROLE, PORT (api), DATABASE_URL, AMQP_URL, PROVIDER (an `At` as JSON), CLOCK_AHEAD_MS (how wrong its clock is;
 * nothing may depend on it). Leases are one to two seconds, so
 * that what a death leaves is taken over within the run.
 */
import http from 'node:http'
import amqp from 'amqplib'
import pg from 'pg'
import { rabbitmq, rabbitmqQueue } from '../../src/brokers/rabbitmq/index.ts'
import { idempotency, type NodeListener } from '../../src/frameworks/node/index.ts'
import { createOnce, type Once } from '../../src/index.ts'
import { pause } from '../../src/shared/waiting.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type At, type Charge, chargeAndBook, LEASE_MS } from '../../test/job/charge.ts'
import { DEADLY, EXCHANGE, KEYS_OF_ORDERS, PROJECTION, SCOPE, TOPIC } from './names.ts'

const env = process.env
putClockForward(Number(env['CLOCK_AHEAD_MS'] ?? 0))
const at = JSON.parse(env['PROVIDER'] ?? '{}') as At
const connect = () => amqp.connect(env['AMQP_URL'] ?? '')
const pool = new pg.Pool({
  connectionString: env['DATABASE_URL'],
  pipeline: true,
  max: 8,
  connectionTimeoutMillis: 2_000,
  application_name: env['ROLE'],
})
pool.on('error', () => {})
const once: Once<pg.PoolClient> = createOnce({
  store: postgres(pool, { answerTimeoutMs: 3_000, acquireTimeoutMs: 3_000 }),
})
const charges = once.define('charge.book', {
  leaseMs: LEASE_MS,
  // Here deaths are the rule, not a sign of a message that kills.
  claimsMax: 1_000,
  failuresMax: 1_000,
  handler: (op, charge: Charge) => chargeAndBook(op, at, charge),
})
const deadly = once.define(DEADLY.kind, {
  leaseMs: LEASE_MS,
  claimsMax: DEADLY.claimsMax,
  handler: () => process.kill(process.pid, 'SIGKILL'),
})

// The parent has gone.
process.stdin.resume().on('end', () => process.exit(0))

switch (env['ROLE'] ?? '') {
  case 'api':
    serve()
    break
  case 'worker':
    await once.worker({ kinds: [charges, deadly], pollMs: 200 }).start()
    break
  case 'relay':
    await once
      .relay({
        broker: rabbitmq(connect, { exchange: EXCHANGE }),
        leaseMs: 1_500,
        publishTimeoutMs: 500,
        pollMs: 200,
        backoff: { minMs: 50, maxMs: 500 },
      })
      .start()
    break
  case 'consumer':
    const consumer = once.consumer({
      name: PROJECTION,
      source: rabbitmqQueue(connect, PROJECTION),
      orderBy: true,
      prefetch: 50,
      concurrency: 4,
      leaseMs: 1_000,
      pollMs: 200,
      attemptsMax: 1_000,
      backoff: { minMs: 20, maxMs: 200 },
      handle: async ({ tx, message }) => {
        const { key, n } = message.body as { key: string; n: number }
        await tx.query('insert into projection (key, n, id) values ($1, $2, $3)', [key, n, message.id])
      },
    })
    await consumer.start()
    break
  case 'purge':
    void purge()
    break
  default:
    throw new Error(`no such role: ${env['ROLE']}`)
}
process.stdout.write('ready\n')

/** Cleans up all the time, as if everything were past its time. */
async function purge(): Promise<never> {
  for (;;) {
    await once.purge({ batchRows: 50, restMs: 0 }).catch(() => {})
    await pause(250)
  }
}

function putClockForward(aheadMs: number): void {
  const Right = Date
  const now = (): number => Right.now() + aheadMs
  globalThis.Date = new Proxy(Right, {
    construct: (target, given) => Reflect.construct(target, given.length === 0 ? [now()] : given) as Date,
    get: (target, name) => (name === 'now' ? now : (Reflect.get(target, name) as unknown)),
  })
}

function serve(): void {
  const options = { scope: () => SCOPE, whenInProgress: 'wait', waitMs: 3_000, onError: () => {} } as const
  const routes: Readonly<Record<string, NodeListener>> = {
    '/order': idempotency(once, { ...options, operation: 'order' }, async (request, response, { tx, key, outbox }) => {
      const { payload } = (await bodyOf(request)) as { payload: string }
      const { rows } = await tx.query('insert into orders (ref, payload) values ($1, $2) returning id', [key, payload])
      const place = `k${Number(rows[0].id) % KEYS_OF_ORDERS}`
      const { rows: counted } = await tx.query('update counter set n = n + 1 where key = $1 returning n', [place])
      await outbox.add({ topic: TOPIC, orderingKey: place, payload: { key: place, n: counted[0].n } })
      answer(response, 201, { outcome: String(rows[0].id) })
    }),
    '/charge': idempotency(
      once,
      {
        ...options,
        operation: 'charge',
        mode: 'run',
        run: { leaseMs: LEASE_MS, claimsMax: 1_000, failuresMax: 1_000 },
      },
      async (request, response, { op, key }) => {
        const { payload } = (await bodyOf(request)) as { payload: string }
        const delivery = payload.startsWith('r') ? 'reconciled' : 'keyed'
        const { charge } = await chargeAndBook(op, at, { reference: key as string, delivery })
        answer(response, 201, { outcome: charge })
      },
    ),
    '/job': idempotency(once, { ...options, operation: 'job' }, async (request, response, { tx, key }) => {
      const { payload } = (await bodyOf(request)) as { payload: string }
      const charge: Charge = { reference: key as string, delivery: payload.startsWith('r') ? 'reconciled' : 'keyed' }
      await charges.startIn(tx, { scope: SCOPE, key: key as string, payload: charge })
      answer(response, 202, { outcome: 'accepted' })
    }),
  }
  http
    .createServer((request, response) => {
      const route = routes[request.url ?? '']
      if (route === undefined) response.writeHead(404).end()
      else route(request, response)
    })
    .listen(Number(env['PORT']), '127.0.0.1')
}

async function bodyOf(request: http.IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return JSON.parse(Buffer.concat(chunks).toString('utf8')) as unknown
}

function answer(response: http.ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}
