/**
 * A consumer in a process of its own that is killed in the worst moment: its transaction is committed, the message is
 * not acknowledged.
 *
 * @module
 */

import type { Source } from '../../broker/contract.ts'
import { dieNow, report } from './child.ts'
import { projectingConsumer } from './projection.ts'
import { openWorld, type WorldSettings } from './world.ts'

const settings = JSON.parse(process.argv[2] ?? '{}') as WorldSettings
const world = await openWorld(settings)
const consumer = projectingConsumer({ ...world, source: dyingBeforeAck(world.source) }, settings.schema, (told) =>
  report({ kind: 'consumed', ...told }),
)
await consumer.start()
report({ kind: 'ready' })

/** What is about to be acknowledged never is. */
function dyingBeforeAck(source: Source): Source {
  return {
    name: source.name,
    async subscribe(options, signal) {
      const subscription = await source.subscribe(options, signal)
      return {
        get state() {
          return subscription.state
        },
        ack() {
          dieNow()
          return 0
        },
        release: (deliveries) => subscription.release(deliveries),
        pause: () => subscription.pause(),
        resume: () => subscription.resume(),
        stop: () => subscription.stop(),
        close: () => subscription.close(),
      }
    },
  }
}
