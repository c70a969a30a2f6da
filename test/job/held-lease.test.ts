/** What an owner knows of its own lease without asking. */
import { expect, test } from 'vitest'
import { HeldLease, LeaseKeeper } from '../../src/job/lease.ts'
import type { RenewAnswer } from '../../src/store/job.ts'

const LEASE = { id: '00000000-0000-4000-8000-000000000000', token: '11111111-1111-4111-8111-111111111111', fence: 3n }

test('I5, SC7: an owner that was held up past its lease notices before it does anything else', () => {
  let told = 0
  const held = new HeldLease(LEASE, 1_000, performance.now() - 1_001, () => {
    told += 1
  })
  expect(held.signal.aborted).toBe(false)
  expect(() => held.check()).toThrow(expect.objectContaining({ code: 'LEASE_LOST' }))
  expect(held.signal.aborted).toBe(true)
  // An answer that comes later does not bring it back.
  held.extend(performance.now())
  expect(() => held.check()).toThrow(expect.objectContaining({ code: 'LEASE_LOST' }))
  expect(told).toBe(1)
})

test('B25: a renewal counts from before it was sent', async () => {
  let answer: (answers: readonly RenewAnswer[]) => void = () => {}
  let ask: () => void = () => {}
  const asked = new Promise<void>((resolve) => {
    ask = resolve
  })
  const keeper = new LeaseKeeper({
    renew: () =>
      new Promise((resolve) => {
        answer = resolve
        ask()
      }),
  })
  const startedMs = performance.now()
  const held = keeper.hold(LEASE, 1_200, startedMs)
  // The keeper's timer alone keeps no process alive.
  const alive = setInterval(() => {}, 1_000)
  await asked
  const sentMs = performance.now()
  answer(['renewed'])
  const before = held.deadlineMs
  // A network that is slow after the store has counted must not lengthen the lease.
  const slowUntilMs = performance.now() + 50
  while (performance.now() < slowUntilMs);
  await Promise.resolve()
  await Promise.resolve()
  expect(held.deadlineMs).toBeGreaterThan(before)
  expect(held.deadlineMs).toBeLessThanOrEqual(sentMs + held.leaseMs * (11 / 12))
  keeper.drop(held)
  clearInterval(alive)
})
