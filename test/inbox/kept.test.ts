import fc from 'fast-check'
import { expect, test } from 'vitest'
import { keep, restore } from '../../src/inbox/kept.ts'
import { delivered } from './delivered.ts'

const about = { type: 'order.created.v1', orderingKey: undefined, ids: {} }

const headerValue = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 3 },
    fc.string({ unit: 'binary' }),
    fc.double(),
    fc.boolean(),
    fc.constant(null),
    fc.constant(undefined),
    fc.bigInt(),
    fc.date(),
    fc.uint8Array().map((array) => Buffer.from(array)),
    fc.array(tie('value')),
    fc.dictionary(fc.oneof(fc.string(), fc.constantFrom('$', 'v', '__proto__')), tie('value'), {
      noNullPrototype: true,
    }),
  ),
})).value

test('R34: headers of every kind come back from the database as they were', () => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), headerValue, { noNullPrototype: true }), (headers) => {
      const kept = keep(delivered({ headers }), about)
      expect(kept.transport).not.toContain('\0')
      expect(restore(kept).headers).toStrictEqual(headers)
    }),
    { numRuns: 500 },
  )
})

test('T10: a header called __proto__ changes no prototype', () => {
  const headers = JSON.parse('{"__proto__":{"admin":true}}') as Record<string, unknown>
  const { headers: restored } = restore(keep(delivered({ headers }), about))
  expect(Object.getPrototypeOf(restored)).toBe(Object.prototype)
  expect(Object.hasOwn(restored, '__proto__')).toBe(true)
  expect(({} as Record<string, unknown>)['admin']).toBeUndefined()
})

test('R34: the delivery comes back whole, marked as redelivered', () => {
  const delivery = delivered({
    body: Buffer.from([0, 1, 255]),
    messageId: 'm\0-1',
    type: 'sender type',
    orderingKey: 'k',
    deliveryCount: 3,
    sentAtMs: 1_700_000_000_123,
    contentType: undefined,
  })
  expect(restore(keep(delivery, about))).toEqual({ ...delivery, redelivered: true })
})

test('R34: a time that no calendar has does not stop the message from being kept', () => {
  for (const sentAtMs of [Number.NaN, Number.POSITIVE_INFINITY, -1, 1e300]) {
    expect(keep(delivered({ sentAtMs }), about).sentAtMs).toBeUndefined()
  }
})

test('R34: routing facts that a database cannot hold are made storable; body and headers are not touched', () => {
  const kept = keep(delivered({ topic: 'a\0b', source: 'q\ud800' }), { ...about, type: 't\0' })
  expect([kept.topic, kept.queue, kept.type]).toEqual(['a\ufffdb', 'q\ufffd', 't\ufffd'])
})
