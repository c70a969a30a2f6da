/**
 * Cases of the source half of the broker contract.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { pause } from '../../shared/waiting.ts'
import type { Delivery } from '../contract.ts'
import {
  type BrokerCase,
  type BrokerSetup,
  caseSignal,
  collector,
  eventually,
  message,
  openPublisher,
  publish,
  QUIET_MS,
  withSetup,
} from './harness.ts'

/** Publishes `count` messages and returns their ids in order. */
async function fill(setup: BrokerSetup, topic: string, count: number): Promise<readonly string[]> {
  const publisher = await openPublisher(setup)
  const sent = Array.from({ length: count }, () => message(topic))
  for (const { kind } of await Promise.all(sent.map((each) => publish(publisher, each)))) {
    assert.equal(kind, 'confirmed')
  }
  await publisher.close()
  return sent.map(({ id }) => id)
}

const idsOf = (deliveries: readonly Delivery[]) => deliveries.map(({ messageId }) => messageId)

export const sourceCases: readonly BrokerCase[] = [
  {
    name: 'R31: what was acknowledged never comes back, what was not does, marked redelivered',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const ids = await fill(setup, 't', 6)
        const first = collector()
        const one = await source.subscribe({ prefetch: 10, ...first }, caseSignal())
        await eventually('six deliveries', () => first.deliveries.length === 6)
        const [a, b, c, d, e] = first.deliveries
        assert.ok(a && b && c && d && e)
        // Not in order, with holes: the second, fourth and fifth stay unsettled.
        assert.equal(one.ack([c]), 1)
        assert.equal(one.ack([a]), 1)
        assert.equal(one.ack(first.deliveries.slice(5)), 1)
        await one.close()
        const second = collector()
        const two = await source.subscribe({ prefetch: 10, ...second }, caseSignal())
        await eventually('three redeliveries', () => second.deliveries.length === 3)
        await pause(QUIET_MS)
        assert.deepEqual(new Set(idsOf(second.deliveries)), new Set([ids[1], ids[3], ids[4]]))
        assert.ok(second.deliveries.every(({ redelivered }) => redelivered))
        await two.close()
      }),
  },
  {
    name: 'R31: many acknowledged at once, with one left out, settle exactly those',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const ids = await fill(setup, 't', 100)
        const first = collector()
        const one = await source.subscribe({ prefetch: 200, ...first }, caseSignal())
        await eventually('a hundred deliveries', () => first.deliveries.length === 100)
        const left = first.deliveries[80]
        assert.equal(one.ack(first.deliveries.filter((each) => each !== left).toReversed()), 99)
        await one.close()
        const second = collector()
        const two = await source.subscribe({ prefetch: 200, ...second }, caseSignal())
        await eventually('the one left', () => second.deliveries.length === 1)
        await pause(QUIET_MS)
        assert.deepEqual(idsOf(second.deliveries), [ids[80]])
        await two.close()
      }),
  },
  {
    name: 'settling twice counts once',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        await fill(setup, 't', 2)
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        await eventually('two deliveries', () => received.deliveries.length === 2)
        const [first, second] = received.deliveries
        assert.ok(first && second)
        assert.equal(subscription.ack([second, second]), 1)
        assert.equal(subscription.ack([first, second]), 1)
        assert.equal(subscription.ack(received.deliveries), 0)
        assert.equal(subscription.release(received.deliveries), 0)
        await subscription.close()
      }),
  },
  {
    name: 'prefetch bounds what is unsettled, and each settled delivery makes room for one more',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        await fill(setup, 't', 10)
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 3, ...received }, caseSignal())
        await eventually('three deliveries', () => received.deliveries.length === 3)
        await pause(QUIET_MS)
        assert.equal(received.deliveries.length, 3)
        subscription.ack(received.deliveries.slice(0, 2))
        await eventually('two more', () => received.deliveries.length === 5)
        await pause(QUIET_MS)
        assert.equal(received.deliveries.length, 5)
        await subscription.close()
      }),
  },
  {
    name: 'released deliveries go to another consumer, marked redelivered',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const ids = await fill(setup, 't', 4)
        const first = collector()
        const one = await source.subscribe({ prefetch: 10, ...first }, caseSignal())
        await eventually('four deliveries', () => first.deliveries.length === 4)
        await one.stop()
        assert.equal(one.ack(first.deliveries.slice(1, 2)), 1)
        assert.equal(one.release(first.deliveries), 3)
        const second = collector()
        const two = await source.subscribe({ prefetch: 10, ...second }, caseSignal())
        await eventually('three redeliveries', () => second.deliveries.length === 3)
        assert.deepEqual(new Set(idsOf(second.deliveries)), new Set([ids[0], ids[2], ids[3]]))
        assert.ok(second.deliveries.every(({ redelivered }) => redelivered))
        assert.equal(two.ack(second.deliveries), 3)
        assert.equal(one.ack(first.deliveries), 0)
        await two.close()
        await one.close()
      }),
  },
  {
    name: 'B67: a paused subscription gets nothing new, keeps what it has, can settle it, and goes on when resumed',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        await fill(setup, 't', 2)
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        await eventually('two deliveries', () => received.deliveries.length === 2)
        await subscription.pause()
        await subscription.pause()
        const ids = await fill(setup, 't', 3)
        await pause(QUIET_MS)
        assert.equal(received.deliveries.length, 2)
        assert.deepEqual(received.lost, [])
        assert.equal(subscription.ack(received.deliveries), 2)
        await subscription.resume()
        await eventually('the three that came meanwhile', () => received.deliveries.length === 5)
        assert.deepEqual(idsOf(received.deliveries.slice(2)), ids)
        assert.ok(received.deliveries.every(({ redelivered }) => !redelivered))
        assert.equal(subscription.ack(received.deliveries.slice(2)), 3)
        await subscription.close()
      }),
  },
  {
    name: 'a stopped subscription gets nothing new and can settle what it has',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        await fill(setup, 't', 3)
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        await eventually('three deliveries', () => received.deliveries.length === 3)
        await subscription.stop()
        await fill(setup, 't', 2)
        await pause(QUIET_MS)
        assert.equal(received.deliveries.length, 3)
        assert.equal(subscription.ack(received.deliveries), 3)
        await subscription.close()
        await subscription.close()
        const second = collector()
        const two = await source.subscribe({ prefetch: 10, ...second }, caseSignal())
        await eventually('the two that came later', () => second.deliveries.length === 2)
        await pause(QUIET_MS)
        assert.ok(second.deliveries.every(({ redelivered }) => !redelivered))
        await two.close()
      }),
  },
  {
    name: 'SC43 R28: after a lost connection the unsettled are told as lost, cannot be settled, and come again',
    needs: 'disconnect',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const ids = await fill(setup, 't', 5)
        const received = collector()
        const states: string[] = []
        const subscription = await source.subscribe(
          { prefetch: 10, ...received, onState: ({ kind }) => void states.push(kind) },
          caseSignal(),
        )
        await eventually('five deliveries', () => received.deliveries.length === 5)
        const old = received.deliveries.slice()
        await setup.disconnect()
        await eventually('five more deliveries', () => received.deliveries.length === 10)
        assert.ok(states.includes('closed'))
        assert.equal(subscription.state.kind, 'open')
        assert.deepEqual(received.lost, old)
        const again = received.deliveries.slice(5)
        assert.deepEqual(idsOf(again), ids)
        assert.ok(again.every(({ redelivered }) => redelivered))
        // A tag of the old channel must not settle the redelivery that has the same tag on the new one.
        assert.equal(subscription.ack(old), 0)
        assert.equal(subscription.release(old), 0)
        assert.equal(subscription.ack(again.slice(0, 2)), 2)
        await subscription.close()
        const rest = collector()
        const two = await source.subscribe({ prefetch: 10, ...rest }, caseSignal())
        await eventually('the three that were not settled', () => rest.deliveries.length === 3)
        await pause(QUIET_MS)
        assert.deepEqual(idsOf(rest.deliveries), ids.slice(2))
        await two.close()
      }),
  },
  {
    name: 'a subscription that is paused when the connection drops stays paused, and resumes',
    needs: 'disconnect',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const received = collector()
        const states: string[] = []
        const subscription = await source.subscribe(
          { prefetch: 10, ...received, onState: ({ kind }) => void states.push(kind) },
          caseSignal(),
        )
        await subscription.pause()
        await setup.disconnect()
        await eventually('the loss and the recovery', () => states.includes('closed') && states.at(-1) === 'open')
        await fill(setup, 't', 2)
        await pause(QUIET_MS)
        assert.equal(received.deliveries.length, 0)
        await subscription.resume()
        await eventually('two deliveries', () => received.deliveries.length === 2)
        await subscription.close()
      }),
  },
  {
    name: 'two subscriptions of one queue share it, each message going to one of them',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const [first, second] = [collector(), collector()]
        const one = await source.subscribe({ prefetch: 5, ...first }, caseSignal())
        const two = await source.subscribe({ prefetch: 5, ...second }, caseSignal())
        const ids = await fill(setup, 't', 10)
        await eventually('ten deliveries', () => first.deliveries.length + second.deliveries.length === 10)
        assert.equal(first.deliveries.length, 5)
        assert.deepEqual(new Set(idsOf([...first.deliveries, ...second.deliveries])), new Set(ids))
        await one.close()
        await two.close()
      }),
  },
  {
    name: 'two queues of one topic get a copy each, with the same id',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const [billing, stock] = [await setup.queue(['t', 'other']), await setup.queue(['t'])]
        const ids = await fill(setup, 't', 3)
        for (const source of [billing, stock]) {
          const received = collector()
          const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
          await eventually('three deliveries', () => received.deliveries.length === 3)
          assert.deepEqual(idsOf(received.deliveries), ids)
          assert.equal(subscription.ack(received.deliveries), 3)
          await subscription.close()
        }
      }),
  },
  {
    name: 'subscribing with an aborted signal rejects with its reason',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const subscribing = source.subscribe({ prefetch: 1, ...collector() }, AbortSignal.abort(new Error('not today')))
        await assert.rejects(subscribing, /not today/)
      }),
  },
]
