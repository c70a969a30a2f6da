/**
 * Answers that get lost: each statement of a leased operation is carried out, its answer is dropped and the connection
 * reset. The operation has one outcome all the same, and everything it did was done once.
 */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TcpProxy, tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { eventually } from '../eventually.ts'
import { type Charge, chargeAndBook, LEASE_MS, SCOPE } from './charge.ts'
import { startJobChild } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup
let proxy: TcpProxy

beforeAll(async () => {
  setup = await openJobs()
  proxy = await tcpProxy({ target: { port: Number(new URL(setup.url).port) } })
})

afterAll(async () => {
  await proxy.close()
  await setup.close()
})

describe.each([
  ['pipelined', { pipeline: true }],
  ['stock', { pipeline: false }],
])('%s pool', (_pool, config) => {
  test('SC8, SC48, B47, I1: the answer of any statement is lost: one outcome, and each step is done once', async () => {
    const child = await startJobChild(setup, { PIPELINE: config.pipeline ? '1' : '0' })
    const traced: Charge = { reference: randomUUID(), delivery: 'keyed' }
    await child.ask({ act: 'run', charge: traced })
    const { value } = await child.ask({ act: 'trace', charge: traced })
    await child.stop()
    // A step is named by all the statements of ours in it; the last of them is the last to be answered.
    const names = (value as readonly { readonly step: string }[]).flatMap(({ step }) => step.split('+').at(-1) ?? [])
    const statements = [...new Set(names)].filter((name) => /^(job|operation|step)\./.test(name))
    expect(statements.length).toBeGreaterThanOrEqual(4)
    for (const statement of statements) {
      const charge: Charge = { reference: randomUUID(), delivery: 'keyed' }
      const once = setup.once(
        { connectionString: proxy.through(setup.url), ...config },
        { answerTimeoutMs: 2_000, acquireTimeoutMs: 2_000 },
      )
      const run = () =>
        once.run(
          { scope: SCOPE, key: charge.reference, payload: charge },
          (op) => chargeAndBook(op, setup.at, charge),
          { leaseMs: LEASE_MS },
        )
      const fault = proxy.swallow(`effectively-once:${statement} `)
      void fault.met.then(() => fault.disarm())
      let told: unknown
      await eventually(`an outcome with ${statement} unanswered`, async () => {
        try {
          expect(await run()).toMatchObject({ state: 'succeeded' })
          return true
        } catch (error) {
          told = error
          // Whatever it is, it says that asking again is safe.
          expect(error, statement).toMatchObject({ retryable: true })
          return false
        }
      }).catch((cause: unknown) => {
        throw new Error(`${statement}: ${String(told)}`, { cause })
      })
      await fault.met
      expect(setup.provider.count(charge.reference), statement).toBe(1)
      expect(await setup.booked(charge.reference), statement).toHaveLength(1)
      expect(await setup.messages(charge.reference), statement).toBe(1)
    }
  }, 180_000)
})
