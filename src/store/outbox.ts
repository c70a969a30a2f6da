/**
 * Store contract, outbox half.
 *
 * @module
 */

/** One message on its way into the outbox table, in the transaction of the work that made it. */
export interface OutboxRow {
  /** UUID, made once; the transport's message id on every send (R23). */
  readonly id: string
  readonly lane: number
  readonly topic: string
  readonly orderingKey: string | null
  /** The payload as text, exactly as it goes on the wire (base64 when `encoding` says so). */
  readonly payload: string
  readonly encoding: 'text' | 'base64'
  readonly contentType: string
  /** JSON object of string headers. */
  readonly headers: string
}
