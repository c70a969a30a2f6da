/**
 * The door `effectively-once/hono`: guarded routes on Hono 4.
 *
 * @module
 */

import { lendContext } from '../../http/context.ts'
import type { RequestBody } from '../../http/exchange.ts'
import { guardFetch, responseOf } from '../../http/fetch/exchange.ts'
import { Guard } from '../../http/guard.ts'
import type { RouteOptions } from '../../http/options.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'
import { type LentRequest, lendRequest } from './request.ts'

export { onceOf } from '../../http/context.ts'
export type { HandlerContext } from '../../http/exchange.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** The part of Hono's context that is used. */
export interface HonoContext {
  readonly req: LentRequest & { readonly routePath: string }
  /** Whether anybody has answered. */
  readonly finalized?: boolean
  get res(): Response
  set res(response: Response | undefined)
}

/** A middleware as Hono's routes take it. */
export type HonoMiddleware = (context: HonoContext, next: () => Promise<void>) => Promise<Response | undefined>

/**
 * Guards the handlers behind it: with a key they run once, in the transaction in which the claim and their answer are
 * stored; the answer leaves after the commit. Errors are answered by `app.onError` and treated by their status. Handlers
 * find `tx` and `outbox` with `onceOf(once, c)`, or on `c.once`.
 *
 * The template is known where it stands in the route, `app.post('/orders/:id', idempotency(...), handler)`; with
 * `app.use` and a wildcard give `operation`.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * app.post('/orders', idempotency(once, { scope: (c) => c.get('tenant') }), async (c) => {
 *   const { rows } = await onceOf(once, c).tx.query('insert into orders default values returning id')
 *   return c.json(rows[0], 201)
 * })
 */
export function idempotency<Tx, Ctx extends HonoContext = HonoContext>(
  once: Once<Tx>,
  options: RouteOptions<Ctx>,
): HonoMiddleware {
  const guard = new Guard<Tx, Ctx>('idempotency', once, options)
  return async (context, next) => {
    let ran = false
    const exchange = {
      request: context as Ctx,
      raw: context.req.raw,
      template: templateOf(context),
      readAlready: () => readAlready(context),
    }
    const answer = await guardFetch(guard, exchange, async (handlerContext, readable) => {
      if (readable.bytes !== undefined) lendRequest(context.req, readable.bytes, readable.request)
      lendContext(context, handlerContext)
      ran = true
      await next()
      // Asked for `res`, Hono would make an empty 200.
      if (context.finalized === false) throw new Error('the handler behind idempotency returned no Response')
      return context.res
    })
    if (answer === undefined) {
      await next()
      return undefined
    }
    if (!ran) return answer
    // Otherwise Hono would merge the headers of the response that was read.
    context.res = undefined
    context.res = answer
    return undefined
  }
}

/**
 * The status resource for `whenInProgress: 'accept'`: `app.get('/operations/:ref', operationStatus(once, { scope }))`.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx, Ctx extends HonoContext = HonoContext>(
  once: Once<Tx>,
  options: StatusOptions<Ctx>,
): (context: HonoContext) => Promise<Response> {
  const status = new StatusResource<Tx, Ctx>('operationStatus', once, options)
  return async (context) => responseOf(await status.answer(context as Ctx, context.req.url))
}

/** A validator in front of us has read the body; Hono keeps what it read. */
async function readAlready(context: HonoContext): Promise<RequestBody> {
  if ('json' in (context.req.bodyCache ?? {})) return { parsed: await context.req.json() }
  return { bytes: new Uint8Array(await context.req.arrayBuffer()), contentDecoded: false }
}

/** A wildcard says where the middleware lies, not which route was matched. */
function templateOf({ req }: HonoContext): string | undefined {
  return req.routePath.includes('*') ? undefined : req.routePath
}
