/**
 * A server that answers from a script, and a clock that jumps.
 *
 * The server is a real one on a real socket: what arrives is what the client sent.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Clock, retryBudget } from '../../src/client/index.ts'

export interface Arrived {
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer
  /** By the test's clock. */
  readonly at: number
}

export type Step = (response: ServerResponse, request: IncomingMessage, arrived: Arrived) => void | Promise<void>

export interface Scripted {
  readonly url: string
  readonly arrived: readonly Arrived[]
  close(): Promise<void>
}

/** Answers the n-th request with the n-th step; one that comes too many gets 418, which is final. */
export async function scripted(steps: readonly Step[], clock: { now(): number } = Date): Promise<Scripted> {
  const arrived: Arrived[] = []
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      const seen = {
        method: request.method ?? '',
        path: request.url ?? '',
        headers: request.headers as Record<string, string>,
        body: Buffer.concat(chunks),
        at: clock.now(),
      }
      const step = steps[arrived.length] ?? answer(418)
      arrived.push(seen)
      void step(response, request, seen)
    })
    request.on('error', () => undefined)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    arrived,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

export const answer =
  (status: number, body: unknown = {}, headers: Record<string, string> = {}): Step =>
  (response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers })
    response.end(JSON.stringify(body))
  }

/** A problem document as an effectively-once service writes it. */
export const problem =
  (status: number, members: Record<string, unknown>, headers: Record<string, string> = {}): Step =>
  (response) => {
    response.writeHead(status, { 'content-type': 'application/problem+json', ...headers })
    response.end(JSON.stringify({ type: 'about:blank', status, ...members }))
  }

/** The connection breaks before an answer. */
export const reset: Step = (_response, request) => {
  request.socket.resetAndDestroy()
}

/** Half of an answer, then the connection breaks. */
export const torn: Step = (response, request) => {
  response.writeHead(201, { 'content-type': 'application/json', 'content-length': '100' })
  response.write('{"from":"the torn one"', () => request.socket.resetAndDestroy())
}

export const silence: Step = () => undefined

export interface JumpingClock extends Clock {
  readonly waits: number[]
  advance(ms: number): void
}

/** Waiting takes no time; it moves the clock. */
export function jumpingClock(start: number = Date.UTC(2026, 9, 21, 7, 28)): JumpingClock {
  let now = start
  const waits: number[] = []
  return {
    waits,
    now: () => now,
    async sleep(ms, signal) {
      if (signal?.aborted === true) return
      waits.push(ms)
      now += ms
    },
    advance(ms) {
      now += ms
    },
  }
}

/** Options that make a client's behaviour repeatable. */
export function repeatable(clock: Clock): {
  clock: Clock
  random: () => number
  budget: ReturnType<typeof retryBudget>
} {
  return { clock, random: () => 0.5, budget: retryBudget() }
}
