import { afterEach, describe, expect, test } from 'vitest'
import {
  createOperation,
  memoryStorage,
  type OperationOptions,
  type OperationStorage,
  pendingOperations,
  resumeOperations,
  type SendOperation,
} from '../../src/client/index.ts'
import { answer, jumpingClock, problem, repeatable, reset, type Scripted, type Step, scripted } from './scripted.ts'

const open: Scripted[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()))
})

const clock = jumpingClock()
/** The first wait is behind the deadline, so the call ends after one attempt. */
const once = { deadlineMs: 5_000, backoff: { baseMs: 20_000 } }

/** Operations are functions; what the tests compare is what they say of themselves. */
const plain = <T extends { readonly operation: SendOperation }>(found: readonly T[]) =>
  found.map(({ operation, ...rest }) => ({ ...rest, key: operation.key, label: operation.label }))

async function scene(steps: readonly Step[]) {
  const server = await scripted(steps, clock)
  open.push(server)
  const storage = memoryStorage()
  const create = (options: Partial<OperationOptions> = {}) =>
    createOperation({ url: `${server.url}/orders`, body: { cents: 1 }, storage, ...repeatable(clock), ...options })
  return { server, storage, create, resume: { storage, ...repeatable(clock) } }
}

/** One pending operation, sent once without an answer. */
async function onePending(steps: readonly Step[], options: Partial<OperationOptions> = {}) {
  const found = await scene([reset, ...steps])
  const send = found.create({ label: 'cart 5', headers: { 'x-version': '1' }, ...options, ...once })
  expect(await send()).toMatchObject({ state: 'gaveUp', attempts: 1 })
  return { ...found, send, text: (await found.storage.read(send.key)) ?? '' }
}

describe('written down', () => {
  test('R01: when the first request arrives the operation lies in the storage, as sent; after the answer it is gone', async () => {
    const storage = memoryStorage()
    const seen: unknown[] = []
    const { create } = await scene([
      async (response, _request, arrived) => {
        const { operations } = await pendingOperations({ storage })
        seen.push(
          operations.map(({ key, label, method }) => [key, label, method]),
          arrived.headers['idempotency-key'],
        )
        response.end()
      },
    ])
    const send = create({ storage, label: 'cart 5' })
    expect(await storage.entries()).toEqual([])
    expect((await send()).state).toBe('completed')
    expect(seen).toEqual([[[send.key, 'cart 5', 'POST']], send.key])
    expect(await storage.entries()).toEqual([])
  })

  test('what cannot be written down is not sent', async () => {
    const { server, create } = await scene([answer(201)])
    const full = { ...memoryStorage(), write: () => Promise.reject(new Error('quota')) }
    await expect(create({ storage: full })()).rejects.toMatchObject({
      code: 'STORAGE_FAILED',
      cause: new Error('quota'),
    })
    expect(server.arrived).toEqual([])
  })

  test('a storage that fails later does not hide the answer, and the result says so', async () => {
    const { create } = await scene([answer(500), answer(201), answer(201)])
    const storage = memoryStorage()
    let writes = 0
    const failing: OperationStorage = {
      ...storage,
      write: (id, text) => ((writes += 1) === 1 ? storage.write(id, text) : Promise.reject(new Error('full'))),
      remove: () => Promise.reject(new Error('read-only')),
    }
    const result = await create({ storage: failing })()
    expect(result).toMatchObject({ state: 'completed', attempts: 2, storageError: new Error('read-only') })
    // Still there, so it is sent again: the key makes that harmless.
    const { results } = await resumeOperations({ storage, ...repeatable(clock) })
    expect(results.map(({ result: { state } }) => state)).toEqual(['completed'])
  })

  test('a key under which another request is pending, or nothing readable lies, is refused and nothing is sent', async () => {
    const { server, create, storage } = await scene([reset])
    const key = 'invoice:1'
    expect((await create({ key, ...once })()).state).toBe('gaveUp')
    await expect(create({ key, body: { cents: 2 } })()).rejects.toMatchObject({ code: 'KEY_IN_USE' })
    await storage.write('invoice:2', '{}')
    await expect(create({ key: 'invoice:2' })()).rejects.toMatchObject({ code: 'KEY_IN_USE' })
    expect(await storage.read('invoice:2')).toBe('{}')
    expect(server.arrived).toHaveLength(1)
  })

  test('the same request under the same key is the same operation, with its count of attempts', async () => {
    const { server, create } = await scene([reset, answer(201)])
    expect(await create({ key: 'invoice:1', ...once })()).toMatchObject({ state: 'gaveUp', attempts: 1 })
    expect(await create({ key: 'invoice:1' })()).toMatchObject({ state: 'completed', attempts: 2 })
    expect(server.arrived).toHaveLength(2)
  })
})

describe('resuming', () => {
  test('R01, B123: after a restart key, bytes, address and headers are those of the first attempt; credentials are new', async () => {
    const { server, resume, send } = await onePending([answer(201, { orderId: 7 })], {
      attemptHeaders: () => ({ authorization: 'old' }),
    })
    const report = await resumeOperations({ ...resume, attemptHeaders: () => ({ authorization: 'new' }) })
    expect(plain(report.results)).toMatchObject([
      { key: send.key, label: 'cart 5', result: { state: 'completed', attempts: 2 } },
    ])
    const [first, second] = server.arrived.map(({ headers, ...rest }) => ({
      ...rest,
      headers: { key: headers['idempotency-key'], type: headers['content-type'], version: headers['x-version'] },
    }))
    expect({ ...second, at: 0 }).toEqual({ ...first, at: 0 })
    expect(server.arrived.map(({ headers }) => headers['authorization'])).toEqual(['old', 'new'])
    expect(await resume.storage.entries()).toEqual([])
  })

  test('R01: binary bodies and FormData come back byte for byte, with their boundary', async () => {
    const form = new FormData()
    form.set('f', new Blob([Uint8Array.from({ length: 20_000 }, (_, index) => index % 256)]))
    for (const body of [form, Uint8Array.from([0, 255, 128])]) {
      const { server, resume } = await onePending([answer(201)], { body })
      await resumeOperations(resume)
      expect(server.arrived[1]?.body).toEqual(server.arrived[0]?.body)
      expect(server.arrived[1]?.headers['content-type']).toBe(server.arrived[0]?.headers['content-type'])
    }
  })

  test('a Retry-After is kept over a restart', async () => {
    const { server, create, resume } = await scene([answer(503, {}, { 'retry-after': '600' }), answer(201)])
    await create()()
    const before = clock.now()
    expect((await resumeOperations(resume)).results).toMatchObject([{ result: { reason: 'deadline', attempts: 1 } }])
    expect((await resumeOperations({ ...resume, deadlineMs: 700_000 })).results).toMatchObject([
      { result: { state: 'completed' } },
    ])
    expect((server.arrived[1]?.at ?? 0) - before).toBeGreaterThanOrEqual(600_000)
  })

  test('an unknown outcome is listed and not sent; asked for by name it is sent with its key', async () => {
    const { server, create, resume } = await scene([problem(409, { code: 'OUTCOME_UNKNOWN' }), answer(201)])
    const send = create()
    expect((await send()).state).toBe('unknown')
    const report = await resumeOperations(resume)
    expect(report.results).toEqual([])
    expect(report.unknown.map(({ key, unknown }) => [key, unknown])).toEqual([[send.key, 'outcome-unknown']])
    expect(server.arrived).toHaveLength(1)
    expect(await report.unknown[0]?.()).toMatchObject({ state: 'completed', attempts: 2 })
    expect(await resume.storage.entries()).toEqual([])
  })

  test('several are sent a few at a time, the oldest first; one that throws does not stop the others', async () => {
    let most = 0
    let now = 0
    const slow: Step = (response) => {
      most = Math.max(most, (now += 1))
      setImmediate(() => {
        now -= 1
        response.end()
      })
    }
    const { server, storage, create, resume } = await scene([...Array(6).fill(reset), ...Array(6).fill(slow)] as Step[])
    for (let index = 0; index < 6; index += 1) {
      clock.advance(1)
      await create({ key: `k-${index}`, ...once })()
    }
    const report = await resumeOperations({
      ...resume,
      atOnce: 2,
      onAnswer: ({ key }) => {
        if (key === 'k-2') throw new Error('mine')
      },
    })
    expect(most).toBeLessThanOrEqual(2)
    expect(report.results.map(({ operation }) => operation.key).sort()).toEqual(['k-0', 'k-1', 'k-3', 'k-4', 'k-5'])
    expect(plain(report.failed)).toEqual([{ key: 'k-2', label: null, error: new Error('mine') }])
    expect(server.arrived.slice(6, 8).map(({ headers }) => headers['idempotency-key'])).toEqual(['k-0', 'k-1'])
    expect((await storage.entries()).map(({ id }) => id)).toEqual(['k-2'])
  })

  test('what has left the storage meanwhile is not sent: forgotten elsewhere is forgotten', async () => {
    const { server, resume } = await onePending([])
    const [operation] = (await pendingOperations(resume)).operations
    await resume.storage.remove(operation?.key ?? '')
    expect(await operation?.()).toMatchObject({ state: 'gaveUp', reason: 'gone' })
    expect(server.arrived).toHaveLength(1)
    expect(await resume.storage.entries()).toEqual([])
  })
})

describe('entries that cannot be trusted are reported, stay, and are never sent', () => {
  const reseal = (text: string, change: (outer: Record<string, unknown>) => void): string => {
    const outer = JSON.parse(text) as Record<string, unknown>
    change(outer)
    return JSON.stringify(outer)
  }
  const inside = (name: string, value: unknown) => (text: string) =>
    reseal(text, (outer) => {
      ;(outer['operation'] as Record<string, unknown>)[name] = value
    })

  test.each<[string, (text: string) => string, string]>([
    ['cut off', (text) => text.slice(0, -20), 'damaged'],
    ['cut to nothing', () => '', 'foreign'],
    ['one digit of the body changed', (text) => text.replace(/("body":")(.)/, '$1A$2'), 'damaged'],
    ['another address', inside('url', 'https://evil.example/'), 'damaged'],
    ['another key', inside('key', 'k'), 'damaged'],
    ['one member more', inside('more', 1), 'damaged'],
    ['no operation', (text) => reseal(text, (outer) => delete outer['operation']), 'damaged'],
    ['a later version', (text) => reseal(text, (outer) => Object.assign(outer, { version: 2 })), 'newer'],
    ['somebody else’s JSON', () => '{"key":"k","url":"https://a.example","body":"x"}', 'foreign'],
    ['no JSON', () => 'hello', 'foreign'],
    ['a list', () => '[]', 'foreign'],
    ['polluting names', () => '{"__proto__":{"format":"effectively-once/operation"}}', 'foreign'],
  ])('T10: %s', async (_name, change, reason) => {
    const { server, resume, send, text } = await onePending([])
    const changed = change(text)
    await resume.storage.write(send.key, changed)
    const unreadable = [{ id: send.key, reason, text: changed }]
    expect(await resumeOperations(resume)).toEqual({ results: [], failed: [], unknown: [], unreadable })
    expect(await pendingOperations(resume)).toEqual({ operations: [], unreadable })
    expect(server.arrived).toHaveLength(1)
    expect(await resume.storage.entries()).toEqual([{ id: send.key, text: changed }])
  })

  test('an entry copied under another id is damaged', async () => {
    const { resume, text, send } = await onePending([answer(201)])
    await resume.storage.write('copy', text)
    const report = await resumeOperations(resume)
    expect(report.unreadable).toMatchObject([{ id: 'copy', reason: 'damaged' }])
    expect(plain(report.results)).toMatchObject([{ key: send.key, result: { state: 'completed' } }])
  })

  test('an operation for another origin is not sent when origins are named', async () => {
    const { server, resume, send } = await onePending([answer(201)])
    const report = await resumeOperations({ ...resume, origins: ['https://shop.example'] })
    expect(report).toMatchObject({ results: [], unreadable: [{ id: send.key, reason: 'origin' }] })
    expect(server.arrived).toHaveLength(1)
    const allowed = await resumeOperations({ ...resume, origins: [server.url] })
    expect(allowed.results).toMatchObject([{ result: { state: 'completed' } }])
  })
})
