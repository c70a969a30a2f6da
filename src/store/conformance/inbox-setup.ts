/**
 * What inbox cases begin with: a store, marks and deliveries, and short ways to apply, hold and claim a message.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type {
  ClaimDueOptions,
  ClaimedWaiting,
  InboxMark,
  InboxOpenOptions,
  InboxRun,
  InboxStore,
  InboxVerdict,
  KeptDelivery,
  NewQuarantine,
  NewWaiting,
  OpenInbox,
} from '../inbox.ts'
import type { OpenStore, StoreHarness } from './harness.ts'

export const DAY_MS = 86_400_000
export const LEASE_MS = 30_000
export const CONSUMER = 'billing'
export const ACT = { actor: 'ops@example.com', reason: 'the handler is mended' }
export const OPTIONS: InboxOpenOptions = { retentionMs: 14 * DAY_MS, idleTimeoutMs: 30_000, marksFirst: true }

/** A mark of its own; `content` stands for the message's content. */
export function markOf(content = 'a', parts: Partial<InboxMark> = {}): InboxMark {
  return {
    id: randomUUID(),
    consumer: CONSUMER,
    source: '',
    messageId: randomUUID(),
    fingerprint: Buffer.alloc(32, content),
    ...parts,
  }
}

/** The same message with other content. */
export function otherContent(mark: InboxMark): InboxMark {
  return { ...mark, fingerprint: Buffer.alloc(32, 'z') }
}

export function deliveryOf(parts: Partial<KeptDelivery> = {}): KeptDelivery {
  return {
    queue: 'orders',
    topic: 'order.created.v1',
    type: 'order.created.v1',
    contentType: 'application/json',
    orderingKey: undefined,
    sentAtMs: 1_700_000_000_123,
    transport: '{"headers":{"text":"\\u0000 é"}}',
    body: Buffer.from([0, 255, 1, 2]),
    ...parts,
  }
}

export function waitingOf(mark: InboxMark, parts: Partial<NewWaiting> = {}): NewWaiting {
  return { mark, delivery: deliveryOf(), reason: 'failed', attempts: 1, dueInMs: 0, error: 'Error: no', ...parts }
}

export function quarantineOf(mark: NewQuarantine['mark'], parts: Partial<NewQuarantine> = {}): NewQuarantine {
  return { mark, delivery: deliveryOf(), reason: 'undecodable', attempts: 1, redelivered: false, ...parts }
}

export interface InboxBench {
  readonly opened: OpenStore<unknown>
  readonly inbox: InboxStore<unknown>
  /** Applies messages in one transaction, each with a write of its message id; the verdicts. */
  readonly apply: (runs: readonly InboxRun[], options?: InboxOpenOptions) => Promise<readonly InboxVerdict[]>
  /** Takes the marks and leaves the transaction open. */
  readonly hold: (runs: readonly InboxRun[], options?: InboxOpenOptions) => Promise<OpenInbox<unknown>>
  /** The verdict on one run, without leaving anything. */
  readonly verdictOn: (run: InboxRun) => Promise<InboxVerdict | undefined>
  readonly claimDue: (options?: Partial<ClaimDueOptions>) => Promise<readonly ClaimedWaiting[]>
  readonly claimSuspect: () => Promise<ClaimedWaiting | undefined>
  /** How often the message was applied. */
  readonly applied: (mark: InboxMark) => Promise<number>
}

export async function withInbox(harness: StoreHarness, run: (bench: InboxBench) => Promise<void>): Promise<void> {
  const opened = await harness.open()
  const { inbox } = opened.store
  const hold = async (runs: readonly InboxRun[], options = OPTIONS) => {
    const open = await inbox.open(runs, options)
    await open.begin()
    return open
  }
  try {
    await run({
      opened,
      inbox,
      hold,
      async apply(runs, options) {
        const open = await hold(runs, options)
        const verdicts = await open.begin()
        for (const [index, { mark }] of runs.entries()) {
          if (verdicts[index] === 'new') await opened.write(open.tx, mark.messageId)
        }
        const finished = await open.finish([])
        assert.deepEqual(finished, verdicts.includes('new') ? 'committed' : verdicts)
        return verdicts
      },
      async verdictOn(one) {
        const open = await hold([one])
        const [verdict] = await open.begin()
        await open.rollback()
        return verdict
      },
      claimDue: async (options = {}) => (await inbox.claimDue(dueOptions(options))).claimed,
      claimSuspect: () => inbox.claimSuspect(dueOptions()),
      applied: (mark) => opened.count(mark.messageId),
    })
  } finally {
    await opened.close()
  }
}

function dueOptions(options: Partial<ClaimDueOptions> = {}): ClaimDueOptions {
  const defaults = { consumer: CONSUMER, limit: 100, leaseMs: LEASE_MS, headsOnly: false, except: [] }
  return { ...defaults, owner: randomUUID(), ...options }
}

/** The one element of a list. */
export function single<T>(items: readonly T[]): T {
  assert.equal(items.length, 1)
  return items[0] as T
}
