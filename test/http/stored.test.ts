/** Stored answers: what was put in comes out, and what was touched, moved or cut does not. */
import { randomUUID } from 'node:crypto'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { WholeResponse } from '../../src/http/response.ts'
import { decodeResponse, encodeResponse, keyRing } from '../../src/http/stored.ts'

const key = (fill: number) => new Uint8Array(32).fill(fill)
const ring = keyRing({ current: 'a', keys: { a: key(1), b: key(2) } })

const responses: fc.Arbitrary<WholeResponse> = fc.record({
  status: fc.integer({ min: 200, max: 499 }),
  headers: fc.array(fc.tuple(fc.constantFrom('content-type', 'location', 'etag'), fc.string()), { maxLength: 5 }),
  body: fc.uint8Array({ maxLength: 2_000 }),
})

const plainly = ({ status, headers, body }: WholeResponse) => ({
  status,
  headers,
  body: Buffer.from(body).toString('hex'),
})

test.each([
  ['plain', undefined],
  ['encrypted', ring],
])('I3: any answer comes back as it was, %s', (_, keys) => {
  fc.assert(
    fc.property(responses, fc.uuid(), (response, id) => {
      const decoded = decodeResponse(encodeResponse(response, id, keys), id, keys)
      expect(decoded && plainly(decoded)).toEqual(plainly(response))
    }),
  )
})

test('T2: bytes that are moved to another record do not open', () => {
  const [mine, theirs] = [randomUUID(), randomUUID()]
  const response = { status: 201, headers: [], body: Buffer.from('secret') }
  expect(decodeResponse(encodeResponse(response, mine, ring), theirs, ring)).toBeUndefined()
})

test('T2: no bit of an encrypted answer can be changed, and none of it can be cut off', () => {
  const id = randomUUID()
  const bytes = encodeResponse(
    { status: 201, headers: [['location', '/orders/7']], body: Buffer.from('secret') },
    id,
    ring,
  )
  for (let at = 0; at < bytes.byteLength * 8; at++) {
    const changed = Uint8Array.from(bytes)
    changed[at >> 3] = (changed[at >> 3] ?? 0) ^ (1 << (at & 7))
    expect(decodeResponse(changed, id, ring)).toBeUndefined()
  }
  for (let length = 0; length < bytes.byteLength; length++) {
    expect(decodeResponse(bytes.subarray(0, length), id, ring)).toBeUndefined()
  }
})

test('T2: neither text nor headers of an encrypted answer stand in its bytes', () => {
  const response = { status: 201, headers: [['location', '/orders/7']] as const, body: Buffer.from('secret') }
  const text = Buffer.from(encodeResponse(response, randomUUID(), ring)).toString('latin1')
  expect(text).not.toMatch(/secret|orders/)
})

test('SC23: a rotated key opens old answers; a removed one opens nothing', () => {
  const id = randomUUID()
  const bytes = encodeResponse({ status: 200, headers: [], body: Buffer.from('x') }, id, ring)
  const rotated = keyRing({ current: 'b', keys: { a: key(1), b: key(2) } })
  expect(decodeResponse(bytes, id, rotated)?.status).toBe(200)
  expect(decodeResponse(bytes, id, keyRing({ current: 'b', keys: { b: key(2) } }))).toBeUndefined()
  expect(decodeResponse(bytes, id, undefined)).toBeUndefined()
})

test('R41: bytes of a format that this release does not know are not guessed at', () => {
  const id = randomUUID()
  const bytes = encodeResponse({ status: 200, headers: [], body: Buffer.from('x') }, id, undefined)
  for (const version of [0, 2, 255]) {
    expect(decodeResponse(Uint8Array.from([version, ...bytes.subarray(1)]), id, undefined)).toBeUndefined()
  }
  expect(decodeResponse(new Uint8Array(0), id, undefined)).toBeUndefined()
})

test('R41: an answer stored by the first release is read', () => {
  // Format 1, plain, as it lies in databases: version, form, length of the head, head, body.
  const head = '{"status":201,"headers":[["content-type","text/plain"]]}'
  const bytes = Buffer.concat([Buffer.of(1, 0, 0, 0, 0, head.length), Buffer.from(head), Buffer.from('kept')])
  const decoded = decodeResponse(bytes, randomUUID(), undefined)
  expect(decoded && plainly(decoded)).toEqual({
    status: 201,
    headers: [['content-type', 'text/plain']],
    body: Buffer.from('kept').toString('hex'),
  })
})

test('T10: a key ring has no key named after a prototype', () => {
  const id = randomUUID()
  for (const name of ['__proto__', 'constructor', 'toString']) {
    const bytes = Buffer.concat([Buffer.of(1, 1, name.length), Buffer.from(name), Buffer.alloc(40)])
    expect(decodeResponse(bytes, id, ring)).toBeUndefined()
  }
})

test.each([
  [{ current: 'a', keys: {} }],
  [{ current: 'b', keys: { a: key(1) } }],
  [{ current: 'a', keys: { a: new Uint8Array(16) } }],
  [{ current: 'a', keys: { a: 'secret' } }],
  [{ current: 'a b', keys: { 'a b': key(1) } }],
  [{ current: 'a', keys: null }],
  [{ current: 'a', keys: { a: key(1) }, algorithm: 'none' }],
])('a wrong key ring stops the start: %j', (encryption) => {
  expect(() => keyRing(encryption as never)).toThrow(TypeError)
})
