/**
 * Message: one delivery as a handler sees it.
 *
 * @module
 */

import type { Delivery } from '../broker/contract.ts'
import { readJson, readText, UndecodableBody } from './body.ts'
import { cloudEventAttribute, type StructuredEvent } from './cloud-event.ts'
import type { MessageIdentity } from './identity.ts'

/** A message as it is given to a handler. */
export interface ReceivedMessage {
  /** The id that names the logical message, the same on every redelivery. */
  readonly id: string
  /** Namespace of the id; '' when it needs none. */
  readonly source: string
  /** What it is: CloudEvents type, the sender's type, else the topic. */
  readonly type: string
  /** Routing key, topic or subject. */
  readonly topic: string
  /**
   * The body as `decode` says, read at the first access. With `json` a body that does not parse throws, and the
   * message is quarantined whatever the handler does with the error.
   */
  readonly body: unknown
  /** The body's bytes as received. */
  readonly bytes: Uint8Array
  readonly contentType: string | undefined
  /** Transport headers, untouched. */
  readonly headers: Readonly<Record<string, unknown>>
  readonly orderingKey: string | undefined
  /** 1 for the first attempt that is known. */
  readonly attempt: number
  /** The broker or the waiting table has delivered it before. */
  readonly redelivered: boolean
  /** The sender's time, when it says one: for ages, never for decisions. */
  readonly sentAt: Date | undefined
}

/** What a body is read as. */
export type Decode = 'json' | 'text' | 'bytes'

export class DeliveredMessage implements ReceivedMessage {
  readonly id: string
  readonly source: string
  readonly contentType: string | undefined
  readonly topic: string
  readonly headers: Readonly<Record<string, unknown>>
  readonly bytes: Uint8Array
  readonly orderingKey: string | undefined
  type: string
  attempt = 1
  redelivered: boolean
  /** Set when the body was asked for and could not be read. */
  undecodable: UndecodableBody | undefined
  readonly #sentAtMs: number | undefined
  readonly #decode: Decode
  readonly #event: StructuredEvent | undefined
  #body: unknown
  #read = false

  /** @param headers - false = no header matters. */
  constructor(
    delivery: Delivery,
    event: StructuredEvent | undefined,
    identity: MessageIdentity,
    decode: Decode,
    headers: boolean = true,
  ) {
    this.id = identity.id
    this.source = identity.source
    this.contentType = delivery.contentType
    this.topic = delivery.topic
    this.headers = delivery.headers
    this.bytes = delivery.body
    this.redelivered = delivery.redelivered
    this.orderingKey = orderingKeyOf(delivery, event, headers)
    this.type = typeOf(delivery, event, headers)
    this.#sentAtMs = delivery.sentAtMs
    this.#decode = decode
    this.#event = event
  }

  get body(): unknown {
    if (this.#read) return this.#body
    if (this.undecodable !== undefined) throw this.undecodable
    try {
      this.#body = this.#decoded()
    } catch (error) {
      if (error instanceof UndecodableBody) this.undecodable = error
      throw error
    }
    this.#read = true
    return this.#body
  }

  get sentAt(): Date | undefined {
    return this.#sentAtMs === undefined ? undefined : new Date(this.#sentAtMs)
  }

  #decoded(): unknown {
    if (this.#decode === 'bytes') return this.bytes
    if (this.#decode === 'text') return readText(this.bytes)
    return this.#event === undefined ? readJson(this.bytes) : this.#event.data
  }
}

function typeOf(delivery: Delivery, event: StructuredEvent | undefined, headers: boolean): string {
  if (event === undefined && !headers) return delivery.type ?? delivery.topic
  const named = event === undefined ? cloudEventAttribute(delivery.headers, 'type') : event.type
  if (typeof named === 'string' && named !== '') return named
  return delivery.type ?? delivery.topic
}

function orderingKeyOf(delivery: Delivery, event: StructuredEvent | undefined, headers: boolean): string | undefined {
  if (delivery.orderingKey !== undefined || (event === undefined && !headers)) return delivery.orderingKey
  const key = event === undefined ? cloudEventAttribute(delivery.headers, 'partitionkey') : event.partitionKey
  return typeof key === 'string' && key !== '' ? key : undefined
}
