/**
 * A shop on PostgreSQL: serves the built client to browsers as it is, and places orders once per key.
 */
import { readFile } from 'node:fs/promises'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import pg from 'pg'
import ts from 'typescript'
import {
  type HandlerContext,
  idempotency,
  type NodeListener,
  type NodeRouteOptions,
  operationStatus,
} from '../../src/frameworks/node/index.ts'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export interface Shop {
  /** Origin of the page and of the orders. */
  readonly url: string
  /** The same service under another origin. */
  readonly otherUrl: string
  readonly requests: readonly { readonly key: string; readonly body: string }[]
  /** The next request is held there. */
  hold(phase: Phase): Held
  /** Orders in the database. */
  orders(): Promise<readonly { readonly id: number; readonly customer: string }[]>
  close(): Promise<void>
}

/** Before its transaction, in it, or after its commit and before its answer. */
type Phase = 'before' | 'during' | 'after'

interface Known extends IncomingMessage {
  rawBody?: Buffer
  during?: () => Promise<void>
}

export interface Held {
  /** Resolves when the request has come to the phase. */
  readonly reached: Promise<void>
  /** Lets it go on. */
  release(): void
}

const PAGE = '<!doctype html><meta charset="utf-8"><title>shop</title>'

export async function startShop(): Promise<Shop> {
  const database = await createDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  const once = createOnce({ store: postgres(pool) })
  await once.migrate()
  await pool.query('create table orders (id int generated always as identity primary key, customer text not null)')
  const requests: { key: string; body: string }[] = []
  let gate: { phase: Phase; reach: () => void; released: Promise<void> } | undefined

  const placed = async ({ tx }: HandlerContext<pg.PoolClient>, body: string): Promise<[number, unknown]> => {
    const { customer, cents } = JSON.parse(body) as { customer: string; cents: number }
    if (cents > 10_000) return [402, { reason: 'credit' }]
    const { rows } = await tx.query<{ id: number }>('insert into orders (customer) values ($1) returning id', [
      customer,
    ])
    return [201, { orderId: rows[0]?.id ?? 0 }]
  }
  const scope = () => 'shop'
  const guarded = (options: Pick<NodeRouteOptions, 'operation' | 'whenInProgress' | 'statusPath'>): NodeListener =>
    idempotency(once, { scope, ...options }, async (request, response, context) => {
      await (request as Known).during?.()
      const [status, value] = await placed(context, String((request as Known).rawBody))
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value))
    })
  const routes: Readonly<Record<string, NodeListener>> = {
    '/orders': guarded({ operation: 'POST /orders' }),
    '/accepted': guarded({ operation: 'POST /accepted', whenInProgress: 'accept', statusPath: '/operations' }),
  }
  const status = operationStatus(once, { scope })

  /** Notes the request, and stops it where a test wants it stopped. */
  const place = async (request: Known, response: ServerResponse, route: NodeListener): Promise<void> => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    request.rawBody = Buffer.concat(chunks)
    requests.push({ key: String(request.headers['idempotency-key'] ?? ''), body: request.rawBody.toString() })
    const held = gate
    gate = undefined
    const pass = async (phase: Phase): Promise<void> => {
      if (held?.phase !== phase) return
      held.reach()
      await held.released
    }
    await pass('before')
    request.during = () => pass('during')
    const end = response.end.bind(response) as (...parts: unknown[]) => ServerResponse
    response.end = ((...parts: unknown[]) => {
      void pass('after').then(() => end(...parts))
      return response
    }) as ServerResponse['end']
    route(request, response)
  }

  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = request.url ?? '/'
    response.setHeader('access-control-allow-origin', '*')
    response.setHeader('access-control-allow-headers', 'Idempotency-Key, Content-Type')
    response.setHeader('access-control-expose-headers', 'Idempotent-Replayed, Retry-After, Location')
    if (request.method === 'OPTIONS') return void response.writeHead(204).end()
    const route = routes[path]
    if (route !== undefined && request.method === 'POST') return place(request, response, route)
    if (path.startsWith('/operations/')) return status(request, response)
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
