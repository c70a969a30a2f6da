/**
 * The in-process broker's own faults, beyond the contract that the conformance suite holds it to.
 */
import { expect, test } from 'vitest'
import type { OutgoingMessage, Publisher, PublishResult } from '../../src/broker/contract.ts'
import { memoryBroker } from '../../src/brokers/memory/index.ts'

const message = (topic: string, id = topic): OutgoingMessage => ({
  id,
  topic,
  orderingKey: null,
  payload: '{}',
  contentType: 'application/json',
  headers: {},
  createdAtMs: 0,
})
const publish = (publisher: Publisher, outgoing: OutgoingMessage) =>
  new Promise<PublishResult>((resolve) => publisher.publish(outgoing, resolve))

test('nackNext refuses that many publishes, unroutable returns a topic, and both end', async () => {
  const broker = memoryBroker()
  broker.queue('q', { topics: ['#'] })
  const publisher = broker.openPublisher({ publishTimeoutMs: 1_000 })
  broker.nackNext(2, 'disk full')
  expect(await publish(publisher, message('a'))).toEqual({ kind: 'refused', reason: 'disk full' })
  expect((await publish(publisher, message('a'))).kind).toBe('refused')
  expect((await publish(publisher, message('a'))).kind).toBe('confirmed')
  broker.unroutable('a')
  expect((await publish(publisher, message('a'))).kind).toBe('returned')
  expect((await publish(publisher, message('b'))).kind).toBe('confirmed')
  broker.unroutable('a', false)
  expect((await publish(publisher, message('a'))).kind).toBe('confirmed')
  await publisher.close()
})

test('SC34: with confirms held back the message has arrived, and its publish ends as disconnected when the link drops', async () => {
  const broker = memoryBroker()
  const queue = broker.queue('q', { topics: ['a'] })
  const publisher = broker.openPublisher({ publishTimeoutMs: 1_000 })
  broker.holdConfirms()
  const first = publish(publisher, message('a'))
  expect(queue.length).toBe(1)
  broker.disconnect('cable pulled')
  expect(await first).toEqual({ kind: 'disconnected', reason: 'cable pulled' })
  broker.holdConfirms(false)
  await publisher.ready(AbortSignal.timeout(5_000))
  expect((await publish(publisher, message('a'))).kind).toBe('confirmed')
  expect(queue.length).toBe(2)
  await publisher.close()
})

test('B49: a publish whose confirm is held back ends at its time-out', async () => {
  const broker = memoryBroker()
  broker.queue('q', { topics: ['a'] })
  const publisher = broker.openPublisher({ publishTimeoutMs: 20 })
  broker.holdConfirms()
  expect(await publish(publisher, message('a'))).toMatchObject({ kind: 'disconnected', reason: /20 ms/ })
  await publisher.close()
})

test('an outage lasts until recover, and a source that subscribes meanwhile waits for it', async () => {
  const broker = memoryBroker()
  broker.queue('q', { topics: ['a'] })
  const publisher = broker.openPublisher({ publishTimeoutMs: 1_000 })
  broker.outage('rolling upgrade')
  expect(await publish(publisher, message('a'))).toEqual({ kind: 'disconnected', reason: 'rolling upgrade' })
  const ids: (string | undefined)[] = []
  const subscribing = broker
    .source('q')
    .subscribe({ prefetch: 1, onDelivery: ({ messageId }) => void ids.push(messageId) }, AbortSignal.timeout(5_000))
  broker.recover()
  const subscription = await subscribing
  expect((await publish(publisher, message('a', 'after'))).kind).toBe('confirmed')
  await expect.poll(() => ids).toEqual(['after'])
  await subscription.close()
  await publisher.close()
})

test('a source of an undeclared queue is refused', () => {
  expect(() => memoryBroker().source('nowhere')).toThrow(/no queue "nowhere"/)
})
