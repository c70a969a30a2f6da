/**
 * The door `effectively-once/node`: guarded handlers on node's own HTTP server.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { HandlerContext } from '../../http/exchange.ts'
import { Guard } from '../../http/guard.ts'
import type { ParsedRequest } from '../../http/node/body.ts'
import { guardNode } from '../../http/node/exchange.ts'
import { type HeldResponse, sendWhole } from '../../http/node/held-response.ts'
import type { RouteOptions } from '../../http/options.ts'
import { failureProblem } from '../../http/problem.ts'
import { type StatusOptions, StatusResource } from '../../http/status.ts'
import type { Once } from '../../once.ts'

export type { HandlerContext } from '../../http/exchange.ts'
export type * from '../../http/options.ts'
export type { HeaderList, WholeResponse } from '../../http/response.ts'
export type { StatusOptions } from '../../http/status.ts'
export type { EncryptionKeys } from '../../http/stored.ts'

/** Options of a route; without a router nobody else can name the operation. */
export interface NodeRouteOptions extends RouteOptions<IncomingMessage> {
  readonly operation: string
}

/** A handler; its answer leaves after the commit. On methods that are not guarded there is no `once`. */
export type NodeHandler<Tx> = (request: IncomingMessage, response: ServerResponse, once: HandlerContext<Tx>) => unknown

/** What `http.createServer` and routers take. */
export type NodeListener = (request: IncomingMessage, response: ServerResponse) => void

/**
 * Guards a handler: with a key it runs once, in the transaction in which the claim and its answer are stored. The
 * answer ends the work: statements after `response.end()` come too late. The request's body can still be read.
 *
 * A handler that throws or rejects without having answered is rolled back; the caller gets 500, `onError` the error.
 *
 * @throws {TypeError} at once, for wrong options.
 * @example
 * const createOrder = idempotency(once, { scope: tenantOf, operation: 'POST /orders' }, async (req, res, { tx }) => {
 *   const { rows } = await tx.query('insert into orders default values returning id')
 *   res.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify(rows[0]))
 * })
 * http.createServer(createOrder).listen(8080)
 */
export function idempotency<Tx>(once: Once<Tx>, options: NodeRouteOptions, handler: NodeHandler<Tx>): NodeListener {
  const guard = new Guard<Tx, IncomingMessage>('idempotency', once, options)
  if (options.operation === undefined) throw new TypeError('idempotency needs operation: node:http has no routes')
  if (typeof handler !== 'function') throw new TypeError('idempotency takes a handler')
  return (request, response) => {
    const fail = (error: unknown, held?: HeldResponse) => {
      guard.policy.onError(error, request)
      const problem = failureProblem(guard.policy.problems, 'The request failed.')
      if (held === undefined) sendWhole(response, problem)
      else held.fail(problem)
    }
    const start = (context: HandlerContext<Tx>, held?: HeldResponse) => {
      run(
        () => handler(request, response, context),
        (error) => fail(error, held),
      )
    }
    const exchange = {
      request,
      raw: request,
      response,
      target: request.url ?? '/',
      template: undefined,
      parsed: request as ParsedRequest,
    }
    guardNode(guard, exchange, { start, unguarded: () => start(unguarded()), failed: fail })
  }
}

/**
 * The status resource for `whenInProgress: 'accept'`; route `GET <statusPath>/...` to it.
 *
 * @throws {TypeError} at once, for wrong options.
 */
export function operationStatus<Tx>(once: Once<Tx>, options: StatusOptions<IncomingMessage>): NodeListener {
  const status = new StatusResource<Tx, IncomingMessage>('operationStatus', once, options)
  return (request, response) => {
    status.answer(request, request.url ?? '/').then(
      (answer) => sendWhole(response, answer),
      (error: unknown) => {
        status.policy.onError(error, request)
        sendWhole(response, failureProblem(status.policy.problems, 'The request failed.'))
      },
    )
  }
}

/** Calls a handler that may throw, reject, or do neither. */
function run(handler: () => unknown, fail: (error: unknown) => void): void {
  try {
    Promise.resolve(handler()).catch(fail)
  } catch (error) {
    fail(error)
  }
}

/** Tells a handler of a method that is not guarded that it asks for what is not there. */
function unguarded<Tx>(): HandlerContext<Tx> {
  return new Proxy({} as HandlerContext<Tx>, {
    get(_target, name) {
      throw new TypeError(`once.${String(name)}: this method is not guarded (option methods)`)
    },
  })
}
