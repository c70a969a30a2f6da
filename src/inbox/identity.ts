/**
 * Identity: which value of a delivery names the logical message.
 *
 * An ordered table of places; the first usable value wins. Ids are never invented and never taken from what changes
 * between sends (delivery tag, correlation id, time of receipt): a message without one is quarantined. (R05, R38, B73)
 *
 * @module
 */

import type { Delivery } from '../broker/contract.ts'
import { hash } from '../shared/crypto.ts'
import {
  cloudEventAttribute,
  isCloudEventHeader,
  requireComplete,
  requireNamed,
  type StructuredEvent,
} from './cloud-event.ts'

/** An id and the namespace in which it is unique. */
export interface MessageIdentity {
  readonly id: string
  /** CloudEvents source, or what the user's `identify` says; '' when the id needs none. */
  readonly source: string
}

/**
 * Finds the id of a delivery: a string, or an id with its namespace. `undefined` = look in the usual places;
 * an empty, blank or all-zero value = the message has none and is quarantined.
 *
 * @param body - Reads the body as JSON; a body that does not parse is quarantined as undecodable.
 */
export type Identify = (
  delivery: Delivery,
  body: () => unknown,
) => string | { readonly id: string; readonly source?: string | undefined } | null | undefined

/** One place, and who writes it. */
interface Place {
  readonly name: string
  /** The header that it is, when it is one. */
  readonly header?: string
  readonly find: (delivery: Delivery, event: StructuredEvent | undefined) => Candidate | undefined
  /** Throws when the place is taken by something that is not what it says; no later place is believed then. */
  readonly check?: (delivery: Delivery, event: StructuredEvent | undefined) => void
}

interface Candidate {
  readonly id: unknown
  readonly source?: unknown
}

const header = (name: string): Place => ({
  name,
  header: name,
  find: ({ headers }) => (headers[name] === undefined ? undefined : { id: headers[name] }),
})

/**
 * Places in the order in which they are believed. Ids that a framework kept from the first send come first, because
 * its own retries replace the others (MassTransit's scheduled redelivery, Brighter's requeue).
 */
export const PLACES: readonly Place[] = [
  header('MT-OriginalMessageId'),
  header('x-original-message-id'),
  header('NServiceBus.MessageId'),
  header('rbs2-msg-id'),
  header('cap-msg-id'),
  header('axon-message-id'),
  header('_watermill_message_uuid'),
  {
    name: 'cloudevents (structured)',
    find: (_, event) => (event === undefined ? undefined : { id: event.id, source: event.source }),
    check: (_, event) => {
      if (event !== undefined) requireComplete(event)
    },
  },
  {
    name: 'cloudevents (binary)',
    find: (delivery) => {
      const id = cloudEventAttribute(delivery.headers, 'id')
      return id === undefined ? undefined : { id, source: cloudEventAttribute(delivery.headers, 'source') }
    },
    check: ({ headers }) => requireNamed(headers),
  },
  // MassTransit, Wolverine and CAP put the same id here; Spring AMQP and plain senders when they are told to.
  {
    name: 'message-id',
    find: ({ messageId }) => (messageId === undefined ? undefined : { id: messageId }),
  },
]

const ID_HEADERS: ReadonlySet<string> = new Set(PLACES.flatMap((place) => place.header ?? []))

/** Whether any header says something about a message: most messages have none that does, and need no look. */
export function headersMatter(headers: Readonly<Record<string, unknown>>): boolean {
  for (const name in headers) if (ID_HEADERS.has(name) || isCloudEventHeader(name)) return true
  return false
}

/**
 * The identity of a delivery, or undefined when it has none that can be used.
 *
 * @param headers - false = no header matters (see `headersMatter`).
 * @throws {UndecodableBody} It says that it is a CloudEvent and lacks an attribute that one needs.
 */
export function identityOf(
  delivery: Delivery,
  event: StructuredEvent | undefined,
  identify?: Identify,
  body: () => unknown = () => undefined,
  headers: boolean = true,
): MessageIdentity | undefined {
  if (identify !== undefined) {
    const given = identify(delivery, body)
    if (given !== undefined) {
      return given === null ? undefined : usable(typeof given === 'object' ? given : { id: given })
    }
  }
  if (!headers && event === undefined) {
    return delivery.messageId === undefined ? undefined : usable({ id: delivery.messageId })
  }
  for (const place of PLACES) {
    place.check?.(delivery, event)
    const candidate = place.find(delivery, event)
    const identity = candidate === undefined ? undefined : usable(candidate)
    if (identity !== undefined) return identity
  }
  return undefined
}

/** Every id that a delivery carries, by place: kept with waiting and quarantined messages for the person who looks. */
export function idsOf(delivery: Delivery, event: StructuredEvent | undefined): Record<string, string> {
  const found: Record<string, string> = {}
  for (const place of PLACES) {
    const id = textOf(place.find(delivery, event)?.id)
    if (id !== undefined) found[place.name] = id.slice(0, ID_BYTES_MAX)
  }
  return found
}

function usable(candidate: Candidate): MessageIdentity | undefined {
  const id = normalisedId(textOf(candidate.id))
  if (id === undefined) return undefined
  const source = textOf(candidate.source) ?? ''
  if (source === '') return { id, source }
  return source.includes('\0') || !source.isWellFormed() ? undefined : { id, source: shortened(source) }
}

function textOf(value: unknown): string | undefined {
  if (typeof value === 'string') return value
  if (typeof value === 'bigint' || (typeof value === 'number' && Number.isSafeInteger(value))) return String(value)
  if (value instanceof Uint8Array) return Buffer.from(value).toString('utf8')
  return undefined
}

const GUID =
  /^(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\{[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}|\([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\))$/i
const PLAIN_GUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
const ZERO_GUID = '00000000-0000-0000-0000-000000000000'
const ZERO = /^0+$/
/** Longest id that is stored as it is; a longer one is stored as its hash. */
const ID_BYTES_MAX = 255

/**
 * One form for ids that mean the same: a GUID in its D, N, B or P form becomes lower-case with dashes when the whole
 * text is one; everything else stays byte for byte, upper and lower case apart (SC41). Unusable: empty, blank, an
 * all-zero GUID (some producers send it with every message), text that cannot be stored.
 */
export function normalisedId(given: string | undefined): string | undefined {
  if (given === undefined) return undefined
  if (PLAIN_GUID.test(given)) return given === ZERO_GUID ? undefined : given
  const id = given.trim()
  if (id === '' || id.includes('\0') || !id.isWellFormed()) return undefined
  if (!GUID.test(id)) return shortened(id)
  const hex = id.replace(/[-{}()]/g, '').toLowerCase()
  if (ZERO.test(hex)) return undefined
  return dashed(hex)
}

function shortened(text: string): string {
  // No character is longer than three bytes for each of its UTF-16 units.
  if (text.length * 3 <= ID_BYTES_MAX) return text
  return Buffer.byteLength(text) <= ID_BYTES_MAX ? text : `sha256:${hash('sha256', text, 'hex')}`
}

function dashed(hex: string): string {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}

/**
 * Id of the mark: first 16 bytes of SHA-256 over length-prefixed consumer, namespace and message id, as a UUID. A
 * message without identity passes `undefined` and gets an id that no message with one can have.
 */
export function markId(consumer: string, source: string, id: string | undefined): string {
  const parts = id === undefined ? '2:' : '3:'
  const text = parts + lengthPrefixed(consumer) + lengthPrefixed(source) + (id === undefined ? '' : lengthPrefixed(id))
  return dashed(hash('sha256', text, 'hex'))
}

function lengthPrefixed(part: string): string {
  return `${Buffer.byteLength(part)}:${part}`
}
