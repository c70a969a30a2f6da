/**
 * A client that hides nothing: header lines as they are, bytes as they come, connections under the test's hand.
 */
import http from 'node:http'
import net from 'node:net'

export interface Answered {
  readonly status: number
  readonly headers: http.IncomingHttpHeaders
  readonly body: Buffer
  readonly text: string
  /** Parsed body. */
  json(): Record<string, unknown>
}

export interface Sent {
  readonly method?: string
  readonly path: string
  readonly key?: string | readonly string[]
  readonly tenant?: string | null
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | Uint8Array
  readonly agent?: http.Agent
}

const TIMEOUT_MS = 20_000

/** Sends one request. Content-Type is JSON unless said otherwise. */
export function send(port: number, sent: Sent): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const request = http.request({
      port,
      host: '127.0.0.1',
      path: sent.path,
      method: sent.method ?? 'POST',
      agent: sent.agent ?? false,
      headers: headersOf(sent),
      timeout: TIMEOUT_MS,
    })
    request.on('timeout', () => request.destroy(new Error('no answer in time')))
    request.on('error', reject)
    request.on('response', (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('error', reject)
      response.on('end', () => {
        const body = Buffer.concat(chunks)
        const text = body.toString('utf8')
        const { statusCode: status = 0, headers } = response
        resolve({ status, headers, body, text, json: () => JSON.parse(text) as Record<string, unknown> })
      })
    })
    request.end(sent.body)
  })
}

function headersOf({ key, tenant = 'acme', headers = {}, body }: Sent): http.OutgoingHttpHeaders {
  return {
    ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    ...(tenant === null ? {} : { 'x-tenant': tenant }),
    ...(key === undefined ? {} : { 'idempotency-key': typeof key === 'string' ? key : [...key] }),
    ...headers,
  }
}

/** A request whose connection the test can cut at any time. */
export function sendRaw(port: number, sent: Sent, options: { readonly bodyBytes?: number } = {}): net.Socket {
  const socket = net.connect(port, '127.0.0.1')
  socket.on('error', () => {})
  const body = Buffer.from(sent.body ?? '')
  const headers = { ...headersOf(sent), host: 'localhost', 'content-length': String(body.byteLength) }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${String(value)}\r\n`)
  socket.write(`${sent.method ?? 'POST'} ${sent.path} HTTP/1.1\r\n${lines.join('')}\r\n`)
  socket.write(body.subarray(0, options.bodyBytes ?? body.byteLength))
  return socket
}
