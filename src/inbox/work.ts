/**
 * Work: a user's handler as the work of an attempt, and what it is given.
 *
 * @module
 */

import type { Outbox } from '../outbox/buffer.ts'
import type { Work, WorkContext } from './attempt.ts'
import type { Item } from './item.ts'
import type { BatchContext, BatchHandler, Handler, HandlerContext } from './options.ts'

/** A handler for single messages as the work of an attempt. */
export function workOf<Tx>(handler: Handler<Tx>): Work<Tx> {
  return (context, [item]) => (item === undefined ? undefined : handler(new MessageContext(context, item)))
}

/** A handler for batches as the work of an attempt. */
export function batchWorkOf<Tx>(handler: BatchHandler<Tx>): Work<Tx> {
  return (context, fresh) => handler(new MessagesContext(context, fresh))
}

/** Classes with `signal` on the prototype, for the reason told in operation/context.ts. */
class Given<Tx> implements WorkContext<Tx> {
  readonly tx: Tx
  readonly outbox: Outbox
  readonly now: () => Promise<Date>
  readonly ifNewer: WorkContext<Tx>['ifNewer']
  readonly #context: WorkContext<Tx>

  constructor(context: WorkContext<Tx>) {
    this.tx = context.tx
    this.outbox = context.outbox
    this.now = context.now
    this.ifNewer = context.ifNewer
    this.#context = context
  }

  get signal(): AbortSignal {
    return this.#context.signal
  }
}

class MessageContext<Tx> extends Given<Tx> implements HandlerContext<Tx> {
  readonly message: HandlerContext<Tx>['message']

  constructor(context: WorkContext<Tx>, { message }: Item) {
    super(context)
    this.message = message
  }
}

class MessagesContext<Tx> extends Given<Tx> implements BatchContext<Tx> {
  readonly messages: BatchContext<Tx>['messages']

  constructor(context: WorkContext<Tx>, items: readonly Item[]) {
    super(context)
    this.messages = items.map((item) => item.message)
  }
}
