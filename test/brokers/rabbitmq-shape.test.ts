/**
 * What the RabbitMQ adapter decides without a broker: message shape, blame, topology, warnings, wrong arguments.
 */
import type amqp from 'amqplib'
import { describe, expect, expectTypeOf, test } from 'vitest'
import type { OutgoingMessage } from '../../src/broker/contract.ts'
import type { AmqpConfirmChannel, AmqpConnection } from '../../src/brokers/rabbitmq/amqp.ts'
import { blameOf, consumerTimeoutMs, reasonOf } from '../../src/brokers/rabbitmq/classify.ts'
import { countWarning, deadLettersOf, startWarning } from '../../src/brokers/rabbitmq/delivery-limit.ts'
import { quorumQueue, rabbitmq, rabbitmqQueue, topicExchange } from '../../src/brokers/rabbitmq/index.ts'
import { decode, encode } from '../../src/brokers/rabbitmq/message.ts'

const message: OutgoingMessage = {
  id: '0190-event',
  topic: 'order.created.v1',
  orderingKey: 'order-7',
  payload: '{"é":1}',
  contentType: 'application/json',
  headers: { tenant: 'acme' },
  createdAtMs: 1_700_000_000_123,
}
const limits = { payloadBytesMax: 1_000, frameBytesMax: 131_072 }
const amqpError = (text: string, facts: object) => Object.assign(new Error(text), facts)
const neverConnect = () => Promise.reject(new Error('not in this test'))

describe('RabbitMQ message shape', () => {
  test("R23 B58: id, topic, time, ordering key and the user's headers have their documented places", () => {
    const encoded = encode(message, limits)
    expect(encoded).toEqual({
      content: Buffer.from('{"é":1}'),
      options: {
        mandatory: true,
        persistent: true,
        messageId: '0190-event',
        type: 'order.created.v1',
        contentType: 'application/json',
        timestamp: 1_700_000_000,
        headers: { tenant: 'acme', 'eo-created-at': 1_700_000_000_123, 'eo-ordering-key': 'order-7' },
      },
    })
  })

  test('headers copied from a consumed message do not carry its ordering key or time on', () => {
    const headers = { 'eo-ordering-key': 'other', 'eo-created-at': '1' }
    const encoded = encode({ ...message, headers }, limits)
    expect(encoded).toMatchObject({
      options: { headers: { 'eo-ordering-key': 'order-7', 'eo-created-at': 1_700_000_000_123 } },
    })
    const unordered = encode({ ...message, headers, orderingKey: null }, limits)
    expect('options' in unordered && 'eo-ordering-key' in unordered.options.headers).toBe(false)
  })

  test('what an instrument writes into the headers of one message is not on the next one', () => {
    const bare = { ...message, headers: {} }
    const first = encode(bare, limits)
    if ('options' in first) Object.assign(first.options.headers, { traceparent: '00-1' })
    const second = encode({ ...bare, orderingKey: 'order-8', createdAtMs: 1_700_000_001_000 }, limits)
    expect('options' in second && second.options.headers).toEqual({
      'eo-created-at': 1_700_000_001_000,
      'eo-ordering-key': 'order-8',
    })
  })

  test('the limits of this connection hold: payload, header frame', () => {
    expect(encode({ ...message, payload: 'x'.repeat(1_001) }, limits)).toMatchObject({
      invalid: expect.stringContaining('1001'),
    })
    const headers = { large: 'x'.repeat(3_500) }
    expect(encode({ ...message, headers }, limits)).toHaveProperty('options')
    expect(encode({ ...message, headers }, { ...limits, frameBytesMax: 4_096 })).toHaveProperty('invalid')
  })

  test('a foreign message is decoded without guessing: no id stays none, both readings of the timestamp are understood', () => {
    const foreign = (properties: object, headers: Record<string, unknown> = {}) =>
      decode(
        {
          content: Buffer.from('x'),
          fields: { deliveryTag: 1, routingKey: 'k', redelivered: true },
          properties: { headers, ...properties },
        },
        'queue',
      )
    expect(foreign({})).toMatchObject({
      messageId: undefined,
      type: undefined,
      contentType: undefined,
      sentAtMs: undefined,
      orderingKey: undefined,
      deliveryCount: undefined,
      redelivered: true,
      topic: 'k',
      source: 'queue',
    })
    expect(foreign({ timestamp: 1_700_000_000 }).sentAtMs).toBe(1_700_000_000_000)
    expect(foreign({ timestamp: 1_700_000_000_123 }).sentAtMs).toBe(1_700_000_000_123)
    expect(foreign({}, { 'x-delivery-count': 3 }).deliveryCount).toBe(3)
    expect(foreign({}, { 'x-delivery-count': 1, 'x-acquired-count': 5 }).deliveryCount).toBe(5)
  })
})

describe('RabbitMQ errors', () => {
  test.each([
    [undefined, { kind: 'none' }],
    [
      amqpError('PRECONDITION_FAILED - message size 12 is larger than configured max size 10', {
        code: 406,
        classId: 60,
        methodId: 40,
      }),
      { kind: 'size', bytesMax: 10 },
    ],
    [
      amqpError("ACCESS_REFUSED - write access to topic 'a.b' in exchange 'e' in vhost '/' refused for user 'u'", {
        code: 403,
        classId: 60,
        methodId: 40,
      }),
      { kind: 'topic', topic: 'a.b' },
    ],
    [
      amqpError("ACCESS_REFUSED - write access to exchange 'e' in vhost '/' refused for user 'u'", {
        code: 403,
        classId: 60,
        methodId: 40,
      }),
      { kind: 'none' },
    ],
    [amqpError("NOT_FOUND - no exchange 'e' in vhost '/'", { code: 404, classId: 60, methodId: 40 }), { kind: 'none' }],
    [amqpError('PRECONDITION_FAILED - whatever', { code: 406, classId: 60, methodId: 40 }), { kind: 'message' }],
    [amqpError('PRECONDITION_FAILED - inequivalent arg', { code: 406, classId: 50, methodId: 10 }), { kind: 'none' }],
    [amqpError('read ECONNRESET', { code: 'ECONNRESET' }), { kind: 'none' }],
  ])('B55: %s is blamed on %o', (error, blame) => {
    expect(blameOf(error)).toEqual(blame)
  })

  test('a reason is one line, also for errors without a message', () => {
    expect(reasonOf(Object.assign(new AggregateError([]), { code: 'ECONNREFUSED' }))).toBe('ECONNREFUSED')
    expect(reasonOf(new Error('a\nb'))).toBe('a b')
    expect(reasonOf('text')).toBe('unknown error')
  })

  test("B69: the ack limit is read from the broker's words", () => {
    const text =
      'PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This'
    expect(consumerTimeoutMs(text)).toBe(1_800_000)
    expect(consumerTimeoutMs('the channel was closed')).toBeUndefined()
  })
})

describe('RabbitMQ topology and delivery limit', () => {
  test('a queue keeps what the broker gives up on and refuses instead of dropping, by default', () => {
    const queue = quorumQueue('orders')
    expect(queue.arguments).toEqual({
      'x-queue-type': 'quorum',
      'x-overflow': 'reject-publish',
      'x-dead-letter-exchange': '',
      'x-dead-letter-routing-key': 'orders.dead',
      'x-dead-letter-strategy': 'at-least-once',
    })
    expect(queue.deadLetterQueue).toMatchObject({ name: 'orders.dead', arguments: { 'x-queue-type': 'quorum' } })
    expect(quorumQueue('orders', { deadLetters: { exchange: 'dlx' } })).toMatchObject({ deadLetterQueue: undefined })
  })

  test('B76: a delivery limit without dead letters is refused when it is written down', () => {
    expect(() => quorumQueue('orders', { deadLetters: 'none', deliveryLimit: 20 })).toThrow(/deliveryLimit.*delete/)
    expect(quorumQueue('orders', { deliveryLimit: 5 }).arguments).toMatchObject({ 'x-delivery-limit': 5 })
  })

  test('B76: what is known of the dead letters comes from the topology', () => {
    const topology = [topicExchange('events'), quorumQueue('kept'), quorumQueue('dropped', { deadLetters: 'none' })]
    expect(deadLettersOf('kept', topology)).toBe('kept')
    expect(deadLettersOf('dropped', topology)).toBe('dropped')
    expect(deadLettersOf('elsewhere', topology)).toBe('unknown')
  })

  test.each([
    ['kept', '4.1.0', false],
    ['dropped', '4.0.5', true],
    ['unknown', '4.0.5', true],
    ['unknown', '10.2', true],
    ['unknown', '3.13.7', false],
    ['dropped', '3.10.8', false],
    ['unknown', undefined, false],
  ] as const)('B76: dead letters %s on RabbitMQ %s: warns at start: %s', (deadLetters, version, warns) => {
    expect(startWarning('orders', deadLetters, version) !== undefined).toBe(warns)
  })

  test('B76: a delivery count near the limit warns on any version, unless dead letters are kept', () => {
    expect(countWarning('orders', 'unknown', 9)).toBeUndefined()
    expect(countWarning('orders', 'unknown', 10)).toMatch(/orders.*10 times/)
    expect(countWarning('orders', 'kept', 19)).toBeUndefined()
    expect(countWarning('orders', 'unknown', undefined)).toBeUndefined()
  })
})

describe('RabbitMQ arguments', () => {
  test.each([
    ['connect', () => rabbitmq('amqp://x' as never, { exchange: 'e' }), /connect must be a function/],
    ['exchange', () => rabbitmq(neverConnect, {} as never), /exchange is required/],
    [
      'unknown option',
      () => rabbitmq(neverConnect, { exchange: 'e', exchagne: 1 } as never),
      /unknown option "exchagne"/,
    ],
    ['openTimeoutMs', () => rabbitmq(neverConnect, { exchange: 'e', openTimeoutMs: 0 }), /openTimeoutMs/],
    [
      'reconnect',
      () => rabbitmq(neverConnect, { exchange: 'e', reconnect: { minMs: 10, maxMs: 5 } }),
      /reconnect.maxMs/,
    ],
    [
      'reconnect member',
      () => rabbitmq(neverConnect, { exchange: 'e', reconnect: { min: 10 } as never }),
      /unknown option "min"/,
    ],
    ['long exchange', () => rabbitmq(neverConnect, { exchange: 'x'.repeat(256) }), /255 bytes/],
    ['long queue', () => rabbitmqQueue(neverConnect, 'x'.repeat(256)), /255 bytes/],
    ['topology', () => rabbitmq(neverConnect, { exchange: 'e', topology: ['events'] as never }), /topology/],
    ['topology', () => rabbitmqQueue(neverConnect, 'q', { topology: {} as never }), /topology/],
    [
      'binding member',
      () => quorumQueue('q', { bindings: [{ exchange: 'e', routingKey: 'a' } as never] }),
      /unknown option "routingKey"/,
    ],
    ['binding pattern', () => quorumQueue('q', { bindings: [{ exchange: 'e' } as never] }), /pattern/],
    ['binding exchange', () => quorumQueue('q', { bindings: [{ exchange: '', pattern: '#' }] }), /exchange/],
    ['queue', () => rabbitmqQueue(neverConnect, ''), /name of the queue/],
    ['deadLetters', () => rabbitmqQueue(neverConnect, 'q', { deadLetters: 'yes' as never }), /deadLetters/],
    ['queue name', () => quorumQueue('x'.repeat(256)), /1 to 255 bytes/],
    ['dead letter queue name', () => quorumQueue('x'.repeat(253)), /dead letter/],
    ['lengthMax', () => quorumQueue('q', { lengthMax: 0 }), /lengthMax/],
    [
      'publishTimeoutMs',
      () => rabbitmq(neverConnect, { exchange: 'e' }).openPublisher({ publishTimeoutMs: 0 }),
      /publishTimeoutMs/,
    ],
  ])('%s is told as a TypeError that names it', (_name, call, words) => {
    expect(call).toThrow(TypeError)
    expect(call).toThrow(words)
  })

  test('prefetch out of range is told before anything is opened', async () => {
    const source = rabbitmqQueue(neverConnect, 'q')
    const subscribing = source.subscribe({ prefetch: 70_000, onDelivery: () => {} }, AbortSignal.timeout(1_000))
    await expect(subscribing).rejects.toThrow(/prefetch/)
  })

  test("amqplib's objects fit the structural types", () => {
    expectTypeOf<amqp.ChannelModel>().toExtend<AmqpConnection>()
    expectTypeOf<amqp.RecoveringChannelModel>().toExtend<AmqpConnection>()
    expectTypeOf<amqp.ConfirmChannel>().toExtend<AmqpConfirmChannel>()
  })
})
