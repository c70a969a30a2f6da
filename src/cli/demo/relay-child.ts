/**
 * A relay in a process of its own that is killed in the worst moment: the broker has confirmed, nothing is marked.
 *
 * @module
 */

import type { Broker } from '../../broker/contract.ts'
import { dieNow, report } from './child.ts'
import { LEASE_MS, openWorld, type WorldSettings } from './world.ts'

const world = await openWorld(JSON.parse(process.argv[2] ?? '{}') as WorldSettings)
const relay = world.once.relay({ broker: dyingAfterConfirm(world.broker), leaseMs: LEASE_MS })
await relay.start()
report({ kind: 'ready' })

/** The first confirm is reported to the parent, and then this process is gone before the relay hears of it. */
function dyingAfterConfirm(broker: Broker): Broker {
  return {
    name: broker.name,
    openPublisher(options) {
      const publisher = broker.openPublisher(options)
      return {
        get state() {
          return publisher.state
        },
        publish: (message, settled) =>
          publisher.publish(message, (result) => {
            if (result.kind === 'confirmed') {
              report({ kind: 'confirmed', messageId: message.id })
              dieNow()
            }
            settled(result)
          }),
        ready: (signal) => publisher.ready(signal),
        close: () => publisher.close(),
      }
    },
  }
}
