/**
 * The part of an AMQP 0-9-1 client that the adapter calls, as structural types: amqplib's promise API fits (tried
 * with 2.3, written against what it has had since 0.8), and so does anything of the same shape. Nothing is imported.
 *
 * @module
 */

import type { Buffer } from 'node:buffer'

/** An error of channel or connection: `code` is the AMQP reply code, the ids name the method that caused it. */
export interface AmqpError extends Error {
  readonly code?: unknown
  readonly classId?: unknown
  readonly methodId?: unknown
}

/** Answer to publishes of a confirm channel. */
export interface AmqpConfirm {
  readonly deliveryTag: number
  readonly multiple: boolean
}

/** A message as the client hands it over. */
export interface AmqpMessage {
  readonly content: Buffer
  readonly fields: { readonly deliveryTag?: number; readonly redelivered?: boolean; readonly routingKey: string }
  readonly properties: {
    readonly headers?: Readonly<Record<string, unknown>> | undefined
    readonly messageId?: unknown
    readonly contentType?: unknown
    readonly type?: unknown
    readonly timestamp?: unknown
  }
}

/** What a publish sends beside its bytes. */
export interface AmqpPublishOptions {
  readonly mandatory: boolean
  readonly persistent: boolean
  readonly messageId: string
  readonly type: string
  readonly contentType: string
  readonly timestamp: number
  readonly headers: Readonly<Record<string, unknown>>
}

/** What settling a delivery needs of it. */
export interface AmqpTag {
  readonly fields: { readonly deliveryTag: number }
}

export interface AmqpChannel {
  on(event: 'close', listener: () => void): unknown
  on(event: 'error', listener: (error: AmqpError) => void): unknown
  close(): Promise<unknown>
  assertExchange(exchange: string, type: string, options: AmqpDeclareOptions): Promise<unknown>
  checkExchange(exchange: string): Promise<unknown>
  assertQueue(queue: string, options: AmqpDeclareOptions): Promise<unknown>
  bindQueue(queue: string, exchange: string, pattern: string): Promise<unknown>
  prefetch(count: number): Promise<unknown>
  consume(
    queue: string,
    onMessage: (message: AmqpMessage | null) => void,
    options: { readonly noAck: boolean },
  ): Promise<{ readonly consumerTag: string }>
  cancel(consumerTag: string): Promise<unknown>
  ack(message: AmqpTag, allUpTo?: boolean): void
  nack(message: AmqpTag, allUpTo?: boolean, requeue?: boolean): void
}

export interface AmqpDeclareOptions {
  readonly durable: boolean
  readonly arguments?: Record<string, unknown>
}

export interface AmqpConfirmChannel extends AmqpChannel {
  on(event: 'close' | 'drain', listener: () => void): unknown
  on(event: 'error', listener: (error: AmqpError) => void): unknown
  on(event: 'ack' | 'nack', listener: (confirm: AmqpConfirm) => void): unknown
  on(event: 'return', listener: (message: AmqpReturn) => void): unknown
  /** Returns false when the write buffer is full; 'drain' follows. `options` are read before it returns, not later. */
  publish(exchange: string, routingKey: string, content: Buffer, options: AmqpPublishOptions): boolean
}

/** A mandatory message that reached no queue; it carries no delivery tag. */
export interface AmqpReturn {
  readonly fields: object
  readonly properties: { readonly messageId?: unknown }
}

/** A connection of which the adapter is the only owner: it closes what `connect` returned. */
export interface AmqpConnection {
  on(event: 'close', listener: (error?: AmqpError) => void): unknown
  on(event: 'error', listener: (error: AmqpError) => void): unknown
  on(event: 'blocked', listener: (reason: string) => void): unknown
  on(event: 'unblocked', listener: () => void): unknown
  createChannel(): Promise<AmqpChannel>
  createConfirmChannel(): Promise<AmqpConfirmChannel>
  close(): Promise<unknown>
}

/** Opens a new connection each time it is called. */
export type AmqpConnect = () => Promise<AmqpConnection>

/** What the client knows of the peer beyond the interface; each fact may be missing. */
export interface PeerFacts {
  /** Version of the broker, as it introduced itself. */
  readonly version: string | undefined
  /** Largest frame that may be sent, bytes. */
  readonly frameMax: number | undefined
  /** Cuts the socket, for a connection that no longer answers. */
  readonly destroy: () => void
}

/** Reads what amqplib keeps on `connection.connection`; anything else gives unknowns. */
export function peerFacts(connection: AmqpConnection): PeerFacts {
  const inner = member(connection, 'connection')
  const version = member(member(inner, 'serverProperties'), 'version')
  const frameMax = member(inner, 'frameMax')
  const stream = member(inner, 'stream')
  return {
    version: typeof version === 'string' ? version : undefined,
    frameMax: typeof frameMax === 'number' && frameMax > 0 ? frameMax : undefined,
    destroy: () => {
      const destroy = member(stream, 'destroy')
      // amqplib listens for 'error' and 'end', not for 'close': without an error it would not notice.
      if (typeof destroy === 'function') Reflect.apply(destroy, stream, [new Error('cut: no answer to close')])
    },
  }
}

function member(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? Reflect.get(value, name) : undefined
}
