import { expect, test } from 'vitest'
import { outboxLimits, toRow } from '../../src/outbox/message.ts'
import { createRelaySteps } from '../../src/outbox/steps.ts'
import { memory } from '../../src/stores/memory/index.ts'

const BATCH = { limit: 10, leaseMs: 30_000 }
const message = (topic: string, orderingKey?: string) => toRow({ topic, orderingKey, payload: 1 }, outboxLimits())

test('R25: a batch is claimed once, in order, and is gone when it is marked', async () => {
  const store = memory()
  const steps = createRelaySteps(store.outbox)
  store.outbox.insert([message('a'), message('b')])
  const batch = await steps.claimBatch(BATCH)
  expect(batch?.messages.map((one) => one.topic)).toEqual(['a', 'b'])
  expect((await steps.claimBatch(BATCH))?.messages).toEqual([])
  expect(await createRelaySteps(store.outbox).claimBatch(BATCH)).toBeUndefined()
  const ids = batch?.messages.map((one) => one.id) ?? []
  expect(await steps.markPublished(ids, batch?.leaseToken ?? '')).toBe('settled')
  expect((await store.outbox.pending()).oldestMs).toBeNull()
})

test('R25, I5: a stale relay that comes back changes nothing', async () => {
  const store = memory()
  const stale = createRelaySteps(store.outbox)
  store.outbox.insert([message('a')])
  const old = await stale.claimBatch(BATCH)
  const [id = ''] = old?.messages.map((one) => one.id) ?? []
  store.database.advance(30_001)
  const other = createRelaySteps(store.outbox)
  expect((await other.claimBatch(BATCH))?.messages.map((one) => one.id)).toEqual([id])
  expect(await stale.markPublished(id, old?.leaseToken ?? '')).toBe('fenced')
  expect(await stale.releaseForRetry(id, old?.leaseToken ?? '', 'late')).toBe('fenced')
  expect((await store.outbox.pending()).oldestMs).not.toBeNull()
})

test('R25, SC28: a released message is given again after its backoff, before later ones of its key', async () => {
  const store = memory()
  const steps = createRelaySteps(store.outbox)
  store.outbox.insert([message('k1', 'k')])
  const first = await steps.claimBatch(BATCH)
  const token = first?.leaseToken ?? ''
  expect(await steps.releaseForRetry(first?.messages[0]?.id ?? '', token, 'queue is full')).toBe('released')
  store.outbox.insert([message('k2', 'k'), message('other')])
  const second = await steps.claimBatch(BATCH)
  expect(second?.messages.map((one) => one.topic)).toEqual(['other'])
  store.database.advance(5_000)
  const third = await steps.claimBatch(BATCH)
  expect(third?.messages.map((one) => one.topic)).toEqual(['k1'])
  await steps.markPublished(third?.messages.map((one) => one.id) ?? [], token)
  expect((await steps.claimBatch(BATCH))?.messages.map((one) => one.topic)).toEqual(['k2'])
})

test.each([
  ['limit', { limit: -1, leaseMs: 30_000 }],
  ['limit', { leaseMs: 30_000 }],
  ['leaseMs', { limit: 1 }],
  ['leaseMs', { limit: 1, leaseMs: 0 }],
  ['lane', { limit: 1, leaseMs: 30_000, lane: -1 }],
  ['max', { limit: 1, leaseMs: 30_000, max: 5 }],
  ['claimBatch', undefined],
])('R25: a wrong %s of claimBatch is a TypeError that names it, and no lane is taken', async (named, options) => {
  const store = memory()
  const steps = createRelaySteps(store.outbox)
  await expect(steps.claimBatch(options as never)).rejects.toThrow(
    expect.objectContaining({ name: 'TypeError', message: expect.stringContaining(named) }),
  )
  expect(await createRelaySteps(store.outbox).claimBatch(BATCH)).toBeDefined()
  expect(() => createRelaySteps(store as never)).toThrow(TypeError)
})
