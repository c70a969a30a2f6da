/**
 * Atomic context: what the handler of a route without steps is given.
 *
 * A class, and its accessors on the prototype, for the reason told in ../operation/context.ts.
 *
 * @module
 */

import type { Op } from '../job/op.ts'
import type { WorkContext } from '../operation/attempt.ts'
import type { HandlerContext } from './exchange.ts'

export class AtomicContext<Tx> implements HandlerContext<Tx> {
  readonly tx: Tx
  readonly outbox: WorkContext<Tx>['outbox']
  readonly now: () => Promise<Date>
  readonly key: string | undefined
  readonly operationRef: string | undefined
  readonly #context: WorkContext<Tx>

  constructor(context: WorkContext<Tx>, key: string | undefined, operationRef: string | undefined) {
    this.tx = context.tx
    this.outbox = context.outbox
    this.now = () => context.now()
    this.key = key
    this.operationRef = operationRef
    this.#context = context
  }

  /** Made when it is asked for. */
  get signal(): AbortSignal {
    return this.#context.signal
  }

  get op(): Op<Tx> {
    throw new TypeError("op is for routes with mode: 'run'")
  }
}
