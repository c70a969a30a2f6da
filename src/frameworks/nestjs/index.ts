/**
 * The door `effectively-once/nestjs`: guarded handlers on NestJS 10 and 11, on the Express and the Fastify platform.
 *
 * An interceptor has to return an rxjs Observable, so `rxjs` is taken from the application: the only import of a vendor
 * in the package.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import { Observable, type Subscription } from 'rxjs'
import { lendContext } from '../../http/context.ts'
import { Guard } from '../../http/guard.ts'
import { guardNode } from '../../http/node/exchange.ts'
import { type FastifyReply, isReplay, sendReplay, sendReply } from '../../http/node/fastify-reply.ts'
import { sendWhole } from '../../http/node/held-response.ts'
import type { RouteOptions } from '../../http/options.ts'
import type { WholeResponse } from '../../http/response.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'

export { onceOf } from '../../http/context.ts'
export type { HandlerContext } from '../../http/exchange.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** The request of either platform, as far as it is looked at. */
export interface NestRequest {
  readonly headers: IncomingMessage['headers']
  /** Fastify: node's own request. */
  readonly raw?: IncomingMessage
  readonly url?: string | undefined
  readonly originalUrl?: string | undefined
  readonly body?: unknown
  readonly rawBody?: unknown
  /** Express. */
  readonly route?: { readonly path?: unknown } | undefined
  /** Fastify. */
  readonly routeOptions?: { readonly url?: string | undefined } | undefined
}

/** The part of Nest's ExecutionContext that is used. */
export interface NestContext {
  getType(): string
  getHandler(): object
  getClass(): { readonly prototype: object }
  switchToHttp(): { getRequest(): unknown; getResponse(): unknown }
}

/** What Nest calls around a handler. */
export interface NestInterceptor {
  intercept(context: NestContext, next: { handle(): Observable<unknown> }): Observable<unknown>
}

/**
 * Options of single handlers, by the prototype and the name that `@Idempotent()` stands on. Not by the function: a
 * decorator that wraps the handler puts another one in its place.
 */
const decorated = new WeakMap<object, Map<string | symbol, Partial<RouteOptions<NestRequest>>>>()

/** What a handler was marked with, in its class or in one that this one extends. */
function markOf(context: NestContext): Partial<RouteOptions<NestRequest>> | undefined {
  const handler = context.getHandler()
  const { prototype } = context.getClass()
  for (let owner: object | null = prototype; owner !== null; owner = Object.getPrototypeOf(owner) as object | null) {
    for (const [name, options] of decorated.get(owner) ?? []) {
      if (Reflect.get(prototype, name) === handler) return options
    }
  }
  return undefined
}

/**
 * Marks a handler for the interceptor of `idempotencyForDecorated`, with options of its own over the common ones.
 *
 * @example
 * @Post()
 * @Idempotent({ whenInProgress: 'wait' })
 * create(@Req() request) { ... }
 */
export function Idempotent(
  options: Partial<RouteOptions<NestRequest>> = {},
): (target: object, name: string | symbol, descriptor: PropertyDescriptor) => void {
  return (target, name) => {
    const marks = decorated.get(target) ?? new Map<string | symbol, Partial<RouteOptions<NestRequest>>>()
    decorated.set(target, marks.set(name, options))
  }
}

/**
 * An interceptor that guards every handler it is used on: `@UseInterceptors(idempotency(once, { scope }))`. With a key
 * the handler runs once, in the transaction in which the claim and its answer are stored, and the answer leaves after
 * the commit, also when an exception filter makes it. Guards and pipes of Nest: guards come before the claim, pipes and
 * the handler after it. Handlers find `tx` and `outbox` with `onceOf(once, request)`.
 *
 * Create the application with `rawBody: true`, so that repeats are compared by what was sent.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function idempotency<Tx>(once: Once<Tx>, options: RouteOptions<NestRequest>): NestInterceptor {
  const guard = new Guard<Tx, NestRequest>('idempotency', once, options)
  return interceptor(() => guard)
}

/**
 * An interceptor for the whole application that guards the handlers marked with `@Idempotent()` and no others:
 * `app.useGlobalInterceptors(idempotencyForDecorated(once, { scope }))`.
 *
 * @throws {TypeError} at once, for wrong options; for those of a handler, at its first request.
 */
export function idempotencyForDecorated<Tx>(once: Once<Tx>, options: RouteOptions<NestRequest>): NestInterceptor {
  const where = 'idempotencyForDecorated'
  const guards = new WeakMap<object, Guard<Tx, NestRequest>>()
  new Guard<Tx, NestRequest>(where, once, options)
  return interceptor((context) => {
    const own = markOf(context)
    if (own === undefined) return undefined
    const handler = context.getHandler()
    let guard = guards.get(handler)
    if (guard === undefined) {
      guard = new Guard<Tx, NestRequest>(where, once, { ...options, ...own })
      guards.set(handler, guard)
    }
    return guard
  })
}

/**
 * The status resource for `whenInProgress: 'accept'`, for a handler that takes the platform's objects:
 * `@Get('operations/:ref') status(@Req() request, @Res() response) { return this.answer(request, response) }`.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx>(
  once: Once<Tx>,
  options: StatusOptions<NestRequest>,
): (request: NestRequest, response: object) => Promise<void> {
  const status = new StatusResource<Tx, NestRequest>('operationStatus', once, options)
  return async (request, response) => {
    send(response, await status.answer(request, request.originalUrl ?? request.url ?? '/'), false)
  }
}

function interceptor<Tx>(guardOf: (context: NestContext) => Guard<Tx, NestRequest> | undefined): NestInterceptor {
  return {
    intercept(context, next) {
      const guard = context.getType() === 'http' ? guardOf(context) : undefined
      return guard === undefined ? next.handle() : guarded(guard, context, () => next.handle())
    },
  }
}

/** Emits what the handler emits; nothing, ever, when something else was answered. */
function guarded<Tx>(
  guard: Guard<Tx, NestRequest>,
  context: NestContext,
  handle: () => Observable<unknown>,
): Observable<unknown> {
  const request = context.switchToHttp().getRequest() as NestRequest
  const response = context.switchToHttp().getResponse() as object
  return new Observable<unknown>((subscriber) => {
    let running: Subscription | undefined
    const run = () => {
      running = handle().subscribe(subscriber)
    }
    const exchange = {
      request,
      raw: request.raw ?? (request as unknown as IncomingMessage),
      response: rawOf(response),
      target: request.originalUrl ?? request.url ?? '/',
      template: templateOf(request),
      parsed: request,
    }
    guardNode(guard, exchange, {
      start: (handed) => {
        lendContext(request, handed)
        run()
      },
      unguarded: run,
      failed: (error) => subscriber.error(error),
      send: (answer) => send(response, answer, isReplay(answer, guard.policy.replayHeader)),
    })
    return () => running?.unsubscribe()
  })
}

function isReply(response: object): response is FastifyReply {
  return 'raw' in response && 'code' in response
}

function rawOf(response: object): ServerResponse {
  return isReply(response) ? response.raw : (response as ServerResponse)
}

function send(response: object, answer: WholeResponse, replayed: boolean): void {
  if (!isReply(response)) sendWhole(response as ServerResponse, answer)
  else if (replayed) sendReplay(response, answer)
  else sendReply(response, answer)
}

/** Nest registers whole paths, global prefix included. */
function templateOf({ route, routeOptions }: NestRequest): string | undefined {
  const path = routeOptions?.url ?? route?.path
  return typeof path === 'string' ? path : undefined
}
