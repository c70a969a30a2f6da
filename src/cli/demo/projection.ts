/**
 * Projection: the demo's consumer. One row for each message that was applied; nothing in the table forbids a second.
 *
 * @module
 */

import type { Consumer } from '../../inbox/options.ts'
import type { World } from './world.ts'

/** What became of one delivery. */
export interface Told {
  readonly messageId: string
  readonly result: string
}

/** Name under which deliveries are deduplicated. */
const CONSUMER = 'demo-projection'

export function projectingConsumer(world: World, schema: string, tell: (told: Told) => void): Consumer {
  return world.once.consumer({
    name: CONSUMER,
    source: world.source,
    pollMs: 100,
    leaseMs: 1_500,
    handle: async ({ tx, message }) => {
      const { orderId } = message.body as { readonly orderId: string }
      await tx.query({
        text: `insert into "${schema}".projection (order_id, message_id) values ($1, $2)`,
        values: [orderId, message.id],
      })
    },
    onEvent: (event) => {
      if (event.kind === 'applied' || event.kind === 'duplicate') tell({ messageId: event.id, result: event.kind })
    },
  })
}
