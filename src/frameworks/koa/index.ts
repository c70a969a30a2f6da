/**
 * The door `effectively-once/koa`: guarded routes on Koa 2 and 3.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import { lendContext } from '../../http/context.ts'
import { Guard } from '../../http/guard.ts'
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

/** The part of Koa's context that is used. */
export interface KoaContext {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly originalUrl: string
  readonly request: object
  /** false: Koa leaves the response alone. */
  respond?: boolean | undefined
}

/** A middleware as `app.use` and routers take it. */
export type KoaMiddleware = (context: KoaContext, next: () => Promise<unknown>) => Promise<void>

/**
 * Guards the middleware behind it: with a key it runs once, in the transaction in which the claim and the answer are
 * stored. Koa writes the answer when all middleware is through; it leaves after the commit. Handlers find `tx` and
 * `outbox` on `ctx.once`.
 *
 * Errors that reach Koa are answered by Koa: what is thrown as 4xx is stored like any other refusal.
 *
 * The template is known behind @koa/router; elsewhere give `operation`.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * router.post('/orders', idempotency(once, { scope: (ctx) => ctx.state.tenant }), async (ctx) => {
 *   const { rows } = await onceOf(once, ctx).tx.query('insert into orders default values returning id')
 *   ctx.status = 201
 *   ctx.body = rows[0]
 * })
 */
export function idempotency<Tx, Ctx extends KoaContext = KoaContext>(
  once: Once<Tx>,
  options: RouteOptions<Ctx>,
): KoaMiddleware {
  const guard = new Guard<Tx, Ctx>('idempotency', once, options)
  return (context, next) =>
    new Promise<void>((resolve, reject) => {
      const run = () => {
        next().then(() => resolve(), reject)
      }
      const exchange = {
        request: context as Ctx,
        raw: context.req,
        response: context.res,
        target: context.originalUrl,
        template: templateOf(context),
        parsed: context.request,
      }
      guardNode(guard, exchange, {
        start: (handed) => {
          lendContext(context, handed)
          run()
        },
        unguarded: run,
        failed: reject,
        send: (answer) => {
          context.respond = false
          sendWhole(context.res, answer)
          resolve()
        },
      })
    })
}

/**
 * The status resource for `whenInProgress: 'accept'`: `router.get('/operations/:ref', operationStatus(once, { scope }))`.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx, Ctx extends KoaContext = KoaContext>(
  once: Once<Tx>,
  options: StatusOptions<Ctx>,
): KoaMiddleware {
  const status = new StatusResource<Tx, Ctx>('operationStatus', once, options)
  return async (context) => {
    const answer = await status.answer(context as Ctx, context.originalUrl)
    context.respond = false
    sendWhole(context.res, answer)
  }
}

/** @koa/router tells which of its routes was matched. */
function templateOf(context: KoaContext): string | undefined {
  const route: unknown = Reflect.get(context, '_matchedRoute')
  return typeof route === 'string' ? route : undefined
}
