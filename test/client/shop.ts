/**
 * A shop on PostgreSQL: serves the built client to browsers as it is, and places orders once per key.
 */
import { readFile } from 'node:fs/promises'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import pg from 'pg'
import ts from 'typescript'
import { createOnce, isOnceError, rejected } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export interface Shop {
  /** Origin of the page and of the orders. */
  readonly url: string
  /** The same service under another origin. */
  readonly otherUrl: string
  readonly requests: readonly { readonly key: string; readonly body: string }[]
  /** The next request is held: `before` its transaction, or `after` its commit and before its answer. */
  hold(phase: 'before' | 'after'): Held
  /** Orders in the database. */
  orders(): Promise<readonly { readonly id: number; readonly customer: string }[]>
  close(): Promise<void>
}

export interface Held {
  /** Resolves when the request has come to the phase. */
  readonly reached: Promise<void>
  /** Lets it go on. */
  release(): void
}

const PAGE = '<!doctype html><meta charset="utf-8"><title>shop</title>'
const BYTES_MAX = 100_000

export async function startShop(): Promise<Shop> {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  const once = createOnce({ store: postgres(pool) })
  await once.migrate()
  await pool.query('create table orders (id int generated always as identity primary key, customer text not null)')
  const requests: { key: string; body: string }[] = []
  let gate: { phase: 'before' | 'after'; reach: () => void; released: Promise<void> } | undefined

  const place = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString()
    if (body.length > BYTES_MAX) return void response.writeHead(413).end()
    const key = String(request.headers['idempotency-key'] ?? '')
    requests.push({ key, body })
    const held = gate
    gate = undefined
    const pass = async (phase: 'before' | 'after'): Promise<void> => {
      if (held?.phase !== phase) return
      held.reach()
      await held.released
    }
    await pass('before')
    const payload = JSON.parse(body) as { customer: string; cents: number }
    try {
      const operation = { scope: ['shop', 'orders.create'], key, payload }
      const outcome = await once.transaction(operation, async ({ tx }) => {
        if (payload.cents > 10_000) return rejected({ reason: 'credit' })
        const insert = 'insert into orders (customer) values ($1) returning id'
        const { rows } = await tx.query<{ id: number }>(insert, [payload.customer])
        return { orderId: rows[0]?.id ?? 0 }
      })
      await pass('after')
      const [status, value] = outcome.state === 'succeeded' ? [201, outcome.value] : [402, outcome.rejection]
      response.writeHead(status, {
        'content-type': 'application/json',
        ...(outcome.replayed ? { 'idempotent-replayed': 'true' } : {}),
      })
      response.end(JSON.stringify(value))
    } catch (error) {
      if (!isOnceError(error)) throw error
      const { code, retryable, retryAfterMs, safeNewKey } = error
      response.writeHead(error.status ?? 500, {
        'content-type': 'application/problem+json',
        ...(retryAfterMs === undefined ? {} : { 'retry-after': String(Math.ceil(retryAfterMs / 1_000)) }),
      })
      response.end(JSON.stringify({ code, retryable, safe_new_key: safeNewKey }))
    }
  }

  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = request.url ?? '/'
    response.setHeader('access-control-allow-origin', '*')
    response.setHeader('access-control-allow-headers', 'Idempotency-Key, Content-Type')
    response.setHeader('access-control-expose-headers', 'Idempotent-Replayed, Retry-After, Location')
    if (request.method === 'OPTIONS') return void response.writeHead(204).end()
    if (path === '/orders' && request.method === 'POST') return place(request, response)
    if (path === '/orders/moved') return void response.writeHead(303, { location: '/orders/1' }).end()
    if (path === '/') return void response.writeHead(200, { 'content-type': 'text/html' }).end(PAGE)
    const script = await scriptAt(path)
    if (script === undefined) return void response.writeHead(404).end()
    response.writeHead(200, { 'content-type': 'text/javascript' }).end(script)
  }

  const servers = await Promise.all([listen(serve), listen(serve)])
  const [url = '', otherUrl = ''] = servers.map(({ port }) => `http://127.0.0.1:${port}`)
  return {
    url,
    otherUrl,
    requests,
    hold(phase) {
      let reach: () => void = () => undefined
      let release: () => void = () => undefined
      const reached = new Promise<void>((resolve) => {
        reach = resolve
      })
      const released = new Promise<void>((resolve) => {
        release = resolve
      })
      gate = { phase, reach, released }
      return { reached, release }
    },
    async orders() {
      return (await pool.query<{ id: number; customer: string }>('select id, customer from orders order by id')).rows
    },
    async close() {
      await Promise.all(servers.map(({ close }) => close()))
      await pool.end()
      await database.drop()
    },
  }
}

/** A file of the built client, or the storage cases compiled for a browser. */
async function scriptAt(path: string): Promise<string | undefined> {
  if (path === '/storage-cases.js') {
    const source = await readFile('test/client/storage-cases.ts', 'utf8')
    const compilerOptions = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 }
    return ts.transpileModule(source, { compilerOptions }).outputText
  }
  if (!/^\/client\/[a-z0-9/-]+\.js$/.test(path)) return undefined
  return readFile(join('dist', path), 'utf8').catch(() => undefined)
}

async function listen(
  serve: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
): Promise<{ port: number; close: () => Promise<void> }> {
  const server = createServer((request, response) => {
    response.on('error', () => undefined)
    serve(request, response).catch((error: unknown) => {
      response.writeHead(500).end(String(error))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
