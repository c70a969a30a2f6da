/**
 * Message: what a work hands to its outbox, and the row it becomes.
 *
 * Everything is checked here, in the work, so that what a broker or the database would refuse fails the work that
 * made it instead of a relay hours later. Limits are those that AMQP, Kafka headers and PostgreSQL text share.
 *
 * @module
 */

import { randomUUID } from '../shared/crypto.ts'
import { describe, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { OutboxRow } from '../store/outbox.ts'
import { jsonPayload } from './json-payload.ts'

/** One message to publish after the work's transaction has committed. */
export interface Message {
  /** Where it goes and what it is: routing key, topic or subject, such as `order.created.v1`. 1 to 255 bytes. */
  readonly topic: string
  /** Plain JSON data, or bytes together with `contentType`. */
  readonly payload: unknown
  /** Messages with the same key are published in the order of their transactions (I8). 1 to 255 bytes. */
  readonly orderingKey?: string | undefined
  /** Text headers for the transport. At most 64, 16 KiB in all; names are visible ASCII. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** UUID of the message. Default: a random one. Kept through every resend (R23). */
  readonly id?: string | undefined
  /** Default `application/json`; required when the payload is bytes. */
  readonly contentType?: string | undefined
}

/** Options of the outbox, given once. */
export interface OutboxOptions {
  /**
   * Lanes that new messages are spread over by the hash of their ordering key; each lane is published by one relay at
   * a time, in order. Default 1; 1 to 256. Change it only when nothing is pending: a key's order ends at the lane.
   */
  readonly lanes?: number | undefined
  /** Largest payload of a message, bytes. Default 8 MiB; up to 128 MiB. Brokers have limits of their own. */
  readonly payloadBytesMax?: number | undefined
  /** Most messages of one transaction. Default 10_000; up to 1_000_000. */
  readonly messagesMax?: number | undefined
  /** Most bytes of all messages of one transaction. Default 64 MiB; up to 512 MiB. */
  readonly bytesMax?: number | undefined
}

/** The options with their defaults. */
export interface OutboxLimits {
  readonly lanes: number
  readonly payloadBytesMax: number
  readonly messagesMax: number
  readonly bytesMax: number
}

const MIB = 1_048_576

/** Checks the options and fills in the defaults. @throws {TypeError} naming the option. */
export function outboxLimits(options: OutboxOptions = {}): OutboxLimits {
  refuseUnknownOptions('outbox', options, ['lanes', 'payloadBytesMax', 'messagesMax', 'bytesMax'])
  const { lanes, payloadBytesMax, messagesMax, bytesMax } = options
  return {
    lanes: integerOption('outbox.lanes', lanes, { min: 1, max: 256, default: 1 }),
    payloadBytesMax: integerOption('outbox.payloadBytesMax', payloadBytesMax, {
      min: 1,
      max: 128 * MIB,
      default: 8 * MIB,
    }),
    messagesMax: integerOption('outbox.messagesMax', messagesMax, { min: 1, max: 1_000_000, default: 10_000 }),
    bytesMax: integerOption('outbox.bytesMax', bytesMax, { min: 1, max: 512 * MIB, default: 64 * MIB }),
  }
}

const MEMBERS = ['topic', 'payload', 'orderingKey', 'headers', 'id', 'contentType']
/** Longest topic, ordering key and content type, UTF-8 bytes: AMQP short strings. */
export const SHORT_TEXT_BYTES_MAX = 255
export const HEADERS_MAX = 64
export const HEADERS_BYTES_MAX = 16_384
const HEADER_NAME = /^[!-~]{1,128}$/
/**
 * Names with a meaning to brokers or to us: routing a copy elsewhere (CC, BCC), counting or delaying deliveries, and
 * what our own publishers add (eo-...).
 */
const RESERVED_HEADER =
  /^(cc|bcc|__proto__|eo-.*|x-(death|delay|delivery-count|acquired-count|opt-.*|stream-.*|(first|last)-death-.*))$/i
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const CONTROL = /\p{Cc}/u
const CONTENT_TYPE = /^[!-~]+\/[!-~](?:[ -~]*[!-~])?$/

/**
 * The row that a message becomes.
 *
 * @throws {TypeError} naming the member: unknown members, a topic or key over its limit or with control characters,
 *   reserved or malformed headers, an id that is no UUID, a payload that JSON cannot say or that is over
 *   `payloadBytesMax`, bytes without a content type.
 */
export function toRow(message: Message, limits: OutboxLimits): OutboxRow {
  if (typeof message !== 'object' || message === null) {
    throw new TypeError(`outbox.add takes a message or a list of messages, got ${describe(message)}`)
  }
  refuseUnknownOptions('message', message, MEMBERS)
  const topic = shortText('message.topic', message.topic)
  const orderingKey = message.orderingKey === undefined ? null : shortText('message.orderingKey', message.orderingKey)
  const id = message.id === undefined ? randomUUID() : uuid(message.id)
  const { text, encoding, contentType, bytes } = body(message)
  if (bytes > limits.payloadBytesMax) {
    throw new TypeError(
      `message.payload of topic "${topic}" has ${bytes} bytes, more than ${limits.payloadBytesMax} (payloadBytesMax)`,
    )
  }
  return {
    id,
    lane: laneOf(orderingKey ?? id, limits.lanes),
    topic,
    orderingKey,
    payload: text,
    encoding,
    contentType,
    headers: headersText(message.headers),
  }
}

/** Lane of a key: FNV-1a over its UTF-8 bytes, so that any program can compute it. */
export function laneOf(key: string, lanes: number): number {
  if (lanes === 1) return 0
  let hash = 0x811c9dc5
  for (const byte of Buffer.from(key, 'utf8')) hash = Math.imul(hash ^ byte, 0x01000193)
  return (hash >>> 0) % lanes
}

interface Body {
  readonly text: string
  readonly encoding: OutboxRow['encoding']
  readonly contentType: string
  readonly bytes: number
}

function body({ payload, contentType }: Message): Body {
  if (contentType !== undefined) {
    shortText('message.contentType', contentType)
    if (!CONTENT_TYPE.test(contentType))
      throw new TypeError('message.contentType must be a media type, as type/subtype')
  }
  if (payload instanceof Uint8Array) {
    if (contentType === undefined) throw new TypeError('message.contentType is required when the payload is bytes')
    const bytes = Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength)
    return { text: bytes.toString('base64'), encoding: 'base64', contentType, bytes: bytes.byteLength }
  }
  const text = jsonPayload(payload)
  return { text, encoding: 'text', contentType: contentType ?? 'application/json', bytes: Buffer.byteLength(text) }
}

function headersText(headers: Message['headers']): string {
  if (headers === undefined) return '{}'
  if (typeof headers !== 'object' || headers === null || Array.isArray(headers)) {
    throw new TypeError(`message.headers takes an object of strings, got ${describe(headers)}`)
  }
  const names = Object.keys(headers)
  if (names.length > HEADERS_MAX) {
    throw new TypeError(`message.headers has ${names.length} members, more than ${HEADERS_MAX}`)
  }
  let bytes = 0
  for (const name of names) {
    const value: unknown = headers[name]
    if (!HEADER_NAME.test(name))
      throw new TypeError('a name in message.headers must be 1 to 128 visible ASCII characters')
    if (RESERVED_HEADER.test(name) || name === '__proto__')
      throw new TypeError(`message.headers: "${name}" is reserved`)
    if (typeof value !== 'string' || value.includes('\0') || !value.isWellFormed()) {
      throw new TypeError(`message.headers["${name}"] must be text without U+0000 and lone surrogates`)
    }
    bytes += name.length + Buffer.byteLength(value)
  }
  if (bytes > HEADERS_BYTES_MAX) {
    throw new TypeError(`message.headers has ${bytes} bytes, more than ${HEADERS_BYTES_MAX}`)
  }
  return names.length === 0 ? '{}' : JSON.stringify(headers)
}

function shortText(where: string, value: unknown): string {
  if (typeof value !== 'string' || value === '') {
    throw new TypeError(`${where} takes a non-empty string, got ${value === '' ? 'an empty one' : describe(value)}`)
  }
  if (Buffer.byteLength(value) > SHORT_TEXT_BYTES_MAX) {
    throw new TypeError(`${where} has ${Buffer.byteLength(value)} bytes, more than ${SHORT_TEXT_BYTES_MAX}`)
  }
  if (CONTROL.test(value) || !value.isWellFormed()) {
    throw new TypeError(`${where} holds control characters or lone surrogates`)
  }
  return value
}

function uuid(value: unknown): string {
  if (typeof value !== 'string' || !UUID.test(value)) throw new TypeError('message.id must be a UUID')
  return value.toLowerCase()
}
