/**
 * Exchange: what an adapter gives the guard to work with, and what it is told to do.
 *
 * @module
 */

import type { RequestHeaders } from '../fingerprint/request.ts'
import type { Op } from '../job/op.ts'
import type { WorkContext } from '../operation/attempt.ts'
import type { Produced, WholeResponse } from './response.ts'

/**
 * What a handler is given, on `request.once` or as an argument. In a route of mode `run` there is `op`, and no
 * transaction: `tx`, `outbox` and `now` throw there, as `op` does elsewhere.
 */
export interface HandlerContext<Tx> extends WorkContext<Tx> {
  /** Steps and effects, in a route of mode `run`. */
  readonly op: Op<Tx>
  /** The caller's key; undefined on a route where it may be left out, and was. */
  readonly key: string | undefined
  /** Opaque name of the operation, as in status URLs; undefined without a key. */
  readonly operationRef: string | undefined
}

/** The body of a request, from before anything parsed it where that is possible. */
export type RequestBody =
  | { readonly bytes: Uint8Array; readonly contentDecoded: boolean; readonly parsed?: undefined }
  | { readonly bytes?: undefined; readonly parsed: unknown }

/** One request and its answer, as the adapter sees them. */
export interface Exchange<Tx, Req> {
  /** The framework's request, for the route's hooks. */
  readonly request: Req
  readonly method: string
  /** Path and query as received. */
  readonly target: string
  readonly headers: RequestHeaders
  /** Field lines of `Idempotency-Key`, not joined where the platform allows it. */
  readonly keyLines: readonly string[]
  /** Path of the matched route, when the framework can tell. */
  readonly template: string | undefined
  /** `gone`: the caller hung up before the request was complete. */
  body(bytesMax: number): Promise<RequestBody | 'too-large' | 'gone'>
  /**
   * Starts the handler, once, inside the transaction. Resolves when its answer is complete, with nothing of it sent.
   * May never settle: the guard has a bound of its own. Rejects with the handler's own error where the adapter has it.
   */
  run(context: HandlerContext<Tx>): Promise<Produced>
}

/**
 * What the adapter does then.
 * - `unguarded`: run the handler as if nothing were there.
 * - `handler`: send the handler's own answer, which was held back.
 * - `instead`: send this; the handler did not run, or its answer must not go out.
 * - `gone`: nobody is there to be answered, and nothing was started.
 */
export type Answer =
  | { readonly kind: 'unguarded' }
  | { readonly kind: 'handler' }
  | { readonly kind: 'instead'; readonly response: WholeResponse }
  | { readonly kind: 'gone' }
