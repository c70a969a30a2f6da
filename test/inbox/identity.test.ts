import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Delivery } from '../../src/broker/contract.ts'
import { identityOf, idsOf, markId, normalisedId } from '../../src/inbox/identity.ts'
import { examine, type Item, type ItemSettings, type Refusal } from '../../src/inbox/item.ts'
import { delivered } from './delivered.ts'

const GUID = '0f8fad5b-d9cb-469f-a165-70867728950e'

const settings: ItemSettings = {
  consumer: 'billing',
  decode: 'json',
  identify: undefined,
  typeOf: undefined,
  contentOf: undefined,
  orderBy: undefined,
}

function item(parts: Partial<Delivery>, own: Partial<ItemSettings> = {}): Item {
  const examined = examine(delivered(parts), { ...settings, ...own })
  if ('reason' in examined) throw new Error(`refused: ${examined.reason}`)
  return examined
}

function refused(parts: Partial<Delivery>, own: Partial<ItemSettings> = {}): Refusal {
  const examined = examine(delivered(parts), { ...settings, ...own })
  if (!('reason' in examined)) throw new Error('not refused')
  return examined
}

describe('where the id is', () => {
  test.each<[string, Partial<Delivery>, string, string]>([
    ['the message-id property', { messageId: 'm-1' }, 'm-1', ''],
    ['NServiceBus', { messageId: 'native', headers: { 'NServiceBus.MessageId': 'n-1' } }, 'n-1', ''],
    ['Rebus', { headers: { 'rbs2-msg-id': 'r-1' } }, 'r-1', ''],
    ['CAP', { headers: { 'cap-msg-id': '1234567890123456789' } }, '1234567890123456789', ''],
    ['Axon', { headers: { 'axon-message-id': 'a-1' } }, 'a-1', ''],
    ['Watermill', { headers: { _watermill_message_uuid: 'w-1' } }, 'w-1', ''],
    ['MassTransit', { messageId: GUID, contentType: 'application/vnd.masstransit+json' }, GUID, ''],
    ['a MassTransit redelivery', { messageId: 'new', headers: { 'MT-OriginalMessageId': 'first' } }, 'first', ''],
    [
      'a Brighter requeue',
      { messageId: 'regenerated', headers: { 'x-original-message-id': 'b-1', cloudEvents_id: 'b-1' } },
      'b-1',
      '',
    ],
    [
      'CloudEvents with colons',
      { headers: { 'cloudEvents:id': 'c-1', 'cloudEvents:source': '/shop' }, messageId: 'native' },
      'c-1',
      '/shop',
    ],
    ['CloudEvents with underscores', { headers: { cloudEvents_id: 'c-2', cloudEvents_source: '/s' } }, 'c-2', '/s'],
    ['CloudEvents as in HTTP', { headers: { 'ce-id': 'c-3', 'ce-source': '/s' } }, 'c-3', '/s'],
    [
      'structured CloudEvents',
      {
        contentType: 'application/cloudevents+json; charset=utf-8',
        body: Buffer.from('{"specversion":"1.0","id":"c-4","source":"/s","type":"t","data":{"a":1}}'),
        messageId: 'native',
      },
      'c-4',
      '/s',
    ],
    ['a number in a header', { headers: { 'cap-msg-id': 42 } }, '42', ''],
    ['bytes in a header', { headers: { 'rbs2-msg-id': Buffer.from('bytes') } }, 'bytes', ''],
  ])('R38: %s names the message', (_, parts, id, source) => {
    const { mark } = item({ messageId: undefined, ...parts })
    expect([mark.messageId, mark.source]).toEqual([id, source])
  })

  test('R38: a blank header of a framework does not hide the id behind it', () => {
    expect(item({ headers: { 'NServiceBus.MessageId': ' ' }, messageId: 'm-1' }).mark.messageId).toBe('m-1')
  })

  test('R05: a delivery tag, a correlation id or a generic `id` header is never an identity', () => {
    const examined = refused({ messageId: undefined, headers: { id: 'x', correlation_id: 'y', deliveryTag: 7 } })
    expect(examined.reason).toBe('no-identity')
  })

  test('R38: every id that was found is kept for the person who looks', () => {
    const delivery = delivered({ messageId: 'native', headers: { 'NServiceBus.MessageId': 'n-1', 'ce-id': 'c-1' } })
    expect(idsOf(delivery, undefined)).toEqual({
      'NServiceBus.MessageId': 'n-1',
      'cloudevents (binary)': 'c-1',
      'message-id': 'native',
    })
  })
})

describe("a user's identify", () => {
  test('R05: it comes first, and may give a namespace', () => {
    const own = { identify: () => ({ id: 'mine', source: 'shop' }) }
    const { mark } = item({ messageId: 'native' }, own)
    expect([mark.messageId, mark.source]).toEqual(['mine', 'shop'])
  })

  test('R05: it may read the body', () => {
    const own: Partial<ItemSettings> = { identify: (_, body) => (body() as { no: string }).no }
    expect(item({ body: Buffer.from('{"no":"A-7"}') }, own).mark.messageId).toBe('A-7')
  })

  test('R34: a body that it cannot read makes the message undecodable', () => {
    const own: Partial<ItemSettings> = { identify: (_, body) => String(body()) }
    expect(refused({ body: Buffer.from('{') }, own).reason).toBe('undecodable')
  })

  test('R05: undefined means the usual places', () => {
    expect(item({ messageId: 'm-1' }, { identify: () => undefined }).mark.messageId).toBe('m-1')
  })

  test.each([
    ['null', null],
    ['empty', ''],
    ['blank', '  '],
    ['all-zero', '00000000-0000-0000-0000-000000000000'],
  ])('B73: %s means that the message has none, whatever else it carries', (_, given) => {
    expect(refused({ messageId: 'm-1' }, { identify: () => given }).reason).toBe('no-identity')
  })

  test('B73: one that throws leaves the message without identity, with its error and its bytes', () => {
    const identify = () => {
      throw new RangeError('no such field')
    }
    const refusal = refused({ messageId: 'm-1', body: Buffer.from('{"a":1}') }, { identify })
    expect([refusal.reason, refusal.error]).toEqual(['no-identity', 'RangeError: no such field'])
    expect(Buffer.from(refusal.kept.body).toString()).toBe('{"a":1}')
  })

  test('R34: another function of the user that throws makes the message undecodable, and it keeps its id', () => {
    const typeOf = () => {
      throw new TypeError('no type')
    }
    const refusal = refused({ messageId: 'm-1' }, { typeOf })
    expect([refusal.reason, refusal.mark.messageId]).toEqual(['undecodable', 'm-1'])
    expect(refusal.mark.id).toBe(markId('billing', '', 'm-1'))
  })
})

describe('which ids are the same', () => {
  test.each([GUID, GUID.toUpperCase(), GUID.replaceAll('-', ''), `{${GUID}}`, `(${GUID})`, ` ${GUID} `])(
    'R38: %s is one GUID in all its forms',
    (form) => {
      expect(normalisedId(form)).toBe(GUID)
    },
  )

  test.each([`x${GUID}`, `${GUID}-1`, `{${GUID}`, `{${GUID})`, GUID.slice(1), `urn:uuid:${GUID}`])(
    'R38: %s is not wholly a GUID and stays as it is',
    (form) => {
      expect(normalisedId(form)).toBe(form)
    },
  )

  test('SC41: other ids are told apart by case', () => {
    expect(item({ messageId: 'Order-1' }).mark.id).not.toBe(item({ messageId: 'order-1' }).mark.id)
  })

  test.each([
    '',
    ' ',
    '\t\n',
    '00000000-0000-0000-0000-000000000000',
    '{00000000-0000-0000-0000-000000000000}',
    '0'.repeat(32),
  ])('B73: %j is no id', (form) => {
    expect(normalisedId(form)).toBeUndefined()
  })

  test.each(['a\0b', 'a\ud800'])('B73: %j cannot be stored and is no id', (form) => {
    expect(normalisedId(form)).toBeUndefined()
  })

  test('R38: a long id is kept as its hash and still told apart by its last byte', () => {
    const [one, two] = [`${'x'.repeat(300)}1`, `${'x'.repeat(300)}2`].map((id) => normalisedId(id))
    expect(one).toMatch(/^sha256:[0-9a-f]{64}$/)
    expect(one).not.toBe(two)
  })

  test('R38: normalising twice is the same as once', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string({ unit: 'binary' }),
          fc.uuid(),
          fc.uuid().map((id) => `{${id.toUpperCase()}}`),
        ),
        (id) => {
          const once = normalisedId(id)
          expect(normalisedId(once)).toBe(once)
        },
      ),
    )
  })
})

describe('the id of a mark', () => {
  test('SC41: another consumer, another namespace or another id is another mark, whatever their delimiters', () => {
    const text = fc.string({ maxLength: 6, unit: fc.constantFrom('a', ':', '1', '2', 'é') })
    const parts = fc.tuple(text, text, fc.option(text, { nil: undefined }))
    fc.assert(
      fc.property(parts, parts, (one, two) => {
        const same =
          JSON.stringify(one.map(String)) === JSON.stringify(two.map(String)) &&
          (one[2] === undefined) === (two[2] === undefined)
        expect(markId(...one) === markId(...two)).toBe(same)
      }),
      { numRuns: 2_000 },
    )
  })

  test('R30: it is a UUID', () => {
    expect(markId('billing', '', 'm-1')).toMatch(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
  })
})

describe('content', () => {
  const print = (parts: Partial<Delivery>, own: Partial<ItemSettings> = {}) =>
    Buffer.from(item(parts, own).mark.fingerprint).toString('hex')

  test('R33: body and type count, the way of the message does not', () => {
    const one = print({ body: Buffer.from('{"a":1}'), type: 't' })
    expect(print({ body: Buffer.from('{"a":2}'), type: 't' })).not.toBe(one)
    expect(print({ body: Buffer.from('{"a":1}'), type: 'u' })).not.toBe(one)
    const rerouted = {
      topic: 'dead',
      source: 'orders.retry',
      headers: { 'x-death': [{ count: 1 }] },
      redelivered: true,
    }
    expect(print({ body: Buffer.from('{"a":1}'), type: 't', ...rerouted })).toBe(one)
  })

  test('R33: the border between type and body counts', () => {
    expect(print({ type: 'ab', body: Buffer.from('c') })).not.toBe(print({ type: 'a', body: Buffer.from('bc') }))
    expect(print({ type: undefined, body: Buffer.from('1:a:') })).not.toBe(print({ type: '1:a:', body: Buffer.of() }))
  })

  test('R33: a user says what content is', () => {
    const own: Partial<ItemSettings> = { contentOf: (message) => String((message.body as { a: number }).a) }
    const [one, two] = [
      print({ body: Buffer.from('{"a":1,"at":1}') }, own),
      print({ body: Buffer.from('{"a":1,"at":2}') }, own),
    ]
    expect(one).toBe(two)
  })
})

describe('what a message is', () => {
  test('R38: its type is that of the event, then of the sender, then the topic', () => {
    expect(item({ headers: { 'ce-type': 'e' }, type: 's', topic: 'r' }).message.type).toBe('e')
    expect(item({ type: 's', topic: 'r' }).message.type).toBe('s')
    expect(item({ type: undefined, topic: 'r' }).message.type).toBe('r')
  })

  test('I8: its ordering key is the sender’s, or the partition key of the event', () => {
    expect(item({ orderingKey: 'k' }).message.orderingKey).toBe('k')
    expect(item({ headers: { 'ce-partitionkey': 'p' } }).message.orderingKey).toBe('p')
    expect(item({ orderingKey: 'k' }).key).toBeUndefined()
    expect(item({ orderingKey: 'k' }, { orderBy: true }).key).toBe('k')
    expect(item({ orderingKey: 'k' }, { orderBy: (message) => message.id }).key).toBe('m-0')
    expect(item({}, { orderBy: () => null }).key).toBeUndefined()
  })

  test('R38: a structured event gives its data, and its bytes when they are base64', () => {
    const event = (data: string) => ({
      contentType: 'application/cloudevents+json',
      body: Buffer.from(`{"specversion":"1.0","id":"c","source":"/s","type":"t",${data}}`),
    })
    expect(item(event('"data":{"a":1}')).message.body).toEqual({ a: 1 })
    expect(item(event('"data_base64":"AAE="')).message.body).toEqual(Buffer.from([0, 1]))
  })

  test('R34: a batch of events, and a structured event that is none, are undecodable', () => {
    expect(refused({ contentType: 'application/cloudevents-batch+json', body: Buffer.from('[]') }).reason).toBe(
      'undecodable',
    )
    expect(refused({ contentType: 'application/cloudevents+json', body: Buffer.from('[]') }).reason).toBe('undecodable')
    expect(refused({ contentType: 'application/cloudevents+json', body: Buffer.from('{') }).reason).toBe('undecodable')
  })

  describe('B73: a CloudEvent without the attributes that it must have is undecodable, whatever else names the message', () => {
    const full = { specversion: '1.0', id: 'c-1', source: '/s', type: 't' }
    const structured = (parts: object): Partial<Delivery> => ({
      messageId: 'native',
      contentType: 'application/cloudevents+json',
      body: Buffer.from(JSON.stringify({ ...full, ...parts })),
    })

    test.each<[string, object]>([
      ['a number as id and no source', { id: 42, source: undefined }],
      ['a number as id', { id: 42 }],
      ['no id', { id: undefined }],
      ['an empty id', { id: '' }],
      ['null as id', { id: null }],
      ['no source', { source: undefined }],
      ['a blank source', { source: ' ' }],
      ['a list as source', { source: ['/s'] }],
      ['no specversion', { specversion: undefined }],
      ['a number as specversion', { specversion: 1 }],
      ['no type', { type: undefined }],
    ])('structured, with %s', (_, parts) => {
      const { reason, error, kept, mark } = refused(structured(parts))
      expect([reason, mark.messageId]).toEqual(['undecodable', undefined])
      expect(error).toMatch(/a CloudEvent needs (id|source|specversion|type), a string/)
      expect(Buffer.from(kept.body).toString()).toBe(JSON.stringify({ ...full, ...parts }))
    })

    test.each<[string, Record<string, unknown>]>([
      ['a number as id and no source', { 'cloudEvents:id': 42 }],
      ['a number as id', { 'cloudEvents:id': 42, 'cloudEvents:source': '/s' }],
      ['no source', { cloudEvents_id: 'c-1' }],
      ['a number as source', { 'ce-id': 'c-1', 'ce-source': 7 }],
      ['no id', { 'cloudEvents:specversion': '1.0', 'cloudEvents:source': '/s' }],
    ])('in headers, with %s', (_, headers) => {
      const { reason, error } = refused({ messageId: 'native', headers, body: Buffer.from('{"a":1}') })
      expect(reason).toBe('undecodable')
      expect(error).toMatch(/a CloudEvent needs (id|source), a string/)
    })

    test('what a user or a framework says about the id is believed first', () => {
      expect(item(structured({ id: 42, source: undefined }), { identify: () => 'mine' }).mark.messageId).toBe('mine')
      const framework = { ...structured({ id: 42 }), headers: { 'rbs2-msg-id': 'r-1' } }
      expect(item(framework).mark.messageId).toBe('r-1')
    })
  })

  test('R34: identityOf without an event or an extractor looks at headers and properties only', () => {
    expect(identityOf(delivered({ messageId: 'm-1', body: Buffer.from('{"id":"no"}') }), undefined)).toEqual({
      id: 'm-1',
      source: '',
    })
  })
})
