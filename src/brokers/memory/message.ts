/**
 * How a message of the in-process broker looks to its consumer.
 *
 * @module
 */

import type { Delivery } from '../../broker/contract.ts'
import type { QueuedMessage } from './topology.ts'

/** The delivery of a queued message; its headers are what the sender gave, nothing added. */
export function deliveryOf(queued: QueuedMessage, queue: string): Delivery {
  const { message } = queued
  return {
    body: queued.body,
    headers: message.headers,
    messageId: message.id,
    contentType: message.contentType,
    type: message.topic,
    topic: message.topic,
    source: queue,
    redelivered: queued.deliveryCount > 0,
    deliveryCount: queued.deliveryCount,
    sentAtMs: message.createdAtMs,
    orderingKey: message.orderingKey ?? undefined,
  }
}
