/**
 * The shape of a message on the wire, both directions.
 *
 * messageId = the outbox row's id · type and routing key = topic · contentType · timestamp = the insert, in seconds ·
 * persistent, mandatory · headers = the user's own and ours below. The payload bytes are the body, unchanged.
 *
 * @module
 */

import { Buffer } from 'node:buffer'
import type { Delivery, OutgoingMessage } from '../../broker/contract.ts'
import type { AmqpMessage, AmqpPublishOptions } from './amqp.ts'

/** Header with the ordering key, when there is one. Consistent-hash exchanges can route by it. */
export const ORDERING_KEY_HEADER = 'eo-ordering-key'
/** Header with the time of the insert in milliseconds; AMQP's own timestamp has seconds only. */
export const CREATED_AT_HEADER = 'eo-created-at'

/** AMQP short strings (routing key, message id, type, content type, header names) hold 255 bytes. */
const SHORT_BYTES_MAX = 255
/** Bytes that one UTF-16 unit takes at most in UTF-8. */
const UTF8_BYTES_MAX = 3
/** Lengths and type of one entry of a headers table, and the value when it is a number. */
const FIELD_BYTES = 14
/** amqplib encodes a headers table into 64 KiB; older releases cut it silently, and the broker then closes the connection. */
const HEADERS_BYTES_MAX = 60_000
/** Room in the header frame for the other properties. */
const PROPERTIES_BYTES = 1_100
/** RabbitMQ reads these as further routing keys and closes the channel when they are no lists. */
const ROUTING_HEADERS = ['CC', 'BCC']

/** A message ready to be handed to the client. */
export interface EncodedMessage {
  readonly content: Buffer
  readonly options: AmqpPublishOptions
}

/** What is known of the limits of this connection and its broker. */
export interface WireLimits {
  /** Most payload bytes; learned from the broker's first refusal. */
  readonly payloadBytesMax: number
  readonly frameBytesMax: number
}

/**
 * Encodes a message, or says why it can never be sent. Nothing of its content is in the reason. To be used before the
 * next one is encoded: messages without headers of their own share one object (`ownHeaders`).
 */
export function encode(message: OutgoingMessage, limits: WireLimits): EncodedMessage | { readonly invalid: string } {
  const content = typeof message.payload === 'string' ? Buffer.from(message.payload) : bytesOf(message.payload)
  if (content.length > limits.payloadBytesMax) {
    return {
      invalid: `payload of ${content.length} bytes is over the broker's max_message_size ${limits.payloadBytesMax}`,
    }
  }
  const long =
    tooLong('id', message.id) ?? tooLong('topic', message.topic) ?? tooLong('contentType', message.contentType)
  if (long !== undefined) return { invalid: long }
  const headers = isEmpty(message.headers) ? ownHeaders(message) : allHeaders(message)
  const fault = headersFault(headers, Math.min(HEADERS_BYTES_MAX, limits.frameBytesMax - PROPERTIES_BYTES))
  if (fault !== undefined) return { invalid: fault }
  return {
    content,
    options: {
      mandatory: true,
      persistent: true,
      messageId: message.id,
      type: message.topic,
      contentType: message.contentType,
      timestamp: Math.floor(message.createdAtMs / 1_000),
      headers,
    },
  }
}

function allHeaders({ headers: users, createdAtMs, orderingKey }: OutgoingMessage): Record<string, unknown> {
  const headers: Record<string, unknown> = { ...users, [CREATED_AT_HEADER]: createdAtMs }
  // A header copied from a consumed message would lend this one another's order.
  if (orderingKey !== null) headers[ORDERING_KEY_HEADER] = orderingKey
  else if (ORDERING_KEY_HEADER in headers) delete headers[ORDERING_KEY_HEADER]
  return headers
}

let shared: Record<string, unknown> = {}

/**
 * The headers that we add, in an object that is used again: amqplib makes each headers object the prototype of another,
 * and a new prototype costs more than all the rest of encoding a message. Instruments may write into it; then it is not
 * used again.
 */
function ownHeaders({ createdAtMs, orderingKey }: OutgoingMessage): Record<string, unknown> {
  if (orderingKey === null) return { [CREATED_AT_HEADER]: createdAtMs }
  for (const name in shared) {
    if (name === CREATED_AT_HEADER || name === ORDERING_KEY_HEADER) continue
    shared = {}
    break
  }
  shared[CREATED_AT_HEADER] = createdAtMs
  shared[ORDERING_KEY_HEADER] = orderingKey
  return shared
}

function isEmpty(headers: Readonly<Record<string, string>>): boolean {
  for (const _ in headers) return false
  return true
}

function headersFault(headers: Readonly<Record<string, unknown>>, bytesMax: number): string | undefined {
  for (const name of ROUTING_HEADERS) {
    if (name in headers) return `header ${name} is RabbitMQ's own: it would route the message elsewhere`
  }
  let bytes = 0
  for (const name in headers) {
    const value = headers[name]
    const long = tooLong('a header name', name)
    if (long !== undefined) return long
    // An upper bound first; exact only when it matters.
    bytes += UTF8_BYTES_MAX * (name.length + (typeof value === 'string' ? value.length : 0)) + FIELD_BYTES
  }
  if (bytes <= bytesMax) return undefined
  bytes = 0
  for (const [name, value] of Object.entries(headers)) {
    bytes += Buffer.byteLength(name) + (typeof value === 'string' ? Buffer.byteLength(value) : 0) + FIELD_BYTES
  }
  return bytes > bytesMax ? `headers of ${bytes} bytes do not fit into one AMQP frame (${bytesMax})` : undefined
}

function tooLong(what: string, text: string): string | undefined {
  if (text.length * UTF8_BYTES_MAX <= SHORT_BYTES_MAX) return undefined
  const bytes = Buffer.byteLength(text)
  return bytes > SHORT_BYTES_MAX ? `${what} of ${bytes} bytes is over AMQP's ${SHORT_BYTES_MAX}` : undefined
}

/** What arrived, in the contract's words. */
export function decode(message: AmqpMessage, queue: string): Delivery {
  const { fields, properties, content } = message
  const headers = properties.headers ?? {}
  return {
    body: content,
    headers,
    messageId: textOrNothing(properties.messageId),
    contentType: textOrNothing(properties.contentType),
    type: textOrNothing(properties.type),
    topic: fields.routingKey,
    source: queue,
    redelivered: fields.redelivered === true,
    deliveryCount: deliveryCount(headers),
    sentAtMs: sentAtMs(headers[CREATED_AT_HEADER], properties.timestamp),
    orderingKey: textOrNothing(headers[ORDERING_KEY_HEADER]),
  }
}

/** RabbitMQ 4.3 counts every hand-over in x-acquired-count and only failed ones in x-delivery-count. */
function deliveryCount(headers: Readonly<Record<string, unknown>>): number | undefined {
  const counts = [headers['x-acquired-count'], headers['x-delivery-count']].filter((count) => typeof count === 'number')
  return counts.length === 0 ? undefined : Math.max(...counts)
}

/** Our own header first, then AMQP's timestamp: seconds by the book, milliseconds from senders that read it otherwise. */
function sentAtMs(createdAt: unknown, timestamp: unknown): number | undefined {
  if (typeof createdAt === 'number') return createdAt
  if (typeof timestamp !== 'number') return undefined
  return timestamp > 100_000_000_000 ? timestamp : timestamp * 1_000
}

function textOrNothing(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined
}

function bytesOf(payload: Uint8Array): Buffer {
  return Buffer.isBuffer(payload) ? payload : Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength)
}
