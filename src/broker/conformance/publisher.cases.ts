/**
 * Cases of the publisher half of the broker contract.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { Buffer } from 'node:buffer'
import type { PublishResult } from '../contract.ts'
import {
  type BrokerCase,
  caseSignal,
  collector,
  eventually,
  message,
  openPublisher,
  publish,
  withSetup,
} from './harness.ts'

export const publisherCases: readonly BrokerCase[] = [
  {
    name: 'R23 R24: a confirmed message arrives with its id, topic, type, bytes, headers, time and ordering key',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['order.created.v1'])
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        const publisher = await openPublisher(setup)
        const sent = message('order.created.v1', {
          payload: '{"name":"Ngân hàng","emoji":"🏦"}',
          headers: { 'tenant-id': 'acme', empty: '' },
          orderingKey: 'order-7',
        })
        assert.deepEqual(await publish(publisher, sent), { kind: 'confirmed' })
        await eventually('one delivery', () => received.deliveries.length === 1)
        const [delivery] = received.deliveries
        assert.ok(delivery)
        assert.equal(delivery.messageId, sent.id)
        assert.equal(delivery.topic, sent.topic)
        assert.equal(delivery.type, sent.topic)
        assert.equal(delivery.contentType, sent.contentType)
        assert.equal(delivery.orderingKey, 'order-7')
        assert.equal(delivery.sentAtMs, sent.createdAtMs)
        assert.equal(delivery.source, source.name)
        assert.equal(delivery.redelivered, false)
        assert.equal(delivery.headers['tenant-id'], 'acme')
        assert.equal(delivery.headers['empty'], '')
        assert.deepEqual(Buffer.from(delivery.body), Buffer.from('{"name":"Ngân hàng","emoji":"🏦"}'))
        assert.equal(subscription.ack([delivery]), 1)
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'R23: payload bytes arrive unchanged: none, every value, and more than one frame holds',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['bytes'])
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        const publisher = await openPublisher(setup)
        const all = Uint8Array.from({ length: 256 }, (_, index) => index)
        const large = Buffer.alloc(300_000, all)
        for (const payload of [new Uint8Array(0), all, large.subarray(1, 200_001)]) {
          assert.equal((await publish(publisher, message('bytes', { payload }))).kind, 'confirmed')
        }
        await eventually('three deliveries', () => received.deliveries.length === 3)
        const [none, each, many] = received.deliveries.map(({ body }) => Buffer.from(body))
        assert.equal(none?.length, 0)
        assert.deepEqual(each, Buffer.from(all))
        assert.ok(many?.equals(large.subarray(1, 200_001)))
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'B51 R24: one unroutable among fifty is returned, matched by its own id, and goes through once it is routed',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['known'])
        const publisher = await openPublisher(setup)
        const lost = message('nobody.takes.this')
        const results = await Promise.all(
          Array.from({ length: 51 }, (_, index) =>
            publish(publisher, index === 25 ? lost : message('known')).then((result) => result.kind),
          ),
        )
        assert.deepEqual(
          results,
          Array.from({ length: 51 }, (_, index) => (index === 25 ? 'returned' : 'confirmed')),
        )
        const source = await setup.queue(['nobody.takes.this'])
        assert.equal((await publish(publisher, lost)).kind, 'confirmed')
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 1, ...received }, caseSignal())
        await eventually('the message that was returned before', () => received.deliveries.length === 1)
        assert.equal(received.deliveries[0]?.messageId, lost.id)
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'B51: returns that come in any number, with one id twice on its way, are counted to the right publishes',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['known'])
        const publisher = await openPublisher(setup)
        const twice = message('unknown')
        const sent = [twice, message('known'), twice, message('unknown'), message('known'), message('unknown')]
        const results = await Promise.all(sent.map((each) => publish(publisher, each)))
        assert.deepEqual(
          results.map(({ kind }) => kind),
          ['returned', 'confirmed', 'returned', 'returned', 'confirmed', 'returned'],
        )
        await publisher.close()
      }),
  },
  {
    name: 'SC26 I8: messages of one publisher arrive in the order of publishing, more of them than any buffer holds',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['ordered'])
        const publisher = await openPublisher(setup)
        const sent = Array.from({ length: 4_000 }, () => message('ordered', { orderingKey: 'k' }))
        const results = await Promise.all(sent.map((each) => publish(publisher, each)))
        assert.ok(results.every(({ kind }) => kind === 'confirmed'))
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 4_000, ...received }, caseSignal())
        await eventually('all deliveries', () => received.deliveries.length === sent.length)
        assert.deepEqual(
          received.deliveries.map(({ messageId }) => messageId),
          sent.map(({ id }) => id),
        )
        assert.equal(subscription.ack(received.deliveries), sent.length)
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'B58: two events of one entity keep two ids, and a resend keeps its own',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['product.updated'])
        const publisher = await openPublisher(setup)
        const first = message('product.updated', { orderingKey: 'product-1', payload: '{"price":1}' })
        const second = message('product.updated', { orderingKey: 'product-1', payload: '{"price":2}' })
        for (const each of [first, second, second]) {
          assert.equal((await publish(publisher, each)).kind, 'confirmed')
        }
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 10, ...received }, caseSignal())
        await eventually('three deliveries', () => received.deliveries.length === 3)
        assert.deepEqual(
          received.deliveries.map(({ messageId }) => messageId),
          [first.id, second.id, second.id],
        )
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'B49 SC32 R29: publishes in flight when the connection drops all settle once; resent, none is missing',
    needs: 'disconnect',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['t'])
        const publisher = await openPublisher(setup)
        const sent = Array.from({ length: 300 }, () => message('t'))
        const settling = sent.map((each) => publish(publisher, each))
        await setup.disconnect()
        const results = await Promise.all(settling)
        assert.ok(results.every(({ kind }) => kind === 'confirmed' || kind === 'disconnected'))
        await publisher.ready(caseSignal())
        const again = sent.filter((_, index) => results[index]?.kind !== 'confirmed')
        for (const result of await Promise.all(again.map((each) => publish(publisher, each)))) {
          assert.equal(result.kind, 'confirmed')
        }
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 1_000, ...received }, caseSignal())
        const ids = () => new Set(received.deliveries.map(({ messageId }) => messageId))
        await eventually('every message at least once', () => sent.every(({ id }) => ids().has(id)))
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: 'R28: the state tells of the loss and of the recovery, and ready waits for the latter',
    needs: 'disconnect',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['t'])
        const states: string[] = []
        const publisher = setup.broker.openPublisher({
          publishTimeoutMs: 5_000,
          onState: ({ kind }) => {
            states.push(kind)
          },
        })
        await publisher.ready(caseSignal())
        await setup.disconnect()
        await eventually('the loss is told', () => states.includes('closed'))
        await publisher.ready(caseSignal())
        assert.equal(publisher.state.kind, 'open')
        assert.equal(states.at(-1), 'open')
        assert.equal((await publish(publisher, message('t'))).kind, 'confirmed')
        await publisher.close()
      }),
  },
  {
    name: 'B54: a full queue refuses, the others are confirmed, and it takes messages again once there is room',
    needs: 'length-limit',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        const source = await setup.queue(['small'], { lengthMax: 3 })
        await setup.queue(['wide'])
        const publisher = await openPublisher(setup)
        const kinds: string[] = []
        // One after the other: brokers may let a few more in before they notice that the queue is full.
        for (let index = 0; index < 20; index += 1) kinds.push((await publish(publisher, message('small'))).kind)
        assert.equal(kinds[0], 'confirmed')
        assert.equal(kinds.at(-1), 'refused')
        assert.ok(kinds.every((kind) => kind === 'confirmed' || kind === 'refused'))
        assert.equal((await publish(publisher, message('wide'))).kind, 'confirmed')
        const received = collector()
        const subscription = await source.subscribe({ prefetch: 100, ...received }, caseSignal())
        const stored = kinds.filter((kind) => kind === 'confirmed').length
        await eventually('what was confirmed', () => received.deliveries.length === stored)
        subscription.ack(received.deliveries)
        let last: PublishResult = { kind: 'refused', reason: '' }
        for (let tries = 0; tries < 200 && last.kind === 'refused'; tries += 1) {
          last = await publish(publisher, message('small'))
        }
        assert.equal(last.kind, 'confirmed')
        await subscription.close()
        await publisher.close()
      }),
  },
  {
    name: "a message over the broker's size limit is invalid, alone; its neighbours are not",
    needs: 'size-limit',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['t'])
        const publisher = await openPublisher(setup)
        const large = message('t', { payload: Buffer.alloc(setup.payloadBytesMax + 1, 'x') })
        const sent = [message('t'), message('t'), large, message('t'), message('t')]
        let open = new Set(sent)
        for (let round = 0; open.size > 0 && round < 20; round += 1) {
          await publisher.ready(caseSignal())
          const tried = [...open]
          const results = await Promise.all(tried.map((each) => publish(publisher, each)))
          open = new Set(tried.filter((_, index) => results[index]?.kind === 'disconnected'))
          for (const [index, each] of tried.entries()) {
            const kind = results[index]?.kind
            if (kind === 'disconnected') continue
            assert.equal(kind, each === large ? 'invalid' : 'confirmed')
          }
        }
        assert.equal(open.size, 0)
        await publisher.close()
      }),
  },
  {
    name: 'B53: a blocked broker is told as blocked, settles what it gets, and goes on when unblocked',
    needs: 'block',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['t'])
        const publisher = await openPublisher(setup, 1_000)
        await setup.block(true)
        const first = await publish(publisher, message('t'))
        assert.equal(first.kind, 'disconnected')
        assert.equal(publisher.state.kind, 'blocked')
        const waiting = publisher.ready(caseSignal())
        await setup.block(false)
        await waiting
        assert.equal((await publish(publisher, message('t'))).kind, 'confirmed')
        await publisher.close()
      }),
  },
  {
    name: 'ready rejects with the reason of its signal, and a closed publisher answers disconnected',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['t'])
        const publisher = await openPublisher(setup)
        await assert.rejects(publisher.ready(AbortSignal.abort(new Error('stop now'))), /stop now/)
        await publisher.close()
        await publisher.close()
        assert.equal((await publish(publisher, message('t'))).kind, 'disconnected')
        await assert.rejects(publisher.ready(caseSignal()))
        assert.equal(publisher.state.kind, 'closed')
      }),
  },
  {
    name: 'close waits for the results of what is in flight',
    run: (harness) =>
      withSetup(harness, async (setup) => {
        await setup.queue(['t'])
        const publisher = await openPublisher(setup)
        const settling = Array.from({ length: 200 }, () => publish(publisher, message('t')))
        await publisher.close()
        for (const { kind } of await Promise.all(settling)) assert.equal(kind, 'confirmed')
      }),
  },
]
