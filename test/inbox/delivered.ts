import type { Delivery } from '../../src/broker/contract.ts'

/** A delivery of message `m-0` with the body `{}`. */
export function delivered(parts: Partial<Delivery> = {}): Delivery {
  return {
    body: Buffer.from('{}'),
    headers: {},
    messageId: 'm-0',
    contentType: 'application/json',
    type: undefined,
    topic: 'order.created.v1',
    source: 'orders',
    redelivered: false,
    deliveryCount: undefined,
    sentAtMs: undefined,
    orderingKey: undefined,
    ...parts,
  }
}
