/**
 * The door `effectively-once/express`: guarded routes on Express 4 and 5.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import { lendContext } from '../../http/context.ts'
import { Guard } from '../../http/guard.ts'
import type { ParsedRequest } from '../../http/node/body.ts'
import { guardNode } from '../../http/node/exchange.ts'
import { sendWhole } from '../../http/node/held-response.ts'
import type { RouteOptions } from '../../http/options.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'

export { onceOf } from '../../http/context.ts'
export type { HandlerContext } from '../../http/exchange.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** The part of Express's request that is looked at. */
export interface ExpressRequest extends IncomingMessage {
  readonly originalUrl?: string
  readonly baseUrl?: string
  readonly route?: { readonly path?: unknown } | undefined
}

/** A middleware as `app.post(path, ...)` takes it. */
export type ExpressMiddleware = (
  request: ExpressRequest,
  response: ServerResponse,
  next: (error?: unknown) => void,
) => void

/**
 * Guards the handlers behind it: with a key they run once, in the transaction in which the claim and their answer are
 * stored; the answer leaves after the commit. It works in front of and behind body parsers; in front of them it sees
 * the body's bytes, which is what repeats are compared by best.
 *
 * The answer ends the work: `await` your statements before `res.json()`. Handlers find `tx` and `outbox` on `req.once`.
 *
 * The template is known where it stands in the route, `app.post('/orders/:id', idempotency(...), handler)`. In a mounted
 * router, or with `app.use`, give `operation`.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * app.post('/orders', idempotency(once, { scope: (req) => req.user.tenantId }), async (req, res) => {
 *   const { rows } = await onceOf(once, req).tx.query('insert into orders default values returning id')
 *   res.status(201).json(rows[0])
 * })
 */
export function idempotency<Tx, Req extends ExpressRequest = ExpressRequest>(
  once: Once<Tx>,
  options: RouteOptions<Req>,
): ExpressMiddleware {
  const guard = new Guard<Tx, Req>('idempotency', once, options)
  return (request, response, next) => {
    const exchange = {
      // What the route's requests are is known where its options are written.
      request: request as Req,
      raw: request,
      response,
      target: request.originalUrl ?? request.url ?? '/',
      template: templateOf(request),
      parsed: request as ParsedRequest,
    }
    guardNode(guard, exchange, {
      start: (context) => {
        lendContext(request, context)
        next()
      },
      unguarded: () => next(),
      failed: next,
    })
  }
}

/**
 * The status resource for `whenInProgress: 'accept'`: `app.get('/operations/:ref', operationStatus(once, { scope }))`.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx, Req extends ExpressRequest = ExpressRequest>(
  once: Once<Tx>,
  options: StatusOptions<Req>,
): ExpressMiddleware {
  const status = new StatusResource<Tx, Req>('operationStatus', once, options)
  return (request, response, next) => {
    status
      .answer(request as Req, request.originalUrl ?? request.url ?? '/')
      .then((answer) => sendWhole(response, answer), next)
  }
}

/** A mounted router shows the path that it was reached by, with its parameters filled in: no template. */
function templateOf({ route, baseUrl }: ExpressRequest): string | undefined {
  return typeof route?.path === 'string' && (baseUrl === undefined || baseUrl === '') ? route.path : undefined
}
