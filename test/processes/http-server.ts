/**
 * A server with one guarded route in a process of its own. Environment: DATABASE_URL; KILL_AT: `before-commit` ends the
 * process by SIGKILL when the handler has worked, `after-commit` when COMMIT was answered and nothing was sent,
 * `after-call` when an outside call was answered. POST /transfers has mode `run` and must not be run again blindly; its
 * outside world is the table `orders`, written beside our transactions, and it is asked where the environment says ASK.
 */
import http from 'node:http'
import pg from 'pg'
import { idempotency } from '../../src/frameworks/node/index.ts'
import { createOnce, stillUnknown } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

const { DATABASE_URL: connectionString, KILL_AT: killAt, WAIT: wait, ASK: ask } = process.env
const pool = new pg.Pool({ connectionString, pipeline: true, max: 5 })
const once = createOnce({ store: postgres(pool) })

const createOrder = idempotency(
  once,
  {
    scope: ({ headers }) => String(headers['x-tenant']),
    operation: 'POST /orders',
    whenInProgress: wait === '1' ? 'wait' : 'reject',
  },
  async (_request, response, { tx, key }) => {
    const { rows } = await tx.query('insert into orders (ref) values ($1) returning id', [key])
    if (killAt === 'before-commit') process.kill(process.pid, 'SIGKILL')
    response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify(rows[0]))
  },
)

const outside = (what: string) => pool.query('insert into orders (ref) values ($1)', [what])

const transfer = idempotency(
  once,
  {
    scope: ({ headers }) => String(headers['x-tenant']),
    operation: 'POST /transfers',
    mode: 'run',
    run: { leaseMs: 1_000 },
  },
  async (_request, response, { op, key = '' }) => {
    await op.effect('withdraw', {
      request: null,
      delivery: 'at-most-once',
      ...(ask === '1' && { reconcile: () => outside(`${key} asked`).then(() => stillUnknown()) }),
      call: async () => {
        await outside(`${key} called`)
        if (killAt === 'after-call') process.kill(process.pid, 'SIGKILL')
        return null
      },
    })
    response.writeHead(201).end('withdrawn')
  },
)

const server = http.createServer((request, response) => {
  if (request.url === '/transfers') {
    transfer(request, response)
    return
  }
  if (killAt === 'after-commit') {
    // The guard sends by the `end` that it finds: at that moment the commit was answered.
    response.end = (() => process.kill(process.pid, 'SIGKILL')) as never
  }
  createOrder(request, response)
})
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  process.stdout.write(`${typeof address === 'object' && address !== null ? address.port : 0}\n`)
})
// The parent has gone.
process.stdin.resume().on('end', () => process.exit(0))
