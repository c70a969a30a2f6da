/** Effects at a provider that fails: what is known is stored, what is not known is said, and nothing is sent blindly. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { found, notApplied } from '../../src/index.ts'
import { eventually } from '../eventually.ts'
import { type Change, type Charge, chargeAndBook, LEASE_MS, SCOPE } from './charge.ts'
import { type JobChild, startJobChild } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

const HOUR_MS = 3_600_000
const ACT = { actor: 'ops@example.com', reason: 'looked it up at the provider' }

let setup: JobSetup

beforeAll(async () => {
  setup = await openJobs()
})

afterAll(() => setup.close())

const chargeOf = (delivery: Charge['delivery']): Charge => ({ reference: randomUUID(), delivery })
const operationOf = (charge: Charge) => ({ scope: SCOPE, key: charge.reference, payload: charge })

/** What the provider was asked for one reference, in order. */
const asked = (charge: Charge) => setup.provider.requests().filter(({ reference }) => reference === charge.reference)
const methods = (charge: Charge) => asked(charge).map(({ method }) => method)
const keys = (charge: Charge) =>
  new Set(asked(charge).flatMap(({ method, key }) => (method === 'POST' && key !== undefined ? [key] : [])))

/** Runs it here, again and again while the answer says that this may help. */
async function settled(charge: Charge, change?: Change, leaseMs = LEASE_MS) {
  const once = setup.once()
  let outcome: Awaited<ReturnType<typeof once.run>> | undefined
  let last: unknown
  await eventually('the operation has an outcome', async () => {
    try {
      outcome = await once.run(operationOf(charge), (op) => chargeAndBook(op, setup.at, charge, change), { leaseMs })
      return true
    } catch (error) {
      last = error
      return false
    }
  }).catch((cause: unknown) => {
    throw new Error('no outcome', { cause: last ?? cause })
  })
  return outcome
}

/** A process that dies in front of its call, or behind it; its lease is over. */
async function diedAt(charge: Charge, place: 'before' | 'behind'): Promise<void> {
  const at = { step: 'http.post', nth: 1, ...(place === 'behind' ? { after: true } : {}) }
  const child: JobChild = await startJobChild(setup, { KILL_AT: JSON.stringify(at) })
  child.send({ act: 'run', charge }, () => {})
  expect(await child.gone).toMatchObject({ signal: 'SIGKILL' })
  if (place === 'behind') await setup.provider.waitFor(() => setup.provider.count(charge.reference) === 1)
  await setup.advance(LEASE_MS)
}

const here = (charge: Charge, change?: Change) => {
  const once = setup.once()
  return once.run(operationOf(charge), (op) => chargeAndBook(op, setup.at, charge, change), { leaseMs: LEASE_MS })
}

describe('a process that died around its call', () => {
  test('B84, I10: keyed: the call is repeated with the key and bytes that were stored, and its object adopted', async () => {
    const charge = chargeOf('keyed')
    await diedAt(charge, 'behind')
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(keys(charge).size).toBe(1)
    expect(setup.provider.count(charge.reference)).toBe(1)
    const [booking, ...more] = await setup.booked(charge.reference)
    expect(more).toEqual([])
    expect(booking?.charge).toBe(setup.provider.effects().find(({ reference }) => reference === charge.reference)?.id)
  })

  test('B17, R17: reconciled: the provider is asked before anything is repeated, and its object adopted', async () => {
    const charge = chargeOf('reconciled')
    await diedAt(charge, 'behind')
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(methods(charge)).toEqual(['POST', 'GET'])
    expect(setup.provider.count(charge.reference)).toBe(1)
    expect(await setup.booked(charge.reference)).toHaveLength(1)
  })

  test('R17: reconciled: a call that was never made is made, once the provider has said so late enough', async () => {
    const charge = chargeOf('reconciled')
    await diedAt(charge, 'before')
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(methods(charge).filter((method) => method === 'POST')).toHaveLength(1)
    expect(methods(charge)[0]).toBe('GET')
    expect(setup.provider.count(charge.reference)).toBe(1)
  })

  test.each(['before', 'behind'] as const)(
    'B17, I11: at-most-once, died %s the call: nobody calls again; it is unknown, listed with its age, until it is resolved',
    async (place) => {
      const charge = chargeOf('at-most-once')
      const applied = place === 'behind' ? 1 : 0
      await diedAt(charge, place)
      for (let tries = 0; tries < 3; tries += 1) {
        await expect(here(charge)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN', retryable: false })
      }
      expect(methods(charge)).toHaveLength(applied)
      const once = setup.once()
      await setup.advance(HOUR_MS)
      const [waiting] = (await once.unfinished()).filter(({ unknownEffects }) => unknownEffects.length > 0).slice(-1)
      expect(waiting).toMatchObject({ state: 'unknown', unknownEffects: [{ name: 'charge' }] })
      expect(waiting?.unknownEffects[0]?.ageMs).toBeGreaterThanOrEqual(HOUR_MS)

      const [effect] = setup.provider.effects().filter(({ reference }) => reference === charge.reference)
      const proof = effect === undefined ? notApplied() : found({ id: effect.id })
      const reference = { scope: SCOPE, key: charge.reference, effect: 'charge' }
      expect(await once.resolve(reference, proof, ACT)).toBe('resolved')
      expect(await here(charge)).toMatchObject({ state: 'succeeded' })
      expect(await once.resolve(reference, proof, ACT)).toBe('decided')
      expect(setup.provider.count(charge.reference)).toBe(1)
      expect(methods(charge)).toEqual(['POST'])
      expect(await setup.booked(charge.reference)).toHaveLength(1)
      const { rows } = await setup.admin.query(
        'select actor, reason from effectively_once.audit where subject like $1',
        [`%${waiting?.id}%`],
      )
      expect(rows).toEqual([ACT])
    },
  )

  test('I11: a webhook resolves an effect by the key that the provider was given', async () => {
    const charge = chargeOf('at-most-once')
    await diedAt(charge, 'behind')
    await expect(here(charge)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    const [providerKey = ''] = keys(charge)
    const [effect] = setup.provider.effects().filter(({ reference }) => reference === charge.reference)
    expect(await setup.once().resolve({ providerKey }, found({ id: effect?.id }), ACT)).toBe('resolved')
    expect(await here(charge)).toMatchObject({ state: 'succeeded', value: { charge: effect?.id } })
    expect(methods(charge)).toEqual(['POST'])
  })

  test('I11: an operation that a person has proven never applied says so to everybody', async () => {
    const charge = chargeOf('at-most-once')
    await diedAt(charge, 'before')
    await expect(here(charge)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    const operation = { scope: SCOPE, key: charge.reference }
    expect(await setup.once().resolve(operation, notApplied(), ACT)).toBe('resolved')
    await expect(here(charge)).rejects.toMatchObject({ code: 'NOT_APPLIED' })
    await expect(setup.once().transaction(operationOf(charge), () => 'never')).rejects.toMatchObject({
      code: 'NOT_APPLIED',
    })
    expect(methods(charge)).toEqual([])
  })

  test('B90, I10: keyed: past the time for which the provider remembers keys it is asked, and nothing is sent blindly', async () => {
    const charge = chargeOf('keyed')
    await diedAt(charge, 'behind')
    await setup.advance(26 * HOUR_MS)
    setup.provider.advance(26 * HOUR_MS)
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(methods(charge)).toEqual(['POST', 'GET'])
    expect(setup.provider.count(charge.reference)).toBe(1)
  })

  test('B90: keyed, and nobody to ask: past that time it is unknown and waits for a person', async () => {
    const charge = chargeOf('keyed')
    await diedAt(charge, 'behind')
    await setup.advance(26 * HOUR_MS)
    setup.provider.advance(26 * HOUR_MS)
    for (let tries = 0; tries < 2; tries += 1) {
      await expect(here(charge, { reconcile: undefined })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    }
    expect(methods(charge)).toEqual(['POST'])
  })
})

describe('a provider that fails', () => {
  test('B86: a failure that the provider stores for its key stops the repeats; a new key comes after a proof only', async () => {
    const charge = chargeOf('keyed')
    setup.provider.fault({ kind: 'failed', reference: charge.reference })
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(setup.provider.count(charge.reference)).toBe(1)
    const all = asked(charge)
    const replay = all.findIndex(({ replayed }) => replayed)
    expect(replay).toBeGreaterThan(0)
    // From the replay on nothing is sent with that key, and the next call comes behind a question.
    const later = all.slice(replay + 1)
    expect(later[0]?.method).toBe('GET')
    expect(later.filter(({ method, key }) => method === 'POST' && key === all[replay]?.key)).toEqual([])
    expect(keys(charge).size).toBe(2)
  })

  test('B86: reconciled: where the provider stores failures too, a proof is followed by a new key in the end', async () => {
    const charge = chargeOf('reconciled')
    setup.provider.fault({ kind: 'failed', reference: charge.reference })
    expect(await settled(charge)).toMatchObject({ state: 'succeeded' })
    expect(setup.provider.count(charge.reference)).toBe(1)
    expect(keys(charge).size).toBe(2)
  })

  test('B86, I11: without anybody to ask, a stored failure ends as unknown, and the operation stops repeating it', async () => {
    const charge = chargeOf('keyed')
    setup.provider.fault({ kind: 'failed', reference: charge.reference })
    const change = { reconcile: undefined }
    await expect(here(charge, change)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    const before = methods(charge).length
    await expect(here(charge, change)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    // Who asks again causes one repeat, with the key that makes it harmless.
    expect(methods(charge).length).toBeLessThanOrEqual(before + 1)
    expect(keys(charge).size).toBe(1)
    expect(setup.provider.count(charge.reference)).toBe(0)
  })

  test('B87: a call that still runs at the provider is waited for with the same key, and its result adopted', async () => {
    const charge = chargeOf('keyed')
    setup.provider.fault({ kind: 'heldAfter', reference: charge.reference })
    const running = settled(charge, { timeoutMs: 500 })
    await setup.provider.waitFor(({ requests }) =>
      requests.some(({ reference, answer }) => reference === charge.reference && answer === 409),
    )
    setup.provider.release({ reference: charge.reference })
    expect(await running).toMatchObject({ state: 'succeeded' })
    expect(keys(charge).size).toBe(1)
    expect(setup.provider.count(charge.reference)).toBe(1)
    expect(await setup.booked(charge.reference)).toHaveLength(1)
  })

  test.each(['keyed', 'reconciled'] as const)(
    'R16, R17, I11: %s: whatever goes wrong once, there is one effect and one booking',
    async (delivery) => {
      const kinds = ['connectionLost', 'rateLimited', 'unavailable', 'answerLost', 'answerCut', 'errorAfter'] as const
      for (const kind of [...kinds, 'silentBefore', 'silentAfter'] as const) {
        const charge = chargeOf(delivery)
        setup.provider.fault({ kind, reference: charge.reference, retryAfterSeconds: 0 })
        expect(await settled(charge, { timeoutMs: 500 }), kind).toMatchObject({ state: 'succeeded' })
        expect(setup.provider.count(charge.reference), kind).toBe(1)
        expect(await setup.booked(charge.reference), kind).toHaveLength(1)
      }
    },
    120_000,
  )

  test('R18, I11: at-most-once: what may have happened is unknown, and what has not is tried again', async () => {
    const change: Change = { timeoutMs: 500 }
    for (const kind of ['connectionLost', 'answerLost', 'answerCut', 'errorAfter', 'silentAfter'] as const) {
      const charge = chargeOf('at-most-once')
      setup.provider.fault({ kind, reference: charge.reference })
      await expect(here(charge, change), kind).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      await expect(here(charge, change), kind).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
      expect(methods(charge), kind).toEqual(['POST'])
    }
    for (const kind of ['rateLimited'] as const) {
      const charge = chargeOf('at-most-once')
      setup.provider.fault({ kind, reference: charge.reference, retryAfterSeconds: 0 })
      expect(await settled(charge, change), kind).toMatchObject({ state: 'succeeded' })
      expect(setup.provider.count(charge.reference), kind).toBe(1)
    }
  }, 60_000)

  test('R18: at-least-once: it is called until there is an answer', async () => {
    for (const kind of ['connectionLost', 'answerLost', 'answerCut', 'unavailable'] as const) {
      const charge = chargeOf('at-least-once')
      setup.provider.fault({ kind, reference: charge.reference })
      expect(await settled(charge), kind).toMatchObject({ state: 'succeeded' })
      expect(setup.provider.count(charge.reference), kind).toBeGreaterThanOrEqual(1)
    }
  }, 60_000)

  test('R19: "not applied" is not believed while the first call may still be under way', async () => {
    const charge = chargeOf('reconciled')
    setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
    // The call is given up, asked about at once, and arrives only then.
    const change: Change = { timeoutMs: 500, settleAfterMs: 60_000, patienceMs: 500 }
    await expect(here(charge, change)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(methods(charge).filter((method) => method === 'POST')).toHaveLength(1)
    setup.provider.release({ reference: charge.reference })
    await setup.provider.waitFor(() => setup.provider.count(charge.reference) === 1)
    expect(await settled(charge, change)).toMatchObject({ state: 'succeeded' })
    expect(methods(charge).filter((method) => method === 'POST')).toHaveLength(1)
    expect(setup.provider.count(charge.reference)).toBe(1)
  })
})
