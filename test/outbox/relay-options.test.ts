import { expect, test } from 'vitest'
import { memoryBroker } from '../../src/brokers/memory/index.ts'
import { relaySettings } from '../../src/outbox/relay-options.ts'
import { memory } from '../../src/stores/memory/index.ts'

const settings = (options: object) => relaySettings({ store: memory().outbox, broker: memoryBroker(), ...options })

test.each([
  ['broker', { broker: {} }],
  ['leaseMs', { leaseMs: 499 }],
  ['publishTimeoutMs', { leaseMs: 3_000, publishTimeoutMs: 1_001 }],
  ['batchMax', { batchMax: 0 }],
  ['windowMax', { windowMax: 1.5 }],
  ['bytesMax', { bytesMax: '1' }],
  ['pollMs', { pollMs: Number.NaN }],
  ['strictOrder', { strictOrder: 'yes' }],
  ['history', { history: 1 }],
  ['stopKeyOnQuarantine', { stopKeyOnQuarantine: 'order.created.v1' }],
  ['stopKeyOnQuarantine', { stopKeyOnQuarantine: [5] }],
  ['backoff', { backoff: 5 }],
  ['backoff', { backoff: { min: 5 } }],
  ['backoff.maxMs', { backoff: { minMs: 100, maxMs: 5 } }],
  ['stopTimeoutMs', { stopTimeoutMs: -1 }],
  ['onEvent', { onEvent: 'log' }],
  ['pollms', { pollms: 5 }],
])('a wrong %s of a relay is a TypeError that names it', (option, options) => {
  expect(() => settings(options)).toThrow(
    expect.objectContaining({ name: 'TypeError', message: expect.stringContaining(option) }),
  )
})

test('a quarantined message stops its key for every topic, for those that are named, or for none', () => {
  expect(settings({ stopKeyOnQuarantine: true }).stopsKey('a')).toBe(true)
  expect(settings({ stopKeyOnQuarantine: ['a'] }).stopsKey('a')).toBe(true)
  expect(settings({ stopKeyOnQuarantine: ['a'] }).stopsKey('b')).toBe(false)
  expect(settings({}).stopsKey('a')).toBe(false)
})
