/**
 * The door `effectively-once/fetch`: guarded handlers from `Request` to `Response`: Next.js route handlers, Bun, Deno
 * and whatever else speaks fetch.
 *
 * @module
 */

import type { HandlerContext } from '../../http/exchange.ts'
import { guardFetch, responseOf } from '../../http/fetch/exchange.ts'
import { Guard } from '../../http/guard.ts'
import type { RouteOptions } from '../../http/options.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'

export type { HandlerContext } from '../../http/exchange.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** Options of a route; without a router nobody else can name the operation. */
export interface FetchRouteOptions extends RouteOptions<Request> {
  readonly operation: string
}

/** A handler. On methods that are not guarded `once` is undefined at run time. `rest` is what the host adds. */
export type FetchHandler<Tx, Rest extends readonly unknown[]> = (
  request: Request,
  once: HandlerContext<Tx>,
  ...rest: Rest
) => Promise<Response> | Response

/**
 * Guards a handler: with a key it runs once, in the transaction in which the claim and its answer are stored, and the
 * answer is returned after the commit. An error of the handler rolls back and is thrown on to the host.
 *
 * Repeated header lines arrive joined; such a key is refused as well, because a comma cannot stand in a bare key.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * export const POST = idempotency(once, { scope: tenantOf, operation: 'POST /orders' }, async (request, { tx }) => {
 *   const { rows } = await tx.query('insert into orders default values returning id')
 *   return Response.json(rows[0], { status: 201 })
 * })
 */
export function idempotency<Tx, Rest extends readonly unknown[] = []>(
  once: Once<Tx>,
  options: FetchRouteOptions,
  handler: FetchHandler<Tx, Rest>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  const guard = new Guard<Tx, Request>('idempotency', once, options)
  if (options.operation === undefined) throw new TypeError('idempotency needs operation: fetch has no routes')
  if (typeof handler !== 'function') throw new TypeError('idempotency takes a handler')
  return async (request, ...rest) => {
    const answer = await guardFetch(guard, { request, raw: request, template: undefined }, async (context, readable) =>
      handler(readable.request(), context, ...rest),
    )
    return answer ?? (await handler(request, undefined as never, ...rest))
  }
}

/**
 * The status resource for `whenInProgress: 'accept'`; route `GET <statusPath>/...` to it.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx>(
  once: Once<Tx>,
  options: StatusOptions<Request>,
): (request: Request) => Promise<Response> {
  const status = new StatusResource<Tx, Request>('operationStatus', once, options)
  return async (request) => responseOf(await status.answer(request, request.url))
}
