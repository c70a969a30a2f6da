import { describe, expect, test } from 'vitest'
import type { ConsumerOptions } from '../../src/inbox/options.ts'
import { checkedSettings } from '../../src/inbox/settings.ts'
import { OnceError } from '../../src/shared/errors.ts'

const DAY_MS = 86_400_000
const good: ConsumerOptions<unknown> = {
  name: 'billing',
  source: { name: 'orders', subscribe: () => Promise.reject(new Error('not here')) },
  handle: () => {},
}
const settings = (options: object) => checkedSettings({ ...good, ...options })

describe('options of a consumer', () => {
  test.each<[string, object]>([
    ['name', { name: '' }],
    ['name', { name: 'a b' }],
    ['name', { name: 'x'.repeat(101) }],
    ['source', { source: {} }],
    ['handle', { handle: undefined }],
    ['handle', { handle: 'no' }],
    ['handle', { handleBatch: () => {} }],
    ['handlers', { handle: undefined, handlers: {} }],
    ['handlers', { handle: undefined, handlers: { a: 1 } }],
    ['handlers', { handle: undefined, handlers: null }],
    ['identify', { identify: 'id' }],
    ['typeOf', { typeOf: 1 }],
    ['contentOf', { contentOf: 1 }],
    ['orderBy', { orderBy: 'key' }],
    ['stopKeyOnWaiting', { stopKeyOnWaiting: true }],
    ['batchMax', { batchMax: 10 }],
    ['concurrency', { concurrency: 0 }],
    ['prefetch', { prefetch: 65_536 }],
    ['decode', { decode: 'xml' }],
    ['eager', { eager: 1 }],
    ['stopKeyOnWaiting', { orderBy: true, stopKeyOnWaiting: 'no' }],
    ['attemptsMax', { attemptsMax: 0 }],
    ['backoff', { backoff: 5 }],
    ['backoff', { backoff: { min: 5 } }],
    ['backoff.maxMs', { backoff: { minMs: 100, maxMs: 5 } }],
    ['isolation', { isolation: 'chaos' }],
    ['handlerTimeoutMs', { handlerTimeoutMs: 5 }],
    ['leaseMs', { leaseMs: 10 }],
    ['pollMs', { pollMs: 1 }],
    ['retentionMs', { retentionMs: -1 }],
    ['stopTimeoutMs', { stopTimeoutMs: -1 }],
    ['onEvent', { onEvent: 'log' }],
    ['prefech', { prefech: 5 }],
  ])('R39: a wrong %s is told by name', (option, options) => {
    expect(() => settings(options)).toThrow(TypeError)
    expect(() => settings(options)).toThrow(option)
  })

  test('B81, R39: retention below the longest way a message can take is refused', () => {
    const tooShort = () => settings({ retentionMs: 7 * DAY_MS })
    expect(tooShort).toThrow(OnceError)
    expect(tooShort).toThrow('HORIZON_TOO_SHORT')
    expect(() => settings({ retentionMs: DAY_MS, horizonMs: 3_600_000 })).not.toThrow()
    expect(() => settings({ retentionMs: 3_600_000, horizonMs: 3_600_000 })).toThrow('HORIZON_TOO_SHORT')
    expect(() => settings({ attemptsMax: 1_000, backoff: { minMs: 1, maxMs: DAY_MS } })).toThrow('HORIZON_TOO_SHORT')
  })

  test('R34: the defaults are those of the documentation', () => {
    const { run, due, prefetch, concurrency, stopTimeoutMs, item } = settings({})
    expect({ prefetch, concurrency, stopTimeoutMs, decode: item.decode }).toEqual({
      prefetch: 20,
      concurrency: 10,
      stopTimeoutMs: 30_000,
      decode: 'json',
    })
    expect(run.open.retentionMs).toBe(14 * DAY_MS)
    expect(run).toMatchObject({ attemptsMax: 10, backoff: { minMs: 1_000, maxMs: 300_000 }, handlerTimeoutMs: 300_000 })
    expect(due).toMatchObject({ leaseMs: 30_000, pollMs: 1_000, headsOnly: false, types: undefined })
    const batch = settings({ handle: undefined, handleBatch: () => {} })
    expect([batch.batch?.max, batch.concurrency, batch.prefetch]).toEqual([250, 2, 1_000])
  })

  test('I8: a key stops behind a waiting message when order is asked for, unless told otherwise', () => {
    expect(settings({ orderBy: true }).due.headsOnly).toBe(true)
    expect(settings({ orderBy: true }).run.stopKeyOnWaiting).toBe(true)
    expect(settings({ orderBy: () => 'k', stopKeyOnWaiting: false }).run.stopKeyOnWaiting).toBe(false)
  })

  test('R34: names of handlers are types, not members of Object', () => {
    const { workFor } = settings({ handle: undefined, handlers: { a: () => {} } })
    expect(workFor('a')).toBeTypeOf('function')
    expect(workFor('constructor')).toBeUndefined()
    expect(workFor('__proto__')).toBeUndefined()
  })
})
