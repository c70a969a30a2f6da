import { describe, expect, test } from 'vitest'
import { OutboxBuffer } from '../../src/outbox/buffer.ts'
import { laneOf, type Message, outboxLimits, toRow } from '../../src/outbox/message.ts'

const limits = outboxLimits()
const row = (message: Partial<Message>) => toRow({ topic: 'order.created.v1', payload: {}, ...message }, limits)
const refused = (message: object) => () => toRow(message as Message, limits)

describe('message', () => {
  test('the payload becomes JSON text in the order of its members, and the id is made once', () => {
    const made = row({ payload: { b: 1, a: [true, null, 'ü\0'] }, orderingKey: 'o-1', headers: { tenant: 'acme' } })
    expect(made).toMatchObject({
      lane: 0,
      topic: 'order.created.v1',
      orderingKey: 'o-1',
      payload: '{"b":1,"a":[true,null,"ü\\u0000"]}',
      encoding: 'text',
      contentType: 'application/json',
      headers: '{"tenant":"acme"}',
    })
    expect(made.id).toMatch(/^[0-9a-f-]{36}$/)
  })

  test('bytes keep their content type and travel as base64; without a content type they are refused', () => {
    const payload = new Uint8Array([0, 255, 128])
    expect(row({ payload, contentType: 'application/octet-stream' })).toMatchObject({
      payload: 'AP+A',
      encoding: 'base64',
      contentType: 'application/octet-stream',
    })
    expect(() => row({ payload })).toThrow(/message.contentType is required/)
  })

  test.each([
    [{ at: { deep: [1n] } }, /message.payload at \$\.at\.deep\[0\] is a BigInt/],
    [{ n: Number.NaN }, /\$\.n is not a finite number/],
    [{ m: new Map() }, /\$\.m is neither plain object/],
    [{ f: () => 1 }, /\$\.f is a function/],
    [{ t: '\ud800' }, /\$\.t holds a lone surrogate/],
    [{ '\ud800': 1 }, /a member name with a lone surrogate/],
    [{ b: new Uint8Array(2) }, /\$\.b holds bytes/],
    [[1, undefined], /\$\[1\] is undefined or a hole/],
    [{ d: new Date(Number.NaN) }, /\$\.d is an invalid Date/],
    [undefined, /payload is missing/],
  ])('a payload that JSON would change silently is refused by its path (%#)', (payload, message) => {
    expect(refused({ topic: 't', payload })).toThrow(message)
    expect(refused({ topic: 't', payload })).toThrow(TypeError)
  })

  test('a cycle is refused, a Date and an undefined member are what JSON says they are', () => {
    const cycle: Record<string, unknown> = {}
    cycle['self'] = cycle
    expect(refused({ topic: 't', payload: cycle })).toThrow(/nested deeper than 128, or a cycle/)
    expect(row({ payload: { at: new Date(0), none: undefined } }).payload).toBe('{"at":"1970-01-01T00:00:00.000Z"}')
  })

  test.each([
    [{ topic: '' }, /message.topic takes a non-empty string/],
    [{ topic: 'ä'.repeat(128) }, /message.topic has 256 bytes, more than 255/],
    [{ topic: 'a\0b' }, /message.topic holds control characters/],
    [{ orderingKey: '\ud800' }, /message.orderingKey holds control characters or lone surrogates/],
    [{ orderingKey: 7 }, /message.orderingKey takes a non-empty string/],
    [{ id: 'order-1' }, /message.id must be a UUID/],
    [{ contentType: 'json' }, /message.contentType must be a media type/],
    [{ headers: { CC: 'other' } }, /"CC" is reserved/],
    [{ headers: { 'eo-ordering-key': 'x' } }, /"eo-ordering-key" is reserved/],
    [{ headers: { 'x-death': 'x' } }, /"x-death" is reserved/],
    [{ headers: { 'a b': 'x' } }, /must be 1 to 128 visible ASCII characters/],
    [{ headers: { a: 'x\0' } }, /must be text without U\+0000/],
    [{ headers: { a: 1 } }, /must be text/],
    [{ headers: { a: 'x'.repeat(17_000) } }, /more than 16384/],
    [{ headers: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`h${i}`, ''])) }, /more than 64/],
    [{ partition: 1 }, /message: unknown option "partition"/],
  ])('what a broker or PostgreSQL would refuse fails the work that made it (%#)', (wrong, message) => {
    expect(refused({ topic: 't', payload: 1, ...wrong })).toThrow(message)
  })

  test('B46: 70 KB are kept whole; 20 MB are refused with the size and the name of the limit', () => {
    expect(row({ payload: 'x'.repeat(70_000) }).payload).toHaveLength(70_002)
    expect(() => row({ payload: 'x'.repeat(20_000_000) })).toThrow(
      'message.payload of topic "order.created.v1" has 20000002 bytes, more than 8388608 (payloadBytesMax)',
    )
    const large = outboxLimits({ payloadBytesMax: 32 * 1024 * 1024 })
    expect(toRow({ topic: 't', payload: 'x'.repeat(20_000_000) }, large).payload).toHaveLength(20_000_002)
  })

  test('one key has one lane, and keys spread over the lanes', () => {
    const eight = outboxLimits({ lanes: 8 })
    const lanes = Array.from(
      { length: 400 },
      (_, i) => toRow({ topic: 't', payload: 1, orderingKey: `k${i}` }, eight).lane,
    )
    expect(new Set(lanes).size).toBe(8)
    expect(laneOf('k1', 8)).toBe(lanes[1])
    expect(Math.max(...lanes)).toBe(7)
  })

  test('options out of bounds and unknown ones are refused by name', () => {
    expect(() => outboxLimits({ lanes: 0 })).toThrow(/outbox.lanes takes a whole number from 1 to 256/)
    expect(() => outboxLimits({ lane: 1 } as object)).toThrow(/unknown option "lane"/)
  })
})

describe('buffer', () => {
  test('messages keep the order of the calls and give their ids back', async () => {
    const buffer = new OutboxBuffer(limits)
    const first = await buffer.outbox.add({ topic: 'a', payload: 1 })
    const others = await buffer.outbox.add([
      { topic: 'b', payload: 2 },
      { topic: 'c', payload: 3 },
    ])
    expect(buffer.rows.map(({ id, topic }) => [id, topic])).toEqual([
      [first, 'a'],
      [others[0], 'b'],
      [others[1], 'c'],
    ])
  })

  test('a wrong message throws at the call, also when nobody awaits it, and a list is all or none', () => {
    const buffer = new OutboxBuffer(limits)
    expect(() => void buffer.outbox.add({ topic: '', payload: 1 })).toThrow(TypeError)
    expect(
      () =>
        void buffer.outbox.add([
          { topic: 'a', payload: 1 },
          { topic: 'b', payload: 1n },
        ]),
    ).toThrow(/BigInt/)
    expect(buffer.rows).toEqual([])
  })

  test('number and bytes of one transaction are bounded by name', () => {
    const buffer = new OutboxBuffer(outboxLimits({ messagesMax: 2, bytesMax: 100 }))
    const message = { topic: 't', payload: 1 }
    expect(() => void buffer.outbox.add([message, message, message])).toThrow(/more than 2 messages .*messagesMax/)
    expect(() => void buffer.outbox.add({ topic: 't', payload: 'x'.repeat(200) })).toThrow(
      /more than 100 bytes .*bytesMax/,
    )
    expect(buffer.rows).toEqual([])
  })

  test('B41: after the work has ended nothing can be added', () => {
    const buffer = new OutboxBuffer(limits)
    buffer.end()
    expect(() => void buffer.outbox.add({ topic: 't', payload: 1 })).toThrow(/NOT_A_TRANSACTION/)
  })
})
