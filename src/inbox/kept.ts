/**
 * Kept: a delivery as it lies in waiting or quarantine, and back again, header values of every kind included.
 *
 * @module
 */

import type { Delivery } from '../broker/contract.ts'
import type { KeptDelivery } from '../store/inbox.ts'

interface Transport {
  readonly headers: unknown
  readonly messageId?: string | undefined
  readonly type?: string | undefined
  readonly orderingKey?: string | undefined
  readonly deliveryCount?: number | undefined
  /** Every id found, by place. */
  readonly ids: Readonly<Record<string, string>>
}

/** What is stored. `type` and `orderingKey` are those the consumer works with; the sender's own go with the rest. */
export function keep(
  delivery: Delivery,
  about: {
    readonly type: string | undefined
    readonly orderingKey: string | undefined
    readonly ids: Readonly<Record<string, string>>
  },
): KeptDelivery {
  const transport: Transport = {
    headers: encode(delivery.headers),
    messageId: delivery.messageId,
    type: delivery.type,
    orderingKey: delivery.orderingKey,
    deliveryCount: delivery.deliveryCount,
    ids: about.ids,
  }
  return {
    queue: storable(delivery.source),
    topic: storable(delivery.topic),
    type: about.type === undefined ? undefined : storable(about.type),
    contentType: delivery.contentType === undefined ? undefined : storable(delivery.contentType),
    orderingKey: about.orderingKey === undefined ? undefined : storable(about.orderingKey),
    sentAtMs: isMoment(delivery.sentAtMs) ? delivery.sentAtMs : undefined,
    transport: JSON.stringify(transport),
    body: delivery.body,
  }
}

/** The delivery as the broker gave it, marked as redelivered. */
export function restore(kept: KeptDelivery): Delivery {
  const transport = JSON.parse(kept.transport) as Transport
  return {
    body: kept.body,
    headers: decode(transport.headers) as Record<string, unknown>,
    messageId: transport.messageId,
    contentType: kept.contentType,
    type: transport.type,
    topic: kept.topic,
    source: kept.queue,
    redelivered: true,
    deliveryCount: transport.deliveryCount,
    sentAtMs: kept.sentAtMs,
    orderingKey: transport.orderingKey,
  }
}

/** Years 1970 to 9999: a sender may write anything into a timestamp. */
function isMoment(ms: number | undefined): boolean {
  return ms !== undefined && ms >= 0 && ms < 253_402_300_800_000
}

/** Text that every store can hold; only routing facts come here, the body and the headers are kept whole. */
export function storable(text: string): string {
  return text.replaceAll('\0', '\ufffd').toWellFormed()
}

/** JSON with marks for what JSON has not: `{"$": kind, "v": text}`; an object that has a member `$` is marked too. */
function encode(value: unknown): unknown {
  if (value === undefined) return { $: 'undefined' }
  if (typeof value === 'bigint') return { $: 'bigint', v: value.toString() }
  if (typeof value === 'number' && !Number.isFinite(value)) return { $: 'number', v: String(value) }
  if (Object.is(value, -0)) return { $: 'number', v: '-0' }
  if (value instanceof Uint8Array) return { $: 'bytes', v: Buffer.from(value).toString('base64') }
  if (value instanceof Date) return { $: 'date', v: value.getTime() }
  if (Array.isArray(value)) return value.map(encode)
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).map(([name, member]) => [name, encode(member)] as const)
    // Entries as a list, so that a member called __proto__ is a member here and there.
    return { $: 'object', v: entries }
  }
  return typeof value === 'function' || typeof value === 'symbol' ? { $: 'undefined' } : value
}

function decode(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(decode)
  if (typeof value !== 'object' || value === null) return value
  const { $: kind, v } = value as { $?: unknown; v?: unknown }
  switch (kind) {
    case 'bigint':
      return BigInt(String(v))
    case 'number':
      return Number(v)
    case 'bytes':
      return Buffer.from(String(v), 'base64')
    case 'date':
      return new Date(v === null ? Number.NaN : Number(v))
    case 'object': {
      const object: Record<string, unknown> = {}
      for (const [name, member] of v as readonly (readonly [string, unknown])[]) {
        Object.defineProperty(object, name, {
          value: decode(member),
          enumerable: true,
          configurable: true,
          writable: true,
        })
      }
      return object
    }
    default:
      return undefined
  }
}
