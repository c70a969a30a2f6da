/** Text that a provider, an error or a webhook brings, and that PostgreSQL would refuse: nothing may hang on it. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { found } from '../../src/index.ts'
import { chargeEffect, SCOPE } from './charge.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup

beforeAll(async () => {
  setup = await openJobs()
})

afterAll(() => setup.close())

const NUL = '\0'
/** One that is cut in two when 500 characters are kept. */
const LONG = `${'x'.repeat(499)}😀`

async function stored(key: string) {
  const { rows } = await setup.admin.query(
    `select state, failures, reason, coalesce(lease_until > clock_timestamp(), false) as leased
     from effectively_once.operation where scope = $1 order by created_at desc limit 1`,
    [JSON.stringify([...SCOPE, key])],
  )
  return rows[0]
}

test.each([
  ['the name of an error', () => Object.assign(new Error('x'), { name: `Bad${NUL}Name` })],
  ['the code of an error', () => Object.assign(new Error('x'), { code: `E${NUL}BAD` })],
  ['a name that is cut within a character', () => Object.assign(new Error('x'), { name: LONG })],
])('B19, SC54: an attempt that failed is counted and given back whatever stands in %s', async (_, make) => {
  const once = setup.once()
  const key = randomUUID()
  const operation = { scope: [...SCOPE, key], key, payload: key }
  const error = make()
  const run = () => once.run(operation, () => Promise.reject(error), { failuresMax: 2 })
  await expect(run()).rejects.toBe(error)
  const first = await stored(key)
  expect(first).toMatchObject({ state: 'processing', failures: 1, leased: false })
  expect(first.reason).not.toContain(NUL)
  await expect(run()).rejects.toBe(error)
  expect(await stored(key)).toMatchObject({ state: 'parked', failures: 2 })
})

test('B19, I11: an effect is told as unknown whatever the error is called with which reconcile fails', async () => {
  const once = setup.once()
  const key = randomUUID()
  const failing = (name: string) => () => Promise.reject(Object.assign(new Error('x'), { name }))
  const effect = chargeEffect(
    setup.at,
    { reference: key, delivery: 'reconciled' },
    { call: failing('TimeoutError'), reconcile: failing(`Bad${NUL}Name`) },
  )
  const running = once.run({ scope: [...SCOPE, key], key, payload: key }, (op) => op.effect('charge', effect))
  await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  expect(await stored(key)).toMatchObject({ state: 'unknown', leased: false, reason: 'reconcile failed (BadName)' })
})

test('R44: a final refusal is stored however long the codes are that a provider sends', async () => {
  const once = setup.once()
  const key = randomUUID()
  const profile = { ...setup.at.profile, codesAt: ['error.code'] }
  const answer = { status: 402, body: { error: { code: 'c'.repeat(2_000_000) } } }
  let calls = 0
  const effect = chargeEffect(
    { ...setup.at, profile },
    { reference: key, delivery: 'keyed' },
    {
      call: () => {
        calls += 1
        return Promise.reject(Object.assign(new Error('declined'), answer))
      },
    },
  )
  const operation = { scope: [...SCOPE, key], key, payload: key }
  const run = () => once.run(operation, (op) => op.effect('charge', effect))
  expect(await run()).toMatchObject({ state: 'rejected', rejection: { effect: 'charge', status: 402 } })
  expect(await run()).toMatchObject({ state: 'rejected', replayed: true })
  expect(calls).toBe(1)
})

test('B19, I15: an attempt that waits for its provider is counted whatever stands in the code of the answer', async () => {
  const once = setup.once()
  const key = randomUUID()
  const profile = { ...setup.at.profile, codesAt: ['error.code'] }
  const answer = { status: 429, body: { error: { code: `slow${NUL}` } } }
  const effect = chargeEffect(
    { ...setup.at, profile },
    { reference: key, delivery: 'keyed' },
    { call: () => Promise.reject(Object.assign(new Error('slow'), answer)), patienceMs: 0 },
  )
  const operation = { scope: [...SCOPE, key], key, payload: key }
  await expect(once.run(operation, (op) => op.effect('charge', effect))).rejects.toMatchObject({ status: 429 })
  expect(await stored(key)).toMatchObject({ state: 'processing', failures: 1, leased: false })
})

test('I11: a webhook with a key or a name that cannot be is answered as one that is not known', async () => {
  const once = setup.once()
  const act = { actor: 'webhook', reason: 'an event came' }
  const id = randomUUID()
  for (const providerKey of [`a${NUL}b`, '\ud800', 'x'.repeat(100_000), '']) {
    expect(await once.resolve({ providerKey }, found(1), act)).toBe('notFound')
  }
  for (const effect of [`a${NUL}b`, '\ud800', '__proto__', '']) {
    expect(await once.resolve({ id, effect }, found(1), act)).toBe('notFound')
  }
  for (const wrong of [undefined, 7, null, {}]) {
    await expect(once.resolve({ providerKey: wrong as never }, found(1), act)).rejects.toThrow(TypeError)
  }
})
