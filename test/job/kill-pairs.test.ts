/**
 * Two deaths and a fault: the owner dies at one boundary, its successor at another, and meanwhile the provider fails in
 * each of its ways. Whoever comes third brings it to its end, and the provider's ledger shows what the delivery promises.
 *
 * All pairs of boundaries are some ten thousand runs, so a sample is drawn from each delivery and fault by a fixed seed.
 * KILL_PAIRS=n draws n pairs of each instead, KILL_PAIRS=all takes all of them; KILL_SEED draws others.
 */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Delivery } from '../../src/index.ts'
import { identify } from '../../src/operation/identity.ts'
import type { ProviderFaultKind } from '../../src/testing/provider/fault.ts'
import type { DeathAt } from '../torture/steps.ts'
import { boundaries, DELIVERIES, expectPromised, inPairs, nameOf } from './boundaries.ts'
import { type Charge, SCOPE } from './charge.ts'
import { startJobChild } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup

beforeAll(async () => {
  setup = await openJobs()
})
afterAll(() => setup.close())

const SEED = Number(process.env['KILL_SEED'] ?? 1)
const ALL = process.env['KILL_PAIRS'] === 'all'
/** Pairs of each delivery and fault. Without a fault there is more to see of the deaths. */
const pairsOf = (fault: string): number =>
  ALL ? Number.POSITIVE_INFINITY : Number(process.env['KILL_PAIRS'] ?? (fault === 'none' ? 4 : 1))

interface Fault {
  readonly name: string
  /** What the provider does to the first requests. */
  readonly kind?: ProviderFaultKind
  /** What has become of the world between the two deaths. */
  readonly between?: (charge: Charge) => Promise<void>
}

const FAULTS: readonly Fault[] = [
  { name: 'none' },
  { name: 'answer lost after applying', kind: 'answerLost' },
  { name: '5xx after applying', kind: 'errorAfter' },
  { name: 'time-out after applying', kind: 'silentAfter' },
  { name: '429', kind: 'rateLimited' },
  { name: '409 in progress', kind: 'heldAfter' },
  { name: 'stored 500', kind: 'failed' },
  { name: 'key forgotten', kind: 'answerLost', between: keyForgotten },
]

/** Two days later: by the store's clock the key is too old, and the provider does not know it any more. */
async function keyForgotten({ reference }: Charge): Promise<void> {
  for (const request of setup.provider.requests()) {
    if (request.reference === reference && request.key !== undefined) setup.provider.forget(request.key)
  }
  await setup.admin.query(
    `update effectively_once.step set first_attempt_at = first_attempt_at - interval '2 days',
       last_attempt_at = last_attempt_at - interval '2 days' where operation_id = $1`,
    [identify(SCOPE, reference).id],
  )
}

type Pair = readonly [DeathAt, DeathAt]

/** The same numbers for the same seed. */
function drawnBy(text: string): () => number {
  let state = Buffer.from(text).reduce((sum, byte) => Math.imul(sum ^ byte, 16_777_619), 2_166_136_261)
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

function pairsFrom(all: readonly DeathAt[], count: number, seed: string): readonly Pair[] {
  const pairs = all.flatMap((first) => all.map((second): Pair => [first, second]))
  const draw = drawnBy(seed)
  const drawn: Pair[] = []
  while (drawn.length < count && pairs.length > 0) {
    drawn.push(...pairs.splice(Math.floor(draw() * pairs.length), 1))
  }
  return drawn
}

describe.each(DELIVERIES)('%s', (delivery: Delivery) => {
  let all: readonly DeathAt[]
  beforeAll(async () => {
    all = await boundaries(setup, delivery)
  })

  test.each(FAULTS)(
    'SC48, R48, I10, I11, I12: the owner and its successor die at any two boundaries, provider: $name',
    async ({ name, kind, between }) => {
      const pairs = pairsFrom(all, pairsOf(name), `${SEED} ${delivery} ${name}`)
      await inPairs(pairs, async ([first, second]) => {
        const told = `seed ${SEED}: ${nameOf(first)}, then ${nameOf(second)}`
        const reference = randomUUID()
        const charge: Charge = { reference, delivery, timeoutMs: 1_000 }
        if (kind !== undefined) setup.provider.fault({ kind, reference })
        await dies(charge, first)
        await between?.(charge)
        await dies(charge, second)
        setup.provider.release({ reference })
        await expectPromised(setup, charge, told)
      })
      expect(pairs.length).toBeGreaterThan(0)
    },
    ALL ? 86_400_000 : 300_000,
  )
})

/** A resumed operation does not do again what was done, so it may come to its end before that boundary. */
async function dies(charge: Charge, at: DeathAt): Promise<void> {
  const child = await startJobChild(setup, { KILL_AT: JSON.stringify(at) })
  const told = new Promise<void>((resolve) => child.send({ act: 'kind', charge, waits: true }, () => resolve()))
  await Promise.race([child.gone, told])
  await child.stop()
}
