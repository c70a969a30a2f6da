/**
 * Context: how a handler that gets only the framework's request finds what belongs to its operation.
 *
 * @module
 */

import type { Once } from '../once.ts'
import type { HandlerContext } from './exchange.ts'

const contexts = new WeakMap<object, HandlerContext<unknown>>()

/**
 * Lays the context on the request as `once`, and remembers it. Requests of node are emitters and have a method of that
 * name, which body parsers call; there `once` stays callable.
 */
export function lendContext<Tx>(request: object, context: HandlerContext<Tx>): void {
  contexts.set(request, context)
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
  const context = contexts.get(request)
  if (context === undefined) throw new TypeError('onceOf: this request is not guarded (route or method)')
  return context as HandlerContext<Tx>
}
