/**
 * Context: how a handler that gets only the framework's request finds what belongs to its operation.
 *
 * @module
 */

import type { Once } from '../once.ts'
import type { HandlerContext } from './exchange.ts'

/** A member and no WeakMap: entries of one for each request are work for the garbage collector. */
const CONTEXT = Symbol('effectively-once context')

/**
 * Lays the context on the request as `once`, and remembers it. Requests of node are emitters and have a method of that
 * name, which body parsers call; there `once` stays callable.
 */
export function lendContext<Tx>(request: object, context: HandlerContext<Tx>): void {
  Object.defineProperty(request, CONTEXT, { configurable: true, enumerable: false, value: context, writable: true })
  const inherited: unknown = Reflect.get(request, 'once')
  const value = typeof inherited === 'function' ? callable(inherited, context) : context
  Object.defineProperty(request, 'once', { configurable: true, enumerable: false, value, writable: true })
}

function callable(inherited: object, context: object): object {
  const once = function (this: unknown, ...args: unknown[]): unknown {
    return Reflect.apply(inherited as (...all: unknown[]) => unknown, this, args)
  }
  return Object.defineProperties(once, Object.getOwnPropertyDescriptors(context))
}

/**
 * What a guarded handler works with: `tx`, `outbox`, `now`, `signal`, `key`, `operationRef`. The same object is
 * `request.once`; this one knows the type of `tx`.
 *
 * @param _once - What createOnce made; gives the type.
 * @throws {TypeError} on a request that is not guarded.
 */
export function onceOf<Tx>(_once: Once<Tx>, request: object): HandlerContext<Tx> {
  const context = (request as { readonly [CONTEXT]?: HandlerContext<unknown> })[CONTEXT]
  if (context === undefined) throw new TypeError('onceOf: this request is not guarded (route or method)')
  return context as HandlerContext<Tx>
}
