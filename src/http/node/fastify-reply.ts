/**
 * Fastify's reply, as the adapters of Fastify and of NestJS on it answer where the handler did not run.
 *
 * @module
 */

import type { ServerResponse } from 'node:http'
import { groupedHeaders, headerOf, type WholeResponse } from '../response.ts'
import { sendWhole } from './held-response.ts'

/** The part of Fastify's reply that is used. */
export interface FastifyReply {
  readonly raw: ServerResponse
  code(status: number): unknown
  header(name: string, value: unknown): unknown
  send(body?: unknown): unknown
  hijack(): unknown
  getHeaders(): object
}

/** Whether an answer is a stored one, and not a problem. */
export function isReplay({ headers }: WholeResponse, replayHeader: string): boolean {
  return headerOf(headers, replayHeader) === 'true'
}

/** Through the reply, so that hooks of the application (CORS, compression) see it. */
export function sendReply(reply: FastifyReply, { status, headers, body }: WholeResponse): void {
  reply.code(status)
  for (const [name, value] of groupedHeaders(headers)) reply.header(name, value)
  reply.send(body.byteLength === 0 ? undefined : Buffer.from(body))
}

/**
 * Past the hooks `onSend`: they have worked on the stored answer already, and would do it a second time. Headers that are
 * laid on the reply (CORS) stay.
 */
export function sendReplay(reply: FastifyReply, answer: WholeResponse): void {
  const laid = Object.entries(reply.getHeaders()) as [string, number | string | string[] | undefined][]
  reply.hijack()
  for (const [name, value] of laid) if (value !== undefined) reply.raw.setHeader(name, value)
  sendWhole(reply.raw, answer)
}
