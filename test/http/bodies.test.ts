/** Bodies that somebody in front has read, or that come without the headers that tell of them. */
import { randomUUID } from 'node:crypto'
import http, { type IncomingMessage } from 'node:http'
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import { createGunzip, gzipSync } from 'node:zlib'
import express, { type NextFunction, type Request, type Response } from 'express'
import { fastify } from 'fastify'
import { expect, test } from 'vitest'
import { idempotency as onExpress } from '../../src/frameworks/express/index.ts'
import { idempotency as onFastify } from '../../src/frameworks/fastify/index.ts'
import { idempotency as onNode } from '../../src/frameworks/node/index.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { eventually } from '../eventually.ts'
import { listen, textOf } from './adapters/node.ts'
import { send } from './client.ts'

const once = createOnce({ store: memory() })
const errors: unknown[] = []
const common = { scope: () => 'acme', onError: (error: unknown) => errors.push(error) }

const upload = (file: string) =>
  '--B\r\ncontent-disposition: form-data; name="note"\r\n\r\nsame\r\n' +
  `--B\r\ncontent-disposition: form-data; name="file"; filename="f.txt"\r\n\r\n${file}\r\n--B--\r\n`

/** Reads what was sent, keeps it in a place of its own, and leaves something else as the parsed body. */
const reader =
  (parsed: unknown) =>
  async (request: Request & { text?: string }, _response: Response, next: NextFunction): Promise<void> => {
    request.text = await textOf(request)
    request.body = parsed
    next()
  }

test.each<[string, string, unknown, (text: string) => string]>([
  ['a reader of uploads that keeps the file elsewhere', 'multipart/form-data; boundary=B', { note: 'same' }, upload],
  ['a parser that has left an empty object', 'text/csv', {}, (text) => `id,cents\n${text},42\n`],
  ['the same, for JSON of its own kind', 'application/vnd.api+json', {}, (text) => JSON.stringify([text.repeat(99)])],
])('R03, I4: behind %s a request is refused: two of them would look the same', async (_, type, parsed, body) => {
  const app = express()
  app.post('/orders', reader(parsed), onExpress(once, common), (request: Request & { text?: string }, response) => {
    response.json({ text: request.text })
  })
  const served = await listen(http.createServer(app))
  const key = randomUUID()
  const post = (text: string) =>
    send(served.port, { path: '/orders', key, body: body(text), headers: { 'content-type': type } })
  try {
    errors.length = 0
    for (const text of ['one', 'two']) {
      const answer = await post(text)
      expect([answer.status, answer.headers['content-type']]).toEqual([500, 'application/problem+json'])
    }
    expect(String(errors[0])).toContain('not all of it was kept; put idempotency first')
  } finally {
    await served.close()
  }
})

test('R03, I4: an upload is read in front of its reader, and another file is another request', async () => {
  const app = express()
  app.post('/orders', onExpress(once, common), reader({}), (request: Request & { text?: string }, response) => {
    response.json({ size: request.text?.length })
  })
  const served = await listen(http.createServer(app))
  const key = randomUUID()
  const headers = { 'content-type': 'multipart/form-data; boundary=B' }
  const post = (text: string) => send(served.port, { path: '/orders', key, body: upload(text), headers })
  try {
    expect((await post('one')).json()).toEqual({ size: upload('one').length })
    expect((await post('one')).headers['idempotent-replayed']).toBe('true')
    expect((await post('two')).status).toBe(422)
  } finally {
    await served.close()
  }
})

test('R03, I4: a body that a hook of Fastify inflates is compared after that, also when its headers are gone', async () => {
  const app = fastify({ forceCloseConnections: true })
  app.addHook('preParsing', async ({ headers }, _reply, payload) => {
    if (headers['content-encoding'] !== 'gzip') return payload
    const length = Number(headers['content-length'])
    delete headers['content-encoding']
    delete headers['content-length']
    return Object.assign(payload.pipe(createGunzip()), { receivedEncodedLength: length })
  })
  app.post('/orders', { ...onFastify(once, { ...common, bodyBytesMax: 100 }) }, async ({ body }) => ({ body }))
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  const key = randomUUID()
  const post = (content: unknown) => {
    const headers = { 'content-encoding': 'gzip', 'content-type': 'application/json' }
    return send(port, { path: '/orders', key, body: gzipSync(JSON.stringify(content)), headers })
  }
  try {
    expect((await post({ cents: 1 })).json()).toEqual({ body: { cents: 1 } })
    expect((await post({ cents: 1 })).headers['idempotent-replayed']).toBe('true')
    expect((await post({ cents: 2 })).status).toBe(422)
    expect((await post({ text: 'x'.repeat(200) })).status).toBe(413)
    const plain = await send(port, { path: '/orders', key, body: '{"cents": 1}' })
    expect(plain.headers['idempotent-replayed']).toBe('true')
  } finally {
    await app.close()
  }
})

interface Answer2 {
  readonly status: number
  readonly replayed: boolean
  readonly text: string
}

/** A server of HTTP/2 and a client that sends no `content-length`. */
async function overHttp2(
  handler: (request: IncomingMessage) => Promise<string>,
  run: (
    post: (key: string, chunks: readonly string[]) => Promise<Answer2>,
    cut: (key: string, body: string) => http2.ClientHttp2Stream,
  ) => Promise<void>,
): Promise<void> {
  const listener = onNode(once, { ...common, operation: 'POST /http2' }, async (request, response) => {
    const text = await handler(request)
    response.writeHead(201, { 'content-type': 'text/plain' })
    response.end(text)
  })
  const server = http2.createServer(listener as unknown as Parameters<typeof http2.createServer>[1])
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  const open = (key: string) =>
    session.request({ ':method': 'POST', ':path': '/', 'idempotency-key': key, 'content-type': 'text/plain' })
  const post = (key: string, chunks: readonly string[]) =>
    new Promise<Answer2>((resolve, reject) => {
      const stream = open(key)
      let status = 0
      let replayed = false
      let text = ''
      stream.on('response', (headers) => {
        status = Number(headers[':status'])
        replayed = headers['idempotent-replayed'] === 'true'
      })
      stream.on('data', (chunk: Buffer) => {
        text += chunk.toString()
      })
      stream.on('error', reject)
      stream.on('end', () => resolve({ status, replayed, text }))
      for (const chunk of chunks) stream.write(chunk)
      stream.end()
    })
  const cut = (key: string, body: string) => {
    const stream = open(key)
    stream.on('error', () => {})
    stream.end(body)
    return stream
  }
  try {
    await run(post, cut)
  } finally {
    session.destroy()
    await new Promise((resolve) => server.close(resolve))
  }
}

test('R03, I4: over HTTP/2 a body without a length is compared, and the handler can read it', async () => {
  await overHttp2(
    async (request) => `got ${await textOf(request)}`,
    async (post) => {
      const key = randomUUID()
      expect(await post(key, ['one', ' two'])).toEqual({ status: 201, replayed: false, text: 'got one two' })
      expect(await post(key, ['one two'])).toEqual({ status: 201, replayed: true, text: 'got one two' })
      expect((await post(key, ['other'])).status).toBe(422)
      expect((await post(key, [])).status).toBe(422)
      const bare = randomUUID()
      expect((await post(bare, [])).text).toBe('got ')
      expect((await post(bare, [])).replayed).toBe(true)
    },
  )
})

test('SC19: over HTTP/2 too a caller that hangs up changes nothing', async () => {
  let started = () => {}
  let goOn = () => {}
  const reached = new Promise<void>((resolve) => {
    started = resolve
  })
  const gate = new Promise<void>((resolve) => {
    goOn = resolve
  })
  await overHttp2(
    async (request) => {
      const text = await textOf(request)
      started()
      await gate
      return text
    },
    async (post, cut) => {
      const key = randomUUID()
      const stream = cut(key, 'work')
      await reached
      stream.close(http2.constants.NGHTTP2_CANCEL)
      await new Promise((resolve) => stream.once('close', resolve))
      goOn()
      let again: Answer2 | undefined
      await eventually('the answer is stored', async () => {
        again = await post(key, ['work'])
        return again.status === 201
      })
      expect(again).toEqual({ status: 201, replayed: true, text: 'work' })
    },
  )
})
