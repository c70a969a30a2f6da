/**
 * The door `effectively-once/fastify`: guarded routes on Fastify 4 and 5.
 *
 * @module
 */

import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import { lendContext } from '../../http/context.ts'
import { Guard } from '../../http/guard.ts'
import { readBody, readInstead } from '../../http/node/body.ts'
import { guardNode } from '../../http/node/exchange.ts'
import { type FastifyReply, isReplay, sendReplay, sendReply } from '../../http/node/fastify-reply.ts'
import type { RouteOptions } from '../../http/options.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'

export { onceOf } from '../../http/context.ts'
export type { HandlerContext } from '../../http/exchange.ts'
export type { FastifyReply } from '../../http/node/fastify-reply.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** The part of Fastify's request that is used. */
export interface FastifyRequest {
  readonly raw: IncomingMessage
  readonly url: string
  readonly originalUrl?: string
  readonly body?: unknown
  readonly routeOptions?: { readonly url?: string | undefined } | undefined
}

/** Hooks of a route; spread them into its options. */
export interface FastifyHooks {
  readonly preParsing: (
    request: FastifyRequest,
    reply: FastifyReply,
    payload: unknown,
    done: (error: Error | null, payload?: never) => void,
  ) => void
  readonly preHandler: (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void) => void
}

/**
 * Guards a route: with a key its handler runs once, in the transaction in which the claim and the answer are stored; the
 * answer leaves after the commit. The body is seen as it came; authentication (`onRequest`) and schema validation come
 * before the claim. Handlers find `tx` and `outbox` on `request.once`.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * app.post('/orders', { ...idempotency(once, { scope: (request) => request.tenant }) }, async (request, reply) => {
 *   const { rows } = await onceOf(once, request).tx.query('insert into orders default values returning id')
 *   return reply.code(201).send(rows[0])
 * })
 */
export function idempotency<Tx, Req extends FastifyRequest = FastifyRequest>(
  once: Once<Tx>,
  options: RouteOptions<Req>,
): FastifyHooks {
  const guard = new Guard<Tx, Req>('idempotency', once, options)
  return {
    preParsing(request, reply, payload, done) {
      const { raw } = request
      const goOn = (body: Awaited<ReturnType<typeof readBody | typeof readInstead>> | undefined) => {
        if (body === 'too-large') sendReply(reply, guard.tooLarge())
        else if (body instanceof Readable) done(null, withReceivedLength(body, raw, payload) as never)
        else if (body !== 'gone') done(null)
      }
      const { bodyBytesMax } = guard.policy
      if (!guard.guards(raw.method ?? '')) done(null)
      // What cannot be read is asked for again by the guard, which knows how to tell it.
      else if (payload === raw) readBody(raw, bodyBytesMax).then(goOn, () => goOn(undefined))
      // A hook in front has put something else in its place, to inflate it for instance.
      else readInstead(raw, payload as Readable, bodyBytesMax).then(goOn, done)
    },
    preHandler(request, reply, done) {
      const exchange = {
        // What the route's requests are is known where its options are written.
        request: request as Req,
        raw: request.raw,
        response: reply.raw,
        target: request.originalUrl ?? request.url,
        template: request.routeOptions?.url,
        parsed: request,
      }
      guardNode(guard, exchange, {
        start: (context) => {
          lendContext(request, context)
          done()
        },
        unguarded: () => done(),
        failed: (error) => done(error as Error),
        send: (answer) => (isReplay(answer, guard.policy.replayHeader) ? sendReplay : sendReply)(reply, answer),
      })
    },
  }
}

/**
 * The status resource for `whenInProgress: 'accept'`: `app.get('/operations/:ref', operationStatus(once, { scope }))`.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx, Req extends FastifyRequest = FastifyRequest>(
  once: Once<Tx>,
  options: StatusOptions<Req>,
): (request: FastifyRequest, reply: FastifyReply) => void {
  const status = new StatusResource<Tx, Req>('operationStatus', once, options)
  return (request, reply) => {
    status.answer(request as Req, request.originalUrl ?? request.url).then(
      (answer) => sendReply(reply, answer),
      (error: unknown) => reply.send(error),
    )
  }
}

/** Fastify compares it with Content-Length. A hook that replaces the body has to say it; one that does not is believed. */
function withReceivedLength(body: Readable, { headers }: IncomingMessage, payload: unknown): Readable {
  const said = (payload as { readonly receivedEncodedLength?: number }).receivedEncodedLength
  return Object.assign(body, { receivedEncodedLength: said ?? Number(headers['content-length'] ?? 0) })
}
