/**
 * The suites as somebody gets them who wrote a store: through the door for tests, with nothing but an object that has
 * the contract's methods. A sound store passes; each wrong variant fails a case.
 */
import { describe, expect, test } from 'vitest'
import {
  type ConformanceCase,
  inboxCases,
  inboxWaitingCases,
  jobCases,
  operationCases,
  outboxCases,
  progressCases,
  retentionCases,
  type StoreHarness,
} from '../../src/testing/index.ts'
import { memoryHarness } from './memory-harness.ts'

type Part = 'operations' | 'inbox' | 'outbox' | 'jobs' | 'progress'
type Methods = Readonly<Record<string, (...args: never[]) => unknown>>

/** Somebody's store: an object of its own, here over the reference store, with some methods of one part replaced. */
function ownStore(part?: Part, replaced?: (own: Methods) => Methods): StoreHarness {
  return {
    lacks: (need) => memoryHarness.lacks(need),
    async open() {
      const opened = await memoryHarness.open()
      const { store } = opened
      if (part === undefined || replaced === undefined) return { ...opened, store: { ...store } }
      const own = store[part] as unknown as Methods
      const changed = replaced(
        new Proxy(own, { get: (target, name) => Reflect.get(target, name, target).bind(target) }),
      )
      const wrong = new Proxy(own, {
        get(target, name) {
          const value: unknown = Object.hasOwn(changed, name)
            ? changed[String(name)]
            : Reflect.get(target, name, target)
          return typeof value === 'function' && !Object.hasOwn(changed, name) ? value.bind(target) : value
        },
      })
      const parts = {
        operations: store.operations,
        inbox: store.inbox,
        outbox: store.outbox,
        jobs: store.jobs,
        progress: store.progress,
        [part]: wrong,
      }
      return { ...opened, store: { ...store, ...parts } }
    },
  }
}

async function failures(cases: readonly ConformanceCase<StoreHarness>[], harness: StoreHarness): Promise<string[]> {
  const failed: string[] = []
  for (const one of cases) {
    if (one.needs !== undefined && harness.lacks(one.needs) !== undefined) continue
    await one.run(harness).catch(() => failed.push(one.name))
  }
  return failed
}

function fail(): never {
  throw new Error('the contract has another method')
}

const ALL = [
  ...operationCases,
  ...inboxCases,
  ...inboxWaitingCases,
  ...outboxCases,
  ...retentionCases,
  ...jobCases,
  ...progressCases,
]

test('SC60: a store of somebody else passes the published suites', async () => {
  expect(await failures(ALL, ownStore())).toEqual([])
  // The way in which the wrong variants below are made is not what fails.
  const same = (own: Methods) => ({ lookup: own['lookup'] ?? fail, wait: own['wait'] ?? fail })
  expect(await failures(ALL, ownStore('inbox', same))).toEqual([])
})

describe('SC60: the published suites find fault with a store', () => {
  test.each<[string, Part, (own: Methods) => Methods]>([
    [
      'that opens every attempt without its gate',
      'operations',
      (own) => ({
        open: (attempt: never, options: object) => own['open']?.(attempt, { ...options, gated: false } as never),
      }),
    ],
    [
      'that purges without looking at the retention',
      'operations',
      (own) => ({ purge: (batch: object) => own['purge']?.({ ...batch, graceMs: -3_650 * 86_400_000 } as never) }),
    ],
    ['that forgets its records', 'operations', () => ({ lookup: async () => undefined })],
    ['that says committed without looking', 'operations', () => ({ verifyCommit: async () => 'committed' })],
    [
      'that takes every message for a new one',
      'inbox',
      () => ({ lookup: async (marks: unknown[]) => marks.map(() => 'new') }),
    ],
    ['that lets a replaced owner postpone', 'inbox', () => ({ postpone: async () => 'waiting' })],
    [
      'that says a message waits and does not keep it',
      'inbox',
      () => ({ wait: async (rows: unknown[]) => rows.map(() => 'waiting') }),
    ],
    ['that settles for whoever asks', 'outbox', () => ({ settle: async () => 'done' })],
    ['that renews a lease that is over', 'outbox', () => ({ renew: async () => ({ kind: 'done' }) })],
    ['that lets anybody release a lane', 'outbox', () => ({ release: async () => 'done' })],
    ['that lets everybody claim an operation', 'jobs', () => ({ claim: async () => ({ kind: 'claimed', fence: 1n }) })],
    [
      'that lets any number take over',
      'jobs',
      () => ({ takeOver: async () => ({ kind: 'claimed', fence: 2n, claims: 2 }) }),
    ],
    [
      'that renews a lease that is over',
      'jobs',
      () => ({ renew: async (leases: unknown[]) => leases.map(() => 'renewed') }),
    ],
    ['that writes steps of whoever asks', 'jobs', () => ({ writeStep: async () => 'stored' })],
    ['that stores a second answer of an effect', 'jobs', () => ({ changeEffect: async () => 'stored' })],
    ['that completes for a former owner', 'jobs', () => ({ complete: async () => 'stored' })],
    [
      'that parks nothing',
      'jobs',
      (own) => ({
        claimDue: (kinds: never[], limit: never) =>
          own['claimDue']?.(kinds.map((kind: object) => ({ ...kind, claimsMax: 1_000 })) as never, limit),
      }),
    ],
    ['that says a job is stored and forgets it', 'jobs', () => ({ enqueue: async () => 'stored' })],
    ['that resolves what is decided', 'jobs', () => ({ resolveEffect: async () => 'resolved' })],
    ['that redrives without a trace', 'jobs', () => ({ redrive: async () => 'redriven' })],
    ['that lets progress go back', 'progress', () => ({ advanceIn: async () => 'advanced' })],
  ])('%s', async (_what, part, replaced) => {
    expect(await failures(ALL, ownStore(part, replaced))).not.toEqual([])
  })
})
