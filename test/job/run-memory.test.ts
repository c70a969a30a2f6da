import { expect, test } from 'vitest'
import { createOnce, found, rejected, stillUnknown } from '../../src/index.ts'
import { memory } from '../../src/stores/memory/index.ts'
import { fakeProvider } from '../../src/testing/index.ts'

async function world(options: Parameters<typeof fakeProvider>[0] = {}) {
  const store = memory()
  const once = createOnce({ store })
  const provider = await fakeProvider(options)
  return { store, once, provider, [Symbol.asyncDispose]: () => provider.stop() }
}

async function charge(url: string, request: object, key: string, signal: AbortSignal) {
  const response = await fetch(`${url}/effects`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify(request),
    signal,
  })
  const body: unknown = await response.json().catch(() => undefined)
  if (!response.ok) throw Object.assign(new Error('refused'), { status: response.status, headers: response.headers })
  return body as { id: string }
}

test('R16, I10: a keyed effect whose answer was lost is charged once', async () => {
  await using w = await world()
  w.provider.fault({ kind: 'answerLost', reference: 'o1' })
  let runs = 0
  const run = () =>
    w.once.run({ scope: 'invoice', key: 'o1', payload: { a: 1 } }, async (op) => {
      runs++
      const c = await op.effect('charge', {
        request: { reference: 'o1', amount: 100, currency: 'eur' },
        call: (request, { idempotencyKey, signal }) => charge(w.provider.url, request, idempotencyKey, signal),
        delivery: 'keyed',
        provider: 'stripeV1',
      })
      const n = await op.transaction('book', async ({ tx }) => {
        tx.put('booked', c.id)
        return 7
      })
      return { id: c.id, n }
    })
  const first = await run()
  expect(first.state).toBe('succeeded')
  expect(w.provider.count('o1')).toBe(1)
  const second = await run()
  expect(second.replayed).toBe(true)
  expect(second.value).toEqual(first.value)
  expect(runs).toBe(1)
})

test('I11: an effect that nobody knows of is unknown until reconcile finds it', async () => {
  await using w = await world({ keys: 'none' })
  w.provider.fault({ kind: 'answerLost', reference: 'o2' })
  let ask = 0
  const run = () =>
    w.once.run({ scope: 'invoice', key: 'o2', payload: null }, async (op) => {
      const c = await op.effect('charge', {
        request: { reference: 'o2', amount: 100, currency: 'eur' },
        call: (request, { idempotencyKey, signal }) => charge(w.provider.url, request, idempotencyKey, signal),
        delivery: 'reconciled',
        settleAfterMs: 0,
        reconcile: async () => {
          ask++
          if (ask < 3) return stillUnknown()
          return found({ id: 'x' })
        },
      })
      return c
    })
  await expect(run()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  expect((await w.once.unfinished()).length).toBe(1)
  await expect(run()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  expect((await run()).value).toEqual({ id: 'x' })
  expect(w.provider.count('o2')).toBe(1)
  const events = (await w.once.history({ scope: 'invoice', key: 'o2' })).map(({ event }) => event)
  expect(events).toEqual(['unknown', 'takenOver', 'unknown', 'takenOver'])
})

test('SC49: a worker does each started job once, and another payload is a mismatch', async () => {
  await using w = await world()
  const kind = w.once.define('invoice.create', {
    version: 1,
    handler: async (op, payload: { n: number }) => {
      const v = await op.memo('x', () => payload.n * 2)
      if (payload.n === 13) return rejected({ code: 'BAD' })
      return { v, key: op.key }
    },
  })
  const events: unknown[] = []
  const worker = w.once.worker({ kinds: [kind], onEvent: (e) => events.push(e) })
  await worker.start()
  for (let n = 0; n < 20; n++) await kind.start({ scope: 's', key: `k${n}`, payload: { n } })
  await worker.drain()
  await worker.stop()
  const out = await kind.run({ scope: 's', key: 'k3', payload: { n: 3 } })
  expect(out).toEqual({ state: 'succeeded', value: { v: 6, key: 'k3' }, replayed: true })
  expect((await kind.run({ scope: 's', key: 'k13', payload: { n: 13 } })).state).toBe('rejected')
  await expect(kind.run({ scope: 's', key: 'k3', payload: { n: 4 } })).rejects.toMatchObject({
    code: 'IDEMPOTENCY_KEY_REUSED',
  })
  expect(events.length).toBe(20)
})

test('I10: what an attempt does to its request, the next attempt does not send', async () => {
  await using w = await world()
  const sent: number[] = []
  const outcome = await w.once.run({ scope: 'invoice', key: 'frozen', payload: null }, (op) =>
    op.effect('charge', {
      request: { lines: [100] },
      call: (request: { lines: number[] }) => {
        sent.push(request.lines.length)
        request.lines.push(1)
        if (sent.length === 1) throw Object.assign(new Error('busy'), { status: 503 })
        return { id: 'c1' }
      },
      delivery: 'keyed',
      provider: 'stripeV1',
    }),
  )
  expect(outcome).toMatchObject({ state: 'succeeded', value: { id: 'c1' } })
  expect(sent).toEqual([1, 1])
})
