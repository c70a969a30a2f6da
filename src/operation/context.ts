/**
 * Context: what a work is given.
 *
 * A class, and `signal` on its prototype: an accessor in an object literal gets a hidden class and a closure of its own
 * at each evaluation. They are made in the old generation, where each keeps everything of its operation alive until the
 * next full collection.
 *
 * @module
 */

import type { Outbox } from '../outbox/buffer.ts'
import type { OnceError } from '../shared/errors.ts'
import type { OpenOperation } from '../store/operation.ts'
import type { WorkContext } from './attempt.ts'

export class OperationContext<Tx> implements WorkContext<Tx> {
  readonly tx: Tx
  readonly outbox: Outbox
  readonly now: () => Promise<Date>
  #abort: AbortController | undefined
  #reason: OnceError | undefined

  constructor(opened: Pick<OpenOperation<Tx>, 'tx' | 'now'>, outbox: Outbox) {
    this.tx = opened.tx
    this.outbox = outbox
    this.now = () => opened.now()
  }

  /** Made when it is asked for: few works do, and it costs as much as a statement. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    if (this.#reason !== undefined) this.#abort.abort(this.#reason)
    return this.#abort.signal
  }

  abort(reason: OnceError): void {
    this.#reason = reason
    this.#abort?.abort(reason)
  }
}
