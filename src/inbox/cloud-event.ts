/**
 * CloudEvents over AMQP 0-9-1: attributes in headers (binary mode) or the whole event in the body (structured mode).
 *
 * @module
 * @see CloudEvents 1.0.2, and its AMQP protocol binding section 3.1: both `cloudEvents:` and `cloudEvents_` prefixes.
 */

import { describe } from '../shared/options.ts'
import { readJson, UndecodableBody } from './body.ts'

/** The members of a structured event that matter here. */
export interface StructuredEvent {
  readonly id: unknown
  readonly source: unknown
  readonly type: unknown
  readonly specVersion: unknown
  readonly partitionKey: unknown
  /** `data` as it is, or the bytes of `data_base64`. */
  readonly data: unknown
}

type Attribute = 'id' | 'source' | 'type' | 'specversion' | 'partitionkey'

const PREFIXES = ['cloudEvents:', 'cloudEvents_', 'ce-', 'ce_'] as const
const NAMES: Readonly<Record<Attribute, readonly string[]>> = {
  id: PREFIXES.map((prefix) => `${prefix}id`),
  source: PREFIXES.map((prefix) => `${prefix}source`),
  type: PREFIXES.map((prefix) => `${prefix}type`),
  specversion: PREFIXES.map((prefix) => `${prefix}specversion`),
  partitionkey: PREFIXES.map((prefix) => `${prefix}partitionkey`),
}
const ALL: ReadonlySet<string> = new Set(Object.values(NAMES).flat())
const STRUCTURED = /^application\/cloudevents\+json(?:\s*;|$)/i
const BATCH = /^application\/cloudevents-batch\+json(?:\s*;|$)/i

/** Whether a header is an attribute that is read here. */
export function isCloudEventHeader(name: string): boolean {
  return ALL.has(name)
}

/** An attribute of a binary-mode event, whichever prefix its sender uses. */
export function cloudEventAttribute(headers: Readonly<Record<string, unknown>>, attribute: Attribute): unknown {
  for (const name of NAMES[attribute]) {
    const value = headers[name]
    if (value !== undefined) return value
  }
  return undefined
}

/**
 * The event when the content type says that the body is one.
 *
 * @throws {UndecodableBody} The body is no event, or a batch of events: one delivery is one message here.
 */
export function structuredEvent(contentType: string | undefined, body: Uint8Array): StructuredEvent | undefined {
  if (contentType === undefined || !contentType.includes('cloudevents')) return undefined
  if (BATCH.test(contentType)) throw new UndecodableBody('a batch of CloudEvents in one delivery is not supported')
  if (!STRUCTURED.test(contentType)) return undefined
  const event = readJson(body)
  if (typeof event !== 'object' || event === null || Array.isArray(event)) {
    throw new UndecodableBody('the body is no CloudEvent')
  }
  const { id, source, type, specversion, partitionkey, data, data_base64: base64 } = event as Record<string, unknown>
  return {
    id,
    source,
    type,
    specVersion: specversion,
    partitionKey: partitionkey,
    data: typeof base64 === 'string' ? Buffer.from(base64, 'base64') : data,
  }
}

/**
 * Refuses a structured event without one of the required attributes: each of them is a string with something in it. An
 * event without a source is not taken for one of an empty source, or events of two producers would be one.
 *
 * @throws {UndecodableBody}
 * @see CloudEvents 1.0.2, Required Attributes.
 */
export function requireComplete({ id, source, specVersion, type }: StructuredEvent): void {
  requireText('id', id)
  requireText('source', source)
  requireText('specversion', specVersion)
  requireText('type', type)
}

/**
 * The same for headers that say that the message is an event. Only what names it is required here: senders that map
 * attributes to headers leave the type to the message's own property.
 *
 * @throws {UndecodableBody}
 */
export function requireNamed(headers: Readonly<Record<string, unknown>>): void {
  const id = cloudEventAttribute(headers, 'id')
  if (id === undefined && cloudEventAttribute(headers, 'specversion') === undefined) return
  requireText('id', id)
  requireText('source', cloudEventAttribute(headers, 'source'))
}

function requireText(attribute: Attribute, value: unknown): void {
  if (typeof value !== 'string' || value.trim() === '') {
    throw new UndecodableBody(`a CloudEvent needs ${attribute}, a string that is not empty; got ${describe(value)}`)
  }
}
