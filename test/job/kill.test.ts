/**
 * A process dies, or is stopped beyond its lease, at every boundary of a leased operation: in front of each statement and
 * each call that it sends, and behind it, before the answer is read. A worker of another process goes on. Afterwards the
 * provider's ledger shows what each delivery promises, and everything has settled.
 */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Delivery, Worker } from '../../src/index.ts'
import { identify } from '../../src/operation/identity.ts'
import { eventually } from '../eventually.ts'
import type { JobAnswer } from '../processes/job.ts'
import { boundaries, DELIVERIES, expectPromised, inPairs, nameOf } from './boundaries.ts'
import { type Charge, defineCharge, SCOPE } from './charge.ts'
import { startJobChild, stateOf } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup
let worker: Worker

beforeAll(async () => {
  setup = await openJobs()
  const once = setup.once()
  worker = once.worker({ kinds: [defineCharge(once, setup.at)], pollMs: 100 })
  await worker.start()
})

afterAll(async () => {
  await worker.stop()
  await setup.close()
})

test.each<Delivery>(DELIVERIES)(
  'SC48, B84, R48, I10, I11, I12: %s: dying at each boundary leaves what is promised, and a worker goes on',
  async (delivery) => {
    const deaths = await boundaries(setup, delivery)
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
      await expectPromised(setup, charge, nameOf(at))
    })
    expect(met).toBeGreaterThan(deaths.length / 2)
    console.log(`${met} of ${deaths.length} deaths, ${delivery}: ${deaths.map(nameOf).join(', ')}`)
  },
  300_000,
)

/** Whether somebody else has had the operation, or nobody needs to any more. */
async function passedOn({ reference }: Charge): Promise<boolean> {
  const { rows } = await setup.admin.query(
    `select fence > 1 or state in ('succeeded', 'unknown') as passed from effectively_once.operation where id = $1`,
    [identify(SCOPE, reference).id],
  )
  return rows[0]?.passed === true
}

/**
 * Longer than any stop here: a call that is stopped on its way leaves later than its owner's lease, and "not applied" is
 * believed only when it can have arrived (PROTOCOL C3).
 */
const SETTLE_MS = 12_000

test.each<Delivery>(DELIVERIES)(
  'SC7, SC47, B21, T12, I5: %s: stopped beyond its lease at each boundary, it is replaced and changes nothing',
  async (delivery) => {
    const stops = (await boundaries(setup, delivery)).filter(
      ({ after }, index, { length }) => after !== true || index === length - 1,
    )
    let met = 0
    await inPairs(stops, async (at) => {
      const charge: Charge = { reference: randomUUID(), delivery, settleAfterMs: SETTLE_MS }
      const child = await startJobChild(setup, { STOP_AT: JSON.stringify(at) })
      const answers: JobAnswer[] = []
      child.send({ act: 'kind', charge }, (answer) => answers.push(answer))
      let stands = false
      await eventually(`it stands still ${nameOf(at)}`, async () => {
        stands = (await stateOf(child)) === 'T'
        return stands || answers.length > 0
      })
      if (stands) met += 1
      // Stopped in front of its claim it has nothing to lose: then this is the first to claim it.
      const other = stands ? defineCharge(setup.once({ max: 1 }), setup.at) : undefined
      await eventually(`another has it ${nameOf(at)}`, async () => {
        await other?.run({ scope: SCOPE, key: charge.reference, payload: charge }).catch(() => {})
        return await passedOn(charge)
      })
      child.process.kill('SIGCONT')
      await eventually(`it has an answer ${nameOf(at)}`, () => answers.length > 0)
      const [late] = answers
      const codes = ['LEASE_LOST', 'OUTCOME_UNKNOWN', 'OPERATION_IN_PROGRESS', 'STORE_UNAVAILABLE', 'COMMIT_UNRESOLVED']
      if (late?.error !== undefined) expect(codes, nameOf(at)).toContain(late.error)
      await expectPromised(setup, charge, nameOf(at))
      await child.stop()
    })
    expect(met).toBeGreaterThan(stops.length / 2)
    console.log(`${met} of ${stops.length} stops, ${delivery}`)
  },
  300_000,
)
