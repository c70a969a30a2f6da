/**
 * Consumers with random options and random messages: some fail, some come twice, some cannot be read, connections drop,
 * and a consumer is replaced in the middle. Whatever comes, each message is applied once, in order where order was asked.
 */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { OutgoingMessage } from '../../src/broker/contract.ts'
import { eventually } from '../eventually.ts'
import { openScene, type Scene, STORES } from './scene.ts'

interface Plan {
  readonly batch: boolean
  readonly concurrency: number
  readonly batchMax: number
  readonly prefetch: number
  readonly ordered: boolean
  readonly stopKeyOnWaiting: boolean
  readonly eager: boolean
  readonly pieces: readonly (readonly Sent[])[]
  /** What happens between two pieces. */
  readonly faults: readonly ('none' | 'disconnect' | 'replace' | 'second')[]
}

interface Sent {
  readonly key: string | null
  /** So many attempts fail. */
  readonly failures: number
  readonly twice: boolean
  readonly unreadable: boolean
}

const sent: fc.Arbitrary<Sent> = fc.record({
  key: fc.constantFrom('a', 'b', null),
  failures: fc.constantFrom(0, 0, 0, 0, 1, 2),
  twice: fc.constantFrom(false, false, true),
  unreadable: fc.constantFrom(false, false, false, false, false, true),
})

const plan: fc.Arbitrary<Plan> = fc
  .record({
    batch: fc.boolean(),
    concurrency: fc.constantFrom(1, 2, 4),
    batchMax: fc.constantFrom(1, 3, 10),
    prefetch: fc.constantFrom(1, 4, 30),
    ordered: fc.boolean(),
    stopKeyOnWaiting: fc.boolean(),
    eager: fc.boolean(),
    pieces: fc.array(fc.array(sent, { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 4 }),
    faults: fc.array(fc.constantFrom('none', 'disconnect', 'replace', 'second'), { minLength: 4, maxLength: 4 }),
  })
  .map((made) => ({ ...made, stopKeyOnWaiting: made.ordered && made.stopKeyOnWaiting }))

async function carryOut(scene: Scene, { pieces, faults, ...made }: Plan): Promise<void> {
  const failuresLeft = new Map<string, number>()
  const handleOne = async (tx: unknown, id: string): Promise<void> => {
    await scene.write(tx, id)
    const left = failuresLeft.get(id) ?? 0
    failuresLeft.set(id, left - 1)
    if (left > 0) throw new Error('this attempt fails')
  }
  const consume = () =>
    scene.consume({
      concurrency: made.concurrency,
      prefetch: made.prefetch,
      backoff: { minMs: 1, maxMs: 5 },
      pollMs: 10,
      attemptsMax: 100,
      stopTimeoutMs: 50,
      ...(made.ordered ? { orderBy: true, stopKeyOnWaiting: made.stopKeyOnWaiting } : {}),
      ...(made.batch
        ? {
            batchMax: made.batchMax,
            handleBatch: async ({ tx, messages }) => {
              // What cannot be read tells so when it is looked at.
              for (const message of messages) if (message.body !== undefined) await handleOne(tx, message.id)
            },
          }
        : {
            eager: made.eager,
            handle: ({ tx, message }) => (message.body === undefined ? undefined : handleOne(tx, message.id)),
          }),
    })
  /** A connection that was dropped is back soon. */
  const publish = (...messages: Partial<OutgoingMessage>[]) =>
    eventually('they are published', () =>
      scene.publish(...messages).then(
        () => true,
        () => false,
      ),
    )
  let consumer = await consume()
  let count = 0
  const order: Record<string, string[]> = { a: [], b: [] }
  const readable: string[] = []
  const unreadable: string[] = []
  for (const [index, piece] of pieces.entries()) {
    for (const { key, failures, twice, unreadable: broken } of piece) {
      const id = `m${count}`
      count += 1
      failuresLeft.set(id, failures)
      if (broken) unreadable.push(id)
      else {
        readable.push(id)
        if (key !== null) order[key]?.push(id)
      }
      const message = { id, orderingKey: key, payload: broken ? '{' : '{}' }
      await publish(...(twice ? [message, message] : [message]))
    }
    const fault = faults[index]
    if (fault === 'disconnect') scene.broker.disconnect()
    if (fault === 'second') await consume()
    if (fault === 'replace') {
      const old = consumer
      consumer = await consume()
      await old.stop()
    }
  }
  const told = (kind: 'applied' | 'quarantined') => new Set(scene.told(kind).map(({ id }) => id))
  await eventually('all are settled', () => {
    return told('applied').size === readable.length && told('quarantined').size === unreadable.length
  })
  await scene.settled()
  for (const id of readable) expect(await scene.applied(id), id).toBe(1)
  for (const id of unreadable) expect(await scene.applied(id), id).toBe(0)
  expect(told('quarantined')).toEqual(new Set(unreadable))
  expect(scene.told('state').filter(({ state }) => state === 'paused')).toEqual([])
  const alone = pieces.every((_, index) => faults[index] === 'none' || faults[index] === 'disconnect')
  // Without it a key goes on beside its waiting messages.
  if (!made.stopKeyOnWaiting || !alone) return
  const applied = scene.told('applied').map(({ id }) => id)
  for (const ids of Object.values(order)) expect(applied.filter((id) => ids.includes(id))).toEqual(ids)
}

test.each([
  ['memory', 150],
  ['postgres', 15],
])(
  'I8, I9, I12: whatever fails, repeats, drops or is replaced, each message is applied once (on %s)',
  {
    timeout: 240_000,
  },
  async (store, numRuns) => {
    const harness = STORES[store]
    if (harness === undefined) throw new Error(`no store ${store}`)
    await fc.assert(
      fc.asyncProperty(plan, async (made) => {
        const scene = await openScene(harness)
        try {
          await carryOut(scene, made)
        } finally {
          await scene.close()
        }
      }),
      { numRuns, endOnFailure: true },
    )
  },
)
