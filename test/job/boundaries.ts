/** What a leased operation sends to the outside, where its process may die, and what is promised of it afterwards. */
import { randomUUID } from 'node:crypto'
import { expect } from 'vitest'
import type { Delivery } from '../../src/index.ts'
import { eventually } from '../eventually.ts'
import type { DeathAt, StepName } from '../torture/steps.ts'
import { type Charge, defineCharge, SCOPE } from './charge.ts'
import { startJobChild } from './child.ts'
import type { JobSetup } from './setup.ts'

export const DELIVERIES: readonly Delivery[] = ['keyed', 'reconciled', 'at-most-once', 'at-least-once']

/** What the process sends from the claim to the outcome: its own look-ups and renewals come at any time. */
export async function boundaries(setup: JobSetup, delivery: Delivery): Promise<readonly DeathAt[]> {
  const child = await startJobChild(setup)
  const charge: Charge = { reference: randomUUID(), delivery }
  await child.ask({ act: 'kind', charge })
  const { value } = await child.ask({ act: 'trace', charge })
  await child.stop()
  const steps = (value as readonly StepName[]).slice(1).filter(({ step }) => !/renew|notify/.test(step))
  expect(steps.some(({ step }) => step === 'http.post')).toBe(true)
  return steps.flatMap(({ step, nth }) => [
    { step, nth },
    { step, nth, after: true },
  ])
}

export const nameOf = ({ step, nth, after }: DeathAt): string =>
  `${after === true ? 'behind' : 'before'} ${step} ${nth}`

/** The state in which an operation has come to its end, or waits for a person. */
async function settledState(setup: JobSetup, charge: Charge): Promise<string> {
  const once = setup.once({ max: 1 })
  const kind = defineCharge(once, setup.at)
  let state = ''
  await eventually(
    'it has settled',
    async () => {
      try {
        state = (await kind.run({ scope: SCOPE, key: charge.reference, payload: charge })).state
        return true
      } catch (error) {
        state = (error as { code?: string }).code ?? String(error)
        return state === 'OPERATION_PARKED' || (state === 'OUTCOME_UNKNOWN' && charge.delivery === 'at-most-once')
      }
    },
    60_000,
  )
  return state
}

/** Lets it come to its end, and compares that with what its delivery promises. */
export async function expectPromised(setup: JobSetup, charge: Charge, name: string): Promise<void> {
  const state = await settledState(setup, charge)
  const effects = setup.provider.count(charge.reference)
  const bookings = await setup.booked(charge.reference)
  switch (charge.delivery) {
    case 'keyed':
    case 'reconciled':
      expect([state, effects, bookings.length], name).toEqual(['succeeded', 1, 1])
      break
    case 'at-most-once':
      expect(effects, name).toBeLessThanOrEqual(1)
      // Unknown never turns into success or into another call by itself.
      if (state === 'succeeded') expect([effects, bookings.length], name).toEqual([1, 1])
      else expect([state, bookings.length], name).toEqual(['OUTCOME_UNKNOWN', 0])
      break
    case 'at-least-once':
      expect([state, bookings.length], name).toEqual(['succeeded', 1])
      expect(effects, name).toBeGreaterThanOrEqual(1)
  }
  expect(await setup.messages(charge.reference), name).toBe(bookings.length)
}

/** Two at a time. */
export async function inPairs<T>(items: readonly T[], act: (item: T) => Promise<void>): Promise<void> {
  const queue = [...items]
  await Promise.all(
    [0, 1].map(async () => {
      for (let item = queue.shift(); item !== undefined; item = queue.shift()) await act(item)
    }),
  )
}
