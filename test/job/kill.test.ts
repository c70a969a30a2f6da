/**
 * A process dies, or is stopped beyond its lease, at every boundary of a leased operation: in front of each statement and
 * each call that it sends, and behind it, before the answer is read. A worker of another process goes on. Afterwards the
 * provider's ledger shows what each delivery promises, and everything has settled.
 */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Delivery, Worker } from '../../src/index.ts'
import { eventually } from '../eventually.ts'
import type { JobAnswer } from '../processes/job.ts'
import type { DeathAt, StepName } from '../torture/steps.ts'
import { type Charge, defineCharge, SCOPE } from './charge.ts'
import { startJobChild, stateOf } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup
let worker: Worker

beforeAll(async () => {
  setup = await openJobs()
  const once = setup.once()
  worker = once.worker({ kinds: [defineCharge(once, setup.at)], pollMs: 100 })
})

afterAll(async () => {
  await worker.stop()
  await setup.close()
})

/** What the process sends from the claim to the outcome: its own look-ups and renewals come at any time. */
async function boundaries(delivery: Delivery): Promise<readonly DeathAt[]> {
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

/** The state in which an operation has come to its end, or waits for a person. */
async function settledState(charge: Charge): Promise<string> {
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
        return state === 'OUTCOME_UNKNOWN' || state === 'OPERATION_PARKED'
      }
    },
    60_000,
  )
  return state
}

const nameOf = ({ step, nth, after }: DeathAt) => `${after === true ? 'behind' : 'before'} ${step} ${nth}`

async function expectPromised(charge: Charge, name: string): Promise<void> {
  const state = await settledState(charge)
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
async function inPairs<T>(items: readonly T[], act: (item: T) => Promise<void>): Promise<void> {
  const queue = [...items]
  await Promise.all(
    [0, 1].map(async () => {
      for (let item = queue.shift(); item !== undefined; item = queue.shift()) await act(item)
    }),
  )
}

/** Without a worker, so that it is the second one that goes on. */
describe('two deaths', () => {
  test('SC48, I10, I12: the owner and its successor die at any two boundaries, and there is one effect', async () => {
    const all = await boundaries('keyed')
    const pairs = all.flatMap((first) => all.map((second) => [first, second] as const))
    // Every boundary is met as a first and as a second one.
    const chosen = pairs.filter((_, index) => index % (all.length + 1) === 0 || index % (all.length - 1) === 0)
    await inPairs(chosen.slice(0, 24), async ([first, second]) => {
      const name = `${nameOf(first)}, then ${nameOf(second)}`
      const charge: Charge = { reference: randomUUID(), delivery: 'keyed' }
      for (const at of [first, second]) {
        const child = await startJobChild(setup, { KILL_AT: JSON.stringify(at) })
        const told = new Promise<void>((resolve) => child.send({ act: 'kind', charge, waits: true }, () => resolve()))
        // A resumed operation does not do again what was done, so it may come to its end before that boundary.
        await Promise.race([child.gone, told])
        await child.stop()
      }
      await expectPromised(charge, name)
    })
  }, 300_000)
})

describe('with a worker in another process', () => {
  beforeAll(() => worker.start())

  test.each<Delivery>(['keyed', 'reconciled', 'at-most-once', 'at-least-once'])(
    'SC48, B84, R48, I10, I11, I12: %s: dying at each boundary leaves what is promised, and a worker goes on',
    async (delivery) => {
      const deaths = await boundaries(delivery)
      let met = 0
      await inPairs(deaths, async (at) => {
        const charge: Charge = { reference: randomUUID(), delivery }
        const child = await startJobChild(setup, { KILL_AT: JSON.stringify(at) })
        const told = new Promise<undefined>((resolve) => child.send({ act: 'kind', charge }, () => resolve(undefined)))
        // On a machine under load it may lose its lease before it gets there.
        const gone = await Promise.race([child.gone, told])
        if (gone === undefined) await child.stop()
        else expect(gone, nameOf(at)).toMatchObject({ signal: 'SIGKILL' })
        if (gone !== undefined) met += 1
        await expectPromised(charge, nameOf(at))
      })
      expect(met).toBeGreaterThan(deaths.length / 2)
      console.log(`${met} of ${deaths.length} deaths, ${delivery}: ${deaths.map(nameOf).join(', ')}`)
    },
    300_000,
  )

  test.each<Delivery>(['keyed'])(
    'SC7, SC47, B21, T12, I5: %s: stopped beyond its lease at each boundary, it is replaced and changes nothing',
    async (delivery) => {
      const stops = (await boundaries(delivery)).filter(
        ({ after }, index, { length }) => after !== true || index === length - 1,
      )
      let met = 0
      await inPairs(stops, async (at) => {
        const charge: Charge = { reference: randomUUID(), delivery }
        const child = await startJobChild(setup, { STOP_AT: JSON.stringify(at) })
        const answers: JobAnswer[] = []
        child.send({ act: 'kind', charge }, (answer) => answers.push(answer))
        let stands = false
        await eventually(`it stands still ${nameOf(at)}`, async () => {
          stands = (await stateOf(child)) === 'T'
          return stands || answers.length > 0
        })
        if (stands) met += 1
        // Its lease comes to its end meanwhile, and the worker goes on.
        const before = await settledState(charge)
        child.process.kill('SIGCONT')
        await eventually(`it has an answer ${nameOf(at)}`, () => answers.length > 0)
        const [late] = answers
        const codes = [
          'LEASE_LOST',
          'OUTCOME_UNKNOWN',
          'OPERATION_IN_PROGRESS',
          'STORE_UNAVAILABLE',
          'COMMIT_UNRESOLVED',
        ]
        if (late?.error === undefined) expect(before, nameOf(at)).toBe('succeeded')
        else expect(codes, nameOf(at)).toContain(late.error)
        await expectPromised(charge, nameOf(at))
        await child.stop()
      })
      expect(met).toBeGreaterThan(stops.length / 2)
      console.log(`${met} of ${stops.length} stops, ${delivery}`)
    },
    300_000,
  )
})
