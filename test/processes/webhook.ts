/**
 * A receiver of webhooks in a process of its own. The event's id is the key, and the provider's redelivery the repeat.
 * `/now` applies the event before it answers; `/later` stores a job for workers and answers 202.
 *
 * Environment: DATABASE_URL; FAIL: the first event to be applied fails behind its write; KILL: the process dies there.
 */
import http from 'node:http'
import pg from 'pg'
import { createOnce, isOnceError } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

export interface HookEvent {
  readonly id: string
}

const env = process.env
const pool = new pg.Pool({ connectionString: env['DATABASE_URL'], max: 5 })
const once = createOnce({ store: postgres(pool) })
let isFailing = env['FAIL'] === '1'
const book = once.define('hook.book', { handler: (): Promise<void> => Promise.reject(new Error('no worker here')) })

async function receive(path: string | undefined, event: HookEvent): Promise<number> {
  const operation = { scope: ['provider', path ?? ''], key: event.id, payload: event }
  if (path === '/later') {
    await book.start(operation)
    return 202
  }
  await once.transaction(operation, async ({ tx }) => {
    await tx.query('insert into orders (ref) values ($1)', [event.id])
    if (env['KILL'] === '1') process.kill(process.pid, 'SIGKILL')
    if (isFailing) {
      isFailing = false
      throw new Error('the first one fails')
    }
  })
  return 200
}

const server = http.createServer((request, response) => {
  const chunks: Buffer[] = []
  request.on('data', (chunk: Buffer) => chunks.push(chunk))
  request.on('end', () => {
    receive(request.url, JSON.parse(Buffer.concat(chunks).toString()) as HookEvent).then(
      (status) => response.writeHead(status).end(),
      (error: unknown) =>
        response.writeHead(isOnceError(error, 'OPERATION_IN_PROGRESS') ? 409 : 500).end(String(error)),
    )
  })
})
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  process.stdout.write(`${typeof address === 'object' && address !== null ? address.port : 0}\n`)
})
// The parent has gone.
process.stdin.resume().on('end', () => process.exit(0))
