/**
 * Broker contract: what the relay needs from a publisher and what the consumer needs from a source.
 *
 * An adapter takes the user's live objects, imports no vendor, and reports every expected failure as a named
 * result. Its conformance suite is src/broker/conformance.
 *
 * @module
 */

/** One message as it leaves the outbox. Bytes, headers and id are the same on every resend (R23, B66). */
export interface OutgoingMessage {
  /** Made once with the outbox row; the transport's message id. */
  readonly id: string
  /** Where it goes: routing key, topic or subject. Also the message's type. */
  readonly topic: string
  /** Messages with the same ordering key keep their order; null = no order asked. */
  readonly orderingKey: string | null
  /** The payload exactly as it goes on the wire. */
  readonly payload: string | Uint8Array
  readonly contentType: string
  readonly headers: Readonly<Record<string, string>>
  /** Database time of the insert, in milliseconds since 1970. */
  readonly createdAtMs: number
}

/**
 * How one publish ended.
 * - `confirmed`: the broker has it durably and it was routed.
 * - `returned`: it reached no queue (RabbitMQ: mandatory + basic.return). Counts as an attempt of the message.
 * - `refused`: the broker answered no (nack). Counts as an attempt of the message.
 * - `invalid`: this message can never be sent (too large, not encodable).
 * - `disconnected`: connection, channel, blocked or time-out trouble; it may or may not have arrived. Counts for nobody.
 */
export type PublishResult =
  | { readonly kind: 'confirmed' }
  | { readonly kind: 'returned' | 'refused' | 'invalid' | 'disconnected'; readonly reason: string }

/**
 * State of an adapter's connection, for health and for the relay's decision to wait.
 *
 * `warning` names a set-up that works now and can lose messages later (B76: a delivery limit without
 * dead-lettering). `reason` says in one line why nothing moves (memory alarm, consumer_timeout, refused login).
 */
export type ConnectionState =
  | { readonly kind: 'open'; readonly warning?: string | undefined }
  | { readonly kind: 'blocked' | 'closed'; readonly reason: string }

export interface PublisherOptions {
  /** Upper bound for one publish to settle, milliseconds. Always below the lane's lease. */
  readonly publishTimeoutMs: number
  /** Called on every change of state. */
  readonly onState?: ((state: ConnectionState) => void) | undefined
}

export interface Publisher {
  readonly state: ConnectionState
  /**
   * Hands one message to the broker, in call order. `settled` is called exactly once, within
   * publishTimeoutMs, whatever happens to channel, connection or broker (B49), and never before `publish` has
   * returned. Never throws for a bad message: that is `invalid`. While the state is not `open` a message may be
   * answered `disconnected` at once. The write buffer's back-pressure is taken care of inside; what is in flight
   * is bounded by the caller.
   */
  publish(message: OutgoingMessage, settled: (result: PublishResult) => void): void
  /**
   * Resolves when the publisher is open (again) and not blocked; it reconnects with backoff and asserts topology
   * by itself. Rejects only on `signal` (with its reason) and after `close`. Bounded by the caller's signal.
   */
  ready(signal: AbortSignal): Promise<void>
  /** Waits for what is in flight (bounded by publishTimeoutMs), then closes what the adapter itself opened. */
  close(): Promise<void>
}

/** Where a relay publishes. */
export interface Broker {
  readonly name: string
  openPublisher(options: PublisherOptions): Publisher
}

/** One message as it was delivered. */
export interface Delivery {
  /** Raw bytes as received. */
  readonly body: Uint8Array
  /** Transport headers (AMQP: application headers), untouched. */
  readonly headers: Readonly<Record<string, unknown>>
  /** The transport's own message id when the sender set one; never a delivery tag. */
  readonly messageId: string | undefined
  readonly contentType: string | undefined
  /** The sender's type (AMQP `type` property) when set. */
  readonly type: string | undefined
  /** Routing key, topic or subject. */
  readonly topic: string
  /** Queue or subscription it came from. */
  readonly source: string
  /** The broker says it has delivered this before, perhaps to a consumer that died. */
  readonly redelivered: boolean
  /** How often it was delivered before, where the broker counts it (quorum queues: x-delivery-count). */
  readonly deliveryCount: number | undefined
  /** The sender's time of the message in milliseconds since 1970 when it says one; for ages, never for decisions. */
  readonly sentAtMs: number | undefined
  /** The sender's ordering key when it is one of ours and the message has one. */
  readonly orderingKey: string | undefined
}

export interface SubscriptionOptions {
  /** Most deliveries that may be unsettled at once. */
  readonly prefetch: number
  /** Called for each delivery; must not throw. */
  readonly onDelivery: (delivery: Delivery) => void
  /** Called on every change of state; after `closed` the subscription reconnects by itself. */
  readonly onState?: ((state: ConnectionState) => void) | undefined
  /**
   * Deliveries whose channel is gone: they can no longer be settled and will be redelivered. Work that has not
   * started on them must not start.
   */
  readonly onLost?: ((deliveries: readonly Delivery[]) => void) | undefined
}

export interface Subscription {
  readonly state: ConnectionState
  /**
   * Settles deliveries after the commit that made their effects durable, on the channel that delivered them.
   * @returns how many were still ours to settle; the others come back as redeliveries.
   */
  ack(deliveries: readonly Delivery[]): number
  /**
   * Hands deliveries back unhandled (shutdown); the broker gives them to somebody else. Never a way to retry: a
   * broker with a delivery limit counts each return and drops or dead-letters the message in the end (B76).
   */
  release(deliveries: readonly Delivery[]): number
  /**
   * Stops new deliveries (store down); `resume` starts again. Deliveries already handed over stay with the caller,
   * who settles them, keeps them until the store is back, or releases them. Bounded; does nothing when already so.
   */
  pause(): Promise<void>
  resume(): Promise<void>
  /** Stops new deliveries for good; those already handed over can still be settled. Bounded. */
  stop(): Promise<void>
  /** Stops, then closes what the adapter itself opened; what is still unsettled comes back as redeliveries. */
  close(): Promise<void>
}

/** Where a consumer reads. */
export interface Source {
  readonly name: string
  /** Subscribes; resolves once deliveries can arrive. Reconnects by itself afterwards. */
  subscribe(options: SubscriptionOptions, signal: AbortSignal): Promise<Subscription>
}
