/**
 * Item: one message in a consumer's hands, from the broker or from the waiting table.
 *
 * @module
 */

import type { Delivery } from '../broker/contract.ts'
import { hash } from '../shared/crypto.ts'
import type { ClaimedWaiting, InboxMark, InboxQuarantineReason, KeptDelivery, WaitingClaim } from '../store/inbox.ts'
import { readJson, UndecodableBody } from './body.ts'
import { type StructuredEvent, structuredEvent } from './cloud-event.ts'
import { headersMatter, type Identify, identityOf, idsOf, type MessageIdentity, markId } from './identity.ts'
import { keep, restore, storable } from './kept.ts'
import { type Decode, DeliveredMessage, type ReceivedMessage } from './message.ts'

/** A message that can be handled. */
export interface Item {
  readonly mark: InboxMark
  readonly message: DeliveredMessage
  /** Orders messages within this process; undefined = no order. */
  readonly key: string | undefined
  /** The broker's delivery, to be acknowledged; undefined when it comes from the waiting table. */
  readonly delivery: Delivery | undefined
  /** As it is stored when it cannot be applied now. */
  readonly kept: () => KeptDelivery
  /** Set while the message is a claimed row of the waiting table. */
  claim: WaitingClaim | undefined
  readonly override: boolean
  /** It may have ended a process: handled alone, its claim written first. */
  suspect: boolean
  /** Its channel is gone: the broker delivers it again, and only a claim of ours lets it start. */
  lost: boolean
  /** A renewal has found no row of its claim: it must not start under it. */
  claimLost: boolean
  /** Wait for the store's verdict before the handler starts. */
  marksFirst: boolean
  /** Times it met the same message being worked on elsewhere. */
  busy: number
  /** Times the connection was lost while it was handled. */
  losses: number
}

/** A delivery that can never be handled. */
export interface Refusal {
  readonly delivery: Delivery
  readonly reason: Extract<InboxQuarantineReason, 'no-identity' | 'undecodable'>
  readonly error: string
  readonly mark: Omit<InboxMark, 'messageId'> & { readonly messageId: string | undefined }
  readonly kept: KeptDelivery
}

export interface ItemSettings {
  readonly consumer: string
  readonly decode: Decode
  readonly identify: Identify | undefined
  readonly typeOf: ((message: ReceivedMessage) => string) | undefined
  readonly contentOf: ((message: ReceivedMessage) => string | Uint8Array) | undefined
  readonly orderBy: true | ((message: ReceivedMessage) => string | null) | undefined
}

const NAMELESS = 'nothing names the message'

/** What a delivery is: an item to handle, or a refusal to quarantine. Never throws. */
export function examine(delivery: Delivery, settings: ItemSettings): Item | Refusal {
  let event: StructuredEvent | undefined
  let identity: MessageIdentity | undefined
  let identified = false
  try {
    event = structuredEvent(delivery.contentType, delivery.body)
    const headers = headersMatter(delivery.headers)
    identity = identityOf(delivery, event, settings.identify, () => readJson(delivery.body), headers)
    identified = true
    if (identity === undefined) return refusal(delivery, event, settings, undefined, 'no-identity', NAMELESS)
    const message = new DeliveredMessage(delivery, event, identity, settings.decode, headers)
    if (settings.typeOf !== undefined) message.type = settings.typeOf(message)
    return {
      mark: {
        id: markId(settings.consumer, identity.source, identity.id),
        consumer: settings.consumer,
        source: identity.source,
        messageId: identity.id,
        fingerprint: fingerprintOf(message, delivery, settings.contentOf),
      },
      message,
      key: keyOf(message, settings.orderBy),
      delivery,
      kept: () =>
        keep(delivery, {
          type: message.type,
          orderingKey: keyOf(message, settings.orderBy) ?? message.orderingKey,
          ids: idsOf(delivery, event),
        }),
      claim: undefined,
      override: false,
      suspect: delivery.redelivered,
      lost: false,
      claimLost: false,
      marksFirst: delivery.redelivered,
      busy: 0,
      losses: 0,
    }
  } catch (error) {
    // An `identify` that throws leaves the message without a name; every other trouble is with its content.
    const reason = identified || error instanceof UndecodableBody ? 'undecodable' : 'no-identity'
    return refusal(delivery, event, settings, identity, reason, nameOfError(error))
  }
}

/** A claimed row of the waiting table as an item; its identity is the stored one, whatever the settings say now. */
export function itemOfClaimed(claimed: ClaimedWaiting, settings: ItemSettings): Item {
  const delivery = restore(claimed.delivery)
  const { mark, claim } = claimed
  const event = structuredOrNone(delivery)
  const message = new DeliveredMessage(delivery, event, { id: mark.messageId, source: mark.source }, settings.decode)
  if (claimed.delivery.type !== undefined) message.type = claimed.delivery.type
  message.attempt = claim.attempts
  message.redelivered = true
  return {
    mark,
    message,
    key: settings.orderBy === undefined ? undefined : claimed.delivery.orderingKey,
    delivery: undefined,
    kept: () => claimed.delivery,
    claim,
    override: claimed.override,
    suspect: claimed.suspect,
    lost: false,
    claimLost: false,
    marksFirst: true,
    busy: 0,
    losses: 0,
  }
}

/** Bytes of a row that a release or a person has damaged are the handler's to find undecodable. */
function structuredOrNone(delivery: Delivery): StructuredEvent | undefined {
  try {
    return structuredEvent(delivery.contentType, delivery.body)
  } catch {
    return undefined
  }
}

function refusal(
  delivery: Delivery,
  event: StructuredEvent | undefined,
  settings: ItemSettings,
  identity: MessageIdentity | undefined,
  reason: Refusal['reason'],
  error: string,
): Refusal {
  const digest = hash('sha256', delivery.body, 'hex')
  return {
    delivery,
    reason,
    error,
    mark: {
      id:
        identity === undefined
          ? markId(settings.consumer, digest, undefined)
          : markId(settings.consumer, identity.source, identity.id),
      consumer: settings.consumer,
      source: identity?.source ?? '',
      messageId: identity?.id,
      fingerprint: Buffer.from(digest, 'hex'),
    },
    kept: keep(delivery, { type: undefined, orderingKey: delivery.orderingKey, ids: idsOf(delivery, event) }),
  }
}

/** SHA-256 of what must be equal when the id comes again: the type (not the route, which dead-lettering changes) and the body. */
function fingerprintOf(
  message: DeliveredMessage,
  delivery: Delivery,
  contentOf: ItemSettings['contentOf'],
): Uint8Array {
  if (contentOf !== undefined) return hash('sha256', contentOf(message), 'buffer')
  const type = delivery.type ?? ''
  const head = `${Buffer.byteLength(type)}:${type}:`
  const bytes = Buffer.allocUnsafe(Buffer.byteLength(head) + delivery.body.byteLength)
  bytes.set(delivery.body, bytes.write(head))
  return hash('sha256', bytes, 'buffer')
}

function keyOf(message: DeliveredMessage, orderBy: ItemSettings['orderBy']): string | undefined {
  if (orderBy === undefined) return undefined
  const key = orderBy === true ? message.orderingKey : orderBy(message)
  return key === undefined || key === null ? undefined : storable(key)
}

const ERROR_CHARS_MAX = 500

/** Name and message of an error, bounded: for the waiting and quarantine tables, whose readers may see bodies too. */
export function nameOfError(error: unknown): string {
  if (!(error instanceof Error)) return `thrown: ${typeof error}`
  return storable(`${error.name}: ${error.message}`).slice(0, ERROR_CHARS_MAX).toWellFormed()
}

/** Code or name of an error: for events, which must not carry content. */
export function kindOfError(error: unknown): string {
  if (typeof error !== 'object' || error === null) return typeof error
  if ('code' in error && typeof error.code === 'string') return error.code
  return error instanceof Error ? error.name : 'object'
}
