import { afterEach, describe, expect, test } from 'vitest'
import {
  createOperation,
  memoryStorage,
  type OperationOptions,
  type OperationStorage,
  retryBudget,
} from '../../src/client/index.ts'
import {
  answer,
  jumpingClock,
  problem,
  repeatable,
  reset,
  type Scripted,
  type Step,
  scripted,
  silence,
  torn,
} from './scripted.ts'

const open: Scripted[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()))
})

const body = { customer: 'c-1', cents: 4200 }

/** A server with this script, and an operation for it. */
async function scene(steps: readonly Step[], options: Partial<OperationOptions> = {}) {
  const clock = jumpingClock()
  const server = await scripted(steps, clock)
  open.push(server)
  const storage = memoryStorage()
  const send = createOperation({ url: `${server.url}/orders`, body, storage, ...repeatable(clock), ...options })
  return { clock, server, storage: options.storage ?? storage, send }
}

const created = answer(201, { orderId: 7 })
const pendingIn = async (storage: OperationStorage) => (await storage.entries()).length

describe('retrying', () => {
  test('B123, B126, R01: after 503, 500, 502, 504, a reset and a torn answer every attempt had one key and the same bytes', async () => {
    const { server, send, storage } = await scene([
      problem(503, { code: 'STORE_UNAVAILABLE' }, { 'retry-after': '1' }),
      answer(500),
      answer(502),
      answer(504),
      reset,
      torn,
      created,
    ])
    const result = await send()
    expect(result).toMatchObject({ state: 'completed', attempts: 7, replayed: false })
    expect(new Set(server.arrived.map(({ headers }) => headers['idempotency-key']))).toEqual(new Set([send.key]))
    expect(new Set(server.arrived.map((one) => one.body.toString('hex'))).size).toBe(1)
    expect(new Set(server.arrived.map(({ headers }) => headers['content-type']))).toEqual(new Set(['application/json']))
    expect(JSON.parse(server.arrived[6]?.body.toString() ?? '')).toEqual(body)
    expect(await pendingIn(storage)).toBe(0)
  })

  test('B125: the answer holds bytes of one attempt only', async () => {
    const { send } = await scene([torn, created])
    const result = await send()
    expect(result.state === 'completed' && (await result.response.json())).toEqual({ orderId: 7 })
  })

  test('B123: another operation has another key', async () => {
    const { send } = await scene([])
    const { send: other } = await scene([])
    expect(send.key).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    expect(other.key).not.toBe(send.key)
  })

  test('an attempt without an answer in time is cut off and made again', async () => {
    const { server, send } = await scene([silence, created], { attemptTimeoutMs: 100 })
    expect(await send()).toMatchObject({ state: 'completed', attempts: 2 })
    expect(server.arrived).toHaveLength(2)
  })

  test('without a word from the server the waits are full jitter that doubles up to its cap', async () => {
    const steps = Array.from({ length: 9 }, () => answer(500))
    const { clock, send } = await scene([...steps, created], { deadlineMs: 200_000 })
    expect((await send()).state).toBe('completed')
    expect(clock.waits).toEqual([125, 250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000])
  })

  test.each([
    [problem(409, { code: 'OPERATION_IN_PROGRESS' }, { 'retry-after': '3' }), 3_000],
    [problem(503, { code: 'COMMIT_UNRESOLVED' }, { 'retry-after': '2' }), 2_000],
    [problem(503, { code: 'TOO_BUSY' }, { 'retry-after': '4' }), 4_000],
    [problem(503, { code: 'LEASE_LOST' }, { 'retry-after': '1' }), 1_000],
    [answer(429, {}, { 'retry-after': 'Wed, 21 Oct 2026 07:28:30 GMT' }), 30_000],
    [answer(425, {}, { 'retry-after': '5' }), 5_000],
    [answer(503, {}, { 'retry-after': '7' }), 7_000],
  ])('B127: no attempt comes before Retry-After (%#)', async (step, floorMs) => {
    for (const random of [() => 0, () => 0.999]) {
      const { server, send } = await scene([step, created], { random })
      expect((await send()).state).toBe('completed')
      const [first, second] = server.arrived
      expect((second?.at ?? 0) - (first?.at ?? 0)).toBeGreaterThanOrEqual(floorMs)
      expect((second?.at ?? 0) - (first?.at ?? 0)).toBeLessThanOrEqual(floorMs * 1.2)
    }
  })

  test('values of Retry-After that are none leave the jitter alone', async () => {
    const { clock, send } = await scene([answer(503, {}, { 'retry-after': '1.5' }), created])
    await send()
    expect(clock.waits).toEqual([125])
  })
})

describe('final answers', () => {
  test('B127: a replay is told apart from a fresh answer', async () => {
    const { send } = await scene([answer(201, { orderId: 7 }, { 'idempotent-replayed': 'true' })])
    expect(await send()).toMatchObject({ state: 'completed', replayed: true, attempts: 1 })
  })

  test('B127: a mismatch is refused, is not retried and gets no new key', async () => {
    for (const status of [422, 409]) {
      const { server, send, storage } = await scene([
        problem(status, { code: 'IDEMPOTENCY_KEY_REUSED', title: 'reused', retryable: false, safe_new_key: false }),
      ])
      const result = await send()
      expect(result).toMatchObject({ state: 'refused', status, safeNewKey: false, problem: { title: 'reused' } })
      expect(server.arrived).toHaveLength(1)
      expect(await pendingIn(storage)).toBe(0)
    }
  })

  test.each(['IDEMPOTENCY_KEY_MISSING', 'IDEMPOTENCY_KEY_INVALID', 'NOT_APPLIED'])(
    '%s is refused and allows a new key',
    async (code) => {
      const { send, server } = await scene([problem(409, { code })])
      expect(await send()).toMatchObject({ state: 'refused', safeNewKey: true, problem: { code } })
      expect(server.arrived).toHaveLength(1)
    },
  )

  test("the service's own no is final, with its status and bytes", async () => {
    const { send } = await scene([answer(402, { reason: 'credit' }, { 'idempotent-replayed': 'true' })])
    const result = await send()
    expect(result).toMatchObject({ state: 'refused', status: 402, safeNewKey: true, replayed: true })
    expect(result.state === 'refused' && (await result.response.json())).toEqual({ reason: 'credit' })
  })

  test('204, redirects, empty, null and binary answers are completed as they are', async () => {
    const bytes = Buffer.from([0, 255, 13, 10, 128])
    const plain =
      (status: number, content: Buffer | undefined, headers: Record<string, string> = {}): Step =>
      (response) => {
        response.writeHead(status, headers)
        response.end(content)
      }
    const { send: none } = await scene([plain(204, undefined)])
    expect(await none()).toMatchObject({ state: 'completed', response: { status: 204, body: null } })
    const { send: elsewhere } = await scene([plain(303, undefined, { location: '/orders/7' })])
    const redirected = await elsewhere()
    expect(redirected.state === 'completed' && redirected.response.headers.get('location')).toBe('/orders/7')
    for (const content of [Buffer.alloc(0), Buffer.from('null'), Buffer.from('0'), bytes]) {
      const { send } = await scene([plain(200, content)])
      const result = await send()
      expect(result.state === 'completed' && Buffer.from(await result.response.arrayBuffer())).toEqual(content)
    }
  })

  test('a permanent redirect is not taken for an outcome', async () => {
    const { send } = await scene([answer(308, {}, { location: '/v2/orders' })])
    expect(await send()).toMatchObject({ state: 'refused', status: 308, safeNewKey: null })
  })

  test('an answer over responseBytesMax is completed without its body, and says so', async () => {
    const { send } = await scene([answer(201, 'x'.repeat(5_000))], { responseBytesMax: 1_000 })
    const result = await send()
    expect(result).toMatchObject({ state: 'completed', bodyOmitted: true, response: { status: 201 } })
    expect(result.state === 'completed' && (await result.response.text())).toBe('')
  })

  test('calls at the same time and after the answer send nothing more and get readable responses', async () => {
    const { server, send } = await scene([created])
    const results = [...(await Promise.all([send(), send()])), await send()]
    for (const result of results) {
      expect(result.state === 'completed' && (await result.response.json())).toEqual({ orderId: 7 })
    }
    expect(server.arrived).toHaveLength(1)
  })

  test('onAnswer comes before the operation leaves the storage; when it throws the operation stays', async () => {
    const storage = memoryStorage()
    let fail = true
    const seen: unknown[] = []
    const { send } = await scene([created, created], {
      storage,
      onAnswer: async (found) => {
        seen.push([await found.response.json(), await pendingIn(storage)])
        if (fail) throw new Error('disk full')
      },
    })
    await expect(send()).rejects.toThrow('disk full')
    expect(await pendingIn(storage)).toBe(1)
    fail = false
    const result = await send()
    expect(result.state === 'completed' && (await result.response.json())).toEqual({ orderId: 7 })
    expect(seen).toEqual([
      [{ orderId: 7 }, 1],
      [{ orderId: 7 }, 1],
    ])
    expect(await pendingIn(storage)).toBe(0)
  })
})

describe('unknown outcomes', () => {
  test.each([
    ['OUTCOME_UNKNOWN', 409, 'outcome-unknown'],
    ['RESULT_UNAVAILABLE', 409, 'result-unavailable'],
    ['OPERATION_PARKED', 409, 'parked'],
    ['KEY_EXPIRED', 412, 'key-expired'],
  ])('B127: %s stops, even with Retry-After, and stays in the storage', async (code, status, reason) => {
    const { server, send, storage } = await scene([
      problem(Number(status), { code, operation_state: 'completed', operation_ref: 'r-1' }, { 'retry-after': '1' }),
    ])
    expect(await send()).toMatchObject({
      state: 'unknown',
      reason,
      problem: { code, operationState: 'completed', operationRef: 'r-1' },
    })
    expect(server.arrived).toHaveLength(1)
    expect(await pendingIn(storage)).toBe(1)
    await send.forget()
    expect(await pendingIn(storage)).toBe(0)
  })

  test('R39: an operation first sent longer ago than its lifetime is not sent again', async () => {
    const { clock, server, send, storage } = await scene([answer(500), created], { deadlineMs: 100, lifetimeMs: 5_000 })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
    clock.advance(5_000)
    expect(await send()).toMatchObject({ state: 'unknown', reason: 'lifetime', attempts: 1 })
    expect(server.arrived).toHaveLength(1)
    expect(await pendingIn(storage)).toBe(1)
  })
})

describe('giving up', () => {
  test('nothing is sent at or after the deadline, and a Retry-After behind it ends the call at once', async () => {
    const { clock, server, send } = await scene([answer(503, {}, { 'retry-after': '120' }), created])
    const start = clock.now()
    expect(await send()).toMatchObject({
      state: 'gaveUp',
      reason: 'deadline',
      notBeforeAt: start + 120_000,
      last: { kind: 'answer', status: 503 },
    })
    expect(clock.waits).toEqual([])
    expect(server.arrived).toHaveLength(1)

    // Calling again does not make it earlier.
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
    expect(server.arrived).toHaveLength(1)
    expect(await send({ deadlineMs: 200_000 })).toMatchObject({ state: 'completed', attempts: 2 })
    expect(server.arrived[1]?.at).toBeGreaterThanOrEqual(start + 120_000)
  })

  test('a Retry-After without end is not taken for none, whatever the jitter', async () => {
    const never = answer(503, {}, { 'retry-after': '9'.repeat(400) })
    const { server, send } = await scene([never, created], { random: () => 0 })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
    expect(server.arrived).toHaveLength(1)
  })

  test('a clock that is set back while it waits or sends makes the call no longer', async () => {
    const setBack: (() => void)[] = []
    const later = answer(503, {}, { 'retry-after': '5' })
    const silentAndBack = () => setBack.pop()?.()
    const { clock, server, send } = await scene([later, silentAndBack, later, created], {
      deadlineMs: 20_000,
      attemptTimeoutMs: 50,
    })
    const anHour = () => clock.advance(-3_600_000)
    setBack.push(anHour, anHour)
    const sleep = clock.sleep.bind(clock)
    Object.assign(clock, {
      async sleep(ms: number, signal?: AbortSignal) {
        await sleep(ms, signal)
        if (setBack.length === 2) setBack.pop()?.()
      },
    })
    expect(await send()).toMatchObject({ state: 'completed', attempts: 4 })
    expect(server.arrived).toHaveLength(4)
    expect(clock.waits.reduce((sum, wait) => sum + wait, 0)).toBeLessThan(20_000)
  })

  test('R39: with a clock that is off by more than its lifetime an operation is not sent again', async () => {
    const { clock, server, send } = await scene([answer(500), created], { deadlineMs: 100, lifetimeMs: 5_000 })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
    clock.advance(-60_000)
    expect(await send()).toMatchObject({ state: 'unknown', reason: 'lifetime', attempts: 1 })
    expect(server.arrived).toHaveLength(1)
  })

  test('times longer than a timer counts are as long as one', async () => {
    const { server, send } = await scene([(response) => void setImmediate(() => response.writeHead(201).end('{}'))], {
      attemptTimeoutMs: Number.MAX_SAFE_INTEGER,
      deadlineMs: Number.MAX_SAFE_INTEGER,
    })
    expect(await send()).toMatchObject({ state: 'completed', attempts: 1 })
    expect(server.arrived).toHaveLength(1)
  })

  test('whatever the jitter, no attempt starts after the deadline', async () => {
    for (const random of [() => 0, () => 0.3, () => 0.999]) {
      const budget = retryBudget({ tokens: 1_000_000 })
      const steps = Array.from({ length: 300 }, () => answer(503, {}, { 'retry-after': '1' }))
      const { clock, server, send } = await scene(steps, { random, deadlineMs: 20_000, budget })
      const deadlineAt = clock.now() + 20_000
      expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline' })
      expect(server.arrived.length).toBeGreaterThan(5)
      expect(server.arrived.every(({ at }) => at < deadlineAt)).toBe(true)
    }
  })

  test('an attempt on its way at the deadline is cut off and the operation stays pending', async () => {
    const { send, storage } = await scene([silence], { deadlineMs: 80 })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'deadline', last: { kind: 'timeout' }, attempts: 1 })
    expect(await pendingIn(storage)).toBe(1)
  })

  test('an empty retry budget ends the call; first attempts stay free and answers refill it', async () => {
    const budget = retryBudget({ tokens: 12 })
    const { server, send } = await scene([answer(500), answer(500), answer(500)], { budget })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'budget', attempts: 3 })
    expect(server.arrived).toHaveLength(3)
    const { send: other } = await scene([created, created, created], { budget })
    expect((await other()).state).toBe('completed')
    for (let n = 0; n < 3; n += 1) budget.refund(undefined)
    const { send: third } = await scene([answer(500), created], { budget })
    expect((await third()).state).toBe('completed')
  })

  test('an abort ends a wait, an attempt, and a call that has not begun; the operation stays pending', async () => {
    const before = AbortSignal.abort()
    const { server, send, storage } = await scene([created])
    expect(await send({ signal: before })).toMatchObject({ state: 'gaveUp', reason: 'aborted', attempts: 0 })
    expect(server.arrived).toHaveLength(0)
    expect(await pendingIn(storage)).toBe(1)

    const during = new AbortController()
    const cut: Step = () => during.abort()
    const { send: second } = await scene([cut])
    expect(await second({ signal: during.signal })).toMatchObject({ state: 'gaveUp', reason: 'aborted', attempts: 1 })

    const waiting = new AbortController()
    const clock = { now: () => Date.now(), sleep: async () => waiting.abort() }
    const { send: third } = await scene([answer(500)], { clock })
    expect(await third({ signal: waiting.signal })).toMatchObject({ state: 'gaveUp', reason: 'aborted', attempts: 1 })
  })

  test('401 keeps the operation for fresh credentials; they differ between attempts, the rest does not', async () => {
    let token = 'old'
    const { server, send, storage } = await scene([answer(401), created], {
      headers: { 'X-Api-Version': '3' },
      attemptHeaders: () => ({ authorization: `Bearer ${token}` }),
    })
    expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'login' })
    expect(JSON.stringify(await storage.entries())).not.toContain('Bearer')
    token = 'new'
    expect((await send()).state).toBe('completed')
    expect(server.arrived.map(({ headers }) => headers['authorization'])).toEqual(['Bearer old', 'Bearer new'])
    expect(server.arrived.map(({ headers }) => headers['x-api-version'])).toEqual(['3', '3'])
    expect(new Set(server.arrived.map(({ headers }) => headers['idempotency-key'])).size).toBe(1)
  })

  test('a service that is set up wrongly is not hammered; the operation waits for its repair', async () => {
    for (const code of ['SCHEMA_MISSING', 'STEP_CHANGED', 'OUTCOME_TOO_LARGE']) {
      const { server, send, storage } = await scene([problem(500, { code }), created])
      expect(await send()).toMatchObject({ state: 'gaveUp', reason: 'fault', last: { problem: { code } } })
      expect(server.arrived).toHaveLength(1)
      expect(await pendingIn(storage)).toBe(1)
      expect((await send()).state).toBe('completed')
    }
  })

  test('attemptHeaders that fail are a failed attempt in which nothing was sent', async () => {
    let calls = 0
    const { server, send } = await scene([created], {
      attemptHeaders: () => {
        calls += 1
        if (calls === 1) throw new Error('no token')
        return {}
      },
    })
    expect(await send()).toMatchObject({ state: 'completed', attempts: 1 })
    expect(server.arrived).toHaveLength(1)
  })
})
