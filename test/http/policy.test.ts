/** Options: what is wrong stops the start, and says which option it is. */
import { expect, test } from 'vitest'
import { idempotency, type NodeRouteOptions } from '../../src/frameworks/node/index.ts'
import { keyTimeMs } from '../../src/http/key-time.ts'
import { fateOf } from '../../src/http/outcome.ts'
import { idOf, refOf } from '../../src/http/ref.ts'
import { createOnce } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'

const once = createOnce({ store: memory() })
const right: NodeRouteOptions = { scope: () => 'acme', operation: 'POST /orders' }
const start = (options: object) => idempotency(once, { ...right, ...options }, () => {})

test.each([
  ['scope', { scope: undefined }],
  ['scope', { scope: 'acme' }],
  ['scope', { scope: {} }],
  ['scope', { scope: { anonymous: '' } }],
  ['operation', { operation: '' }],
  ['operation', { operation: 'x'.repeat(256) }],
  ['operation', { operation: undefined }],
  ['uniqueWithin', { uniqueWithin: 'everything' }],
  ['methods', { methods: ['GET'] }],
  ['methods', { methods: [] }],
  ['required', { required: 1 }],
  ['whenInProgress', { whenInProgress: 'queue' }],
  ['waitMs', { waitMs: 0 }],
  ['waitMs', { waitMs: Number.NaN }],
  ['statusPath', { whenInProgress: 'accept' }],
  ['statusPath', { statusPath: 'operations' }],
  ['statusPath', { statusPath: '/a\r\nset-cookie: x' }],
  ['mismatchStatus', { mismatchStatus: 400 }],
  ['storeIf', { storeIf: true }],
  ['commitOn', { commitOn: [402] }],
  ['keepHeaders', { keepHeaders: ['Set-Cookie'] }],
  ['keepHeaders', { keepHeaders: ['Server-Timing'] }],
  ['keepHeaders', { keepHeaders: ['Proxy-Authorization'] }],
  ['keepHeaders', { keepHeaders: ['Access-Control-Allow-Origin'] }],
  ['keepHeaders', { keepHeaders: ['a b'] }],
  ['bodyBytesMax', { bodyBytesMax: -1 }],
  ['responseBytesMax', { responseBytesMax: 1.5 }],
  ['unstorable', { unstorable: 'ignore' }],
  ['responseRetentionMs', { responseRetentionMs: 0 }],
  ['responseRetentionMs', { responseRetentionMs: 61_000, retentionMs: 60_000 }],
  ['retentionMs', { retentionMs: -1 }],
  ['encryption', { encryption: { current: 'a', keys: {} } }],
  ['onStoreDown', { onStoreDown: 'ignore' }],
  ['timeoutMs', { timeoutMs: 0 }],
  ['isolation', { isolation: 'chaos' }],
  ['gate', { gate: 'late' }],
  ['gate', { gate: 'first-statement', mode: 'run' }],
  ['describedBy', { describedBy: 'x>; rel=evil' }],
  ['replayHeader', { replayHeader: 'a: b' }],
  ['unknown option "whenInprogress"', { whenInprogress: 'wait' }],
])('B16, T1: %s: %j', (option, options) => {
  expect(() => start(options)).toThrow(TypeError)
  expect(() => start(options)).toThrow(option)
})

test('only what createOnce made is taken', () => {
  expect(() => idempotency({} as never, right, () => {})).toThrow('createOnce')
})

test('R13, T5: every status has its fate', () => {
  const fates = (status: number) => fateOf(status, {})
  for (const status of [200, 201, 202, 204, 301, 303, 304]) expect(fates(status)).toBe('commit')
  for (const status of [400, 402, 404, 405, 409, 410, 412, 413, 418, 422, 451]) expect(fates(status)).toBe('reject')
  for (const status of [401, 403, 407, 408, 425, 429, 500, 501, 502, 503, 504, 599])
    expect(fates(status)).toBe('release')
  const always = { storeIf: () => true, commitOn: () => true }
  for (const status of [401, 403, 429, 500, 503]) expect(fateOf(status, always)).toBe('release')
  expect(fateOf(404, { storeIf: () => false })).toBe('release')
  expect(fateOf(404, { commitOn: () => true })).toBe('commit')
})

test('a reference names an operation without holding its key, and nothing else is one', () => {
  const id = 'c0ffee00-1234-5678-9abc-def012345678'
  expect(refOf(id)).toMatch(/^op_[\w-]{22}$/)
  expect(idOf(refOf(id))).toBe(id)
  for (const ref of ['', 'op_', 'op_x', `${refOf(id)}x`, `../${refOf(id)}`, refOf(id).slice(3)])
    expect(idOf(ref)).toBeUndefined()
})

test('the instant of UUIDv7 and ULID is read, other keys have none', () => {
  expect(keyTimeMs('01920000-0000-7000-8000-000000000000')).toBe(0x019200000000)
  expect(keyTimeMs('01ARZ3NDEKTSV4RRFFQ69G5FAV')).toBe(1_469_922_850_259)
  for (const key of ['8e03978e-40d5-43e8-bc93-6894a57f9324', 'order-7', '81ARZ3NDEKTSV4RRFFQ69G5FAV', '']) {
    expect(keyTimeMs(key)).toBeUndefined()
  }
})
