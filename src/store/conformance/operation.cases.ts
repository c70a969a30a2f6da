/**
 * What every operation store must hold, whatever it is built on.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fingerprint } from '../../fingerprint/fingerprint.ts'
import type { ConformanceCase } from '../../shared/conformance.ts'
import {
  type Attempt,
  isFinished,
  type NewRecord,
  type OpenOperation,
  type OpenOptions,
  type OperationRecord,
} from '../operation.ts'
import type { OpenStore, StoreHarness } from './harness.ts'

const OPTIONS: OpenOptions = { gated: true, idleTimeoutMs: 30_000 }
const UNGATED: OpenOptions = { gated: false, idleTimeoutMs: 30_000 }
const DAY_MS = 24 * 3_600_000

function attemptOn(id: string, payload: unknown = 'payload'): Attempt {
  return { id, scope: '["conformance"]', token: randomUUID(), fingerprint: fingerprint(payload) }
}

function recordOf(attempt: Attempt, outcome: string | null = '"done"'): NewRecord {
  const { id, scope, token, fingerprint: print } = attempt
  const stored = { value: print.value, mode: print.mode, keyId: null }
  return { id, scope, token, state: 'succeeded', fingerprint: stored, outcomeVersion: 1, outcome, retentionMs: DAY_MS }
}

/** The finished record of an operation. */
async function recorded(opened: OpenStore<unknown>, id: string): Promise<OperationRecord | undefined> {
  const found = await opened.store.operations.lookup(id)
  return found !== undefined && isFinished(found) ? found : undefined
}

async function withStore(harness: StoreHarness, run: (opened: OpenStore<unknown>) => Promise<void>): Promise<void> {
  const opened = await harness.open()
  try {
    await run(opened)
  } finally {
    await opened.close()
  }
}

/** Opens, writes once, and leaves the transaction open. */
async function begun(
  opened: OpenStore<unknown>,
  attempt: Attempt,
  name: string,
  options: OpenOptions = OPTIONS,
): Promise<OpenOperation<unknown>> {
  const operation = await opened.store.operations.open(attempt, options)
  await opened.write(operation.tx, name)
  return operation
}

/** The verdict on an attempt whose first statement was sent; the attempt is rolled back unless it is claimed. */
async function verdictOn(opened: OpenStore<unknown>, attempt: Attempt, name: string): Promise<string | undefined> {
  const operation = await opened.store.operations.open(attempt, OPTIONS)
  await Promise.resolve()
    .then(() => opened.write(operation.tx, name))
    .catch(() => {})
  const verdict = await operation.verdict()
  await operation.rollback()
  return verdict
}

export const operationCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'I1: record and work commit together, and the record is found afterwards',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        assert.equal(await opened.count('order'), 0)
        assert.equal(await operation.finish(recordOf(attempt, '{"a":1}'), []), 'stored')
        assert.equal(await opened.count('order'), 1)
        const record = await recorded(opened, attempt.id)
        assert.equal(record?.outcome, '{"a":1}')
        assert.equal(record?.token, attempt.token)
        assert.deepEqual([...(record?.fingerprint.value ?? [])], [...attempt.fingerprint.value])
      }),
  },
  {
    name: 'I1: a rolled back attempt leaves neither record nor work',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        await operation.rollback()
        assert.equal(await opened.count('order'), 0)
        assert.equal(await opened.store.operations.lookup(attempt.id), undefined)
      }),
  },
  {
    name: 'I6: messages commit with the record and vanish with a rollback',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const message = {
          id: randomUUID(),
          lane: 0,
          topic: 'order.created.v1',
          orderingKey: null,
          payload: '{}',
          encoding: 'text' as const,
          contentType: 'application/json',
          headers: '{}',
        }
        const lost = attemptOn(randomUUID())
        await (await begun(opened, lost, 'order')).rollback()
        assert.equal((await opened.store.outbox.read(0, [], 10, 1_000_000)).rows.length, 0)
        const kept = attemptOn(randomUUID())
        assert.equal(await (await begun(opened, kept, 'order')).finish(recordOf(kept), [message]), 'stored')
        assert.equal((await opened.store.outbox.read(0, [], 10, 1_000_000)).rows.length, 1)
      }),
  },
  {
    name: 'I4: while one attempt works, the same payload is busy and runs nothing',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        assert.equal(await verdictOn(opened, attemptOn(attempt.id), 'duplicate'), 'busy')
        assert.equal(await operation.finish(recordOf(attempt), []), 'stored')
        assert.equal(await opened.count('duplicate'), 0)
      }),
  },
  {
    name: 'SC10, I4: while one attempt works, another payload under the key is told apart and runs nothing',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID(), { amount: 1 })
        const operation = await begun(opened, attempt, 'order')
        assert.equal(await verdictOn(opened, attemptOn(attempt.id, { amount: 2 }), 'other'), 'otherPayload')
        await operation.rollback()
        assert.equal(await opened.count('other'), 0)
      }),
  },
  {
    name: 'I4: after completion a duplicate is recorded before its first statement can run',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        await operation.finish(recordOf(attempt), [])
        assert.equal(await verdictOn(opened, attemptOn(attempt.id), 'duplicate'), 'recorded')
        assert.equal(await opened.count('duplicate'), 0)
      }),
  },
  {
    name: 'R09: a work without statements is recorded in one trip, and its duplicate is refused there',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const first = await opened.store.operations.open(attempt, OPTIONS)
        assert.equal(first.verdict(), undefined)
        assert.equal(await first.finish(recordOf(attempt), []), 'stored')
        const again = attemptOn(attempt.id)
        const second = await opened.store.operations.open(again, OPTIONS)
        assert.equal(await second.finish(recordOf(again), []), 'recorded')
        await second.rollback()
      }),
  },
  {
    name: 'R07: two ungated attempts on one key: the constraint lets one commit and undoes the work of the other',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const [a, b] = [attemptOn(randomUUID()), attemptOn(randomUUID())]
        const other = { ...b, id: a.id }
        const first = await begun(opened, a, 'order', UNGATED)
        const second = await begun(opened, other, 'order', UNGATED)
        assert.equal(await first.finish(recordOf(a), []), 'stored')
        assert.equal(await second.finish(recordOf(other), []), 'lost')
        assert.equal(await opened.count('order'), 1)
        assert.equal((await opened.store.operations.lookup(a.id))?.token, a.token)
      }),
  },
  {
    name: 'R07: of many concurrent gated attempts exactly one commits',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const id = randomUUID()
        const results = await Promise.all(
          Array.from({ length: 8 }, async () => {
            const attempt = attemptOn(id)
            const operation = await opened.store.operations.open(attempt, OPTIONS)
            try {
              await opened.write(operation.tx, 'order')
            } catch {
              await operation.rollback()
              return 'refused'
            }
            return await operation.finish(recordOf(attempt), [])
          }),
        )
        assert.equal(results.filter((result) => result === 'stored').length, 1)
        assert.equal(await opened.count('order'), 1)
      }),
  },
  {
    name: 'SC20: an expired record frees its key at once, gated or not',
    needs: 'clock',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const first = attemptOn(randomUUID())
        await (await begun(opened, first, 'order')).finish(recordOf(first), [])
        await opened.advance(DAY_MS + 1)
        assert.equal(await opened.store.operations.lookup(first.id), undefined)
        const second = attemptOn(first.id, 'another payload')
        const operation = await begun(opened, second, 'order')
        assert.equal(await operation.finish(recordOf(second, '"second"'), []), 'stored')
        assert.equal(await opened.count('order'), 2)
        assert.equal((await recorded(opened, first.id))?.outcome, '"second"')
      }),
  },
  {
    name: 'SC9: a record is live until its deadline',
    needs: 'clock',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        await (await begun(opened, attempt, 'order')).finish(recordOf(attempt), [])
        await opened.advance(DAY_MS - 60_000)
        assert.notEqual(await opened.store.operations.lookup(attempt.id), undefined)
        assert.equal(await verdictOn(opened, attemptOn(attempt.id), 'duplicate'), 'recorded')
        await opened.advance(60_000)
        // Past its deadline it is nobody's outcome, also while nothing has removed it.
        assert.equal(await opened.store.operations.lookup(attempt.id), undefined)
      }),
  },
  {
    name: 'R41: a response is found with its record, then gone while the record stays',
    needs: 'clock',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const bytes = Uint8Array.from({ length: 256 }, (_, index) => index)
        const [worked, idle, without] = [attemptOn(randomUUID()), attemptOn(randomUUID()), attemptOn(randomUUID())]
        const kept = { response: bytes, responseRetentionMs: DAY_MS / 2 }
        await (await begun(opened, worked, 'order')).finish({ ...recordOf(worked), ...kept }, [])
        await (await operations.open(idle, OPTIONS)).finish({ ...recordOf(idle), ...kept }, [])
        await (await begun(opened, without, 'order')).finish(recordOf(without), [])
        assert.deepEqual(Buffer.from((await recorded(opened, worked.id))?.response ?? []), Buffer.from(bytes))
        assert.deepEqual(Buffer.from((await recorded(opened, idle.id))?.response ?? []), Buffer.from(bytes))
        assert.equal((await recorded(opened, without.id))?.response, undefined)
        await opened.advance(DAY_MS / 2 + 1)
        const tombstone = await recorded(opened, worked.id)
        assert.equal(tombstone?.response, undefined)
        assert.equal(tombstone?.outcome, '"done"')
        assert.equal(await verdictOn(opened, attemptOn(worked.id), 'duplicate'), 'recorded')
      }),
  },
  {
    name: 'I4: an attempt can ask for its verdict before its work starts',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID(), { amount: 1 })
        const first = await operations.open(attempt, OPTIONS)
        assert.equal(await first.decide(), 'claimed')
        const verdicts = []
        for (const payload of [{ amount: 1 }, { amount: 2 }]) {
          const other = await operations.open(attemptOn(attempt.id, payload), OPTIONS)
          verdicts.push(await other.decide())
          await other.rollback()
        }
        assert.deepEqual(verdicts, ['busy', 'otherPayload'])
        await opened.write(first.tx, 'order')
        assert.equal(await first.finish(recordOf(attempt), []), 'stored')
        const late = await operations.open(attemptOn(attempt.id, { amount: 1 }), OPTIONS)
        assert.equal(await late.decide(), 'recorded')
        await late.rollback()
      }),
  },
  {
    name: 'an operation is running from its verdict to the end of its transaction',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        for (const end of ['finish', 'rollback'] as const) {
          const attempt = attemptOn(randomUUID())
          assert.equal(await operations.running(attempt.id), false)
          const operation = await operations.open(attempt, OPTIONS)
          assert.equal(await operation.decide(), 'claimed')
          assert.equal(await operations.running(attempt.id), true)
          assert.equal(await operations.running(randomUUID()), false)
          if (end === 'finish') await operation.finish(recordOf(attempt), [])
          else await operation.rollback()
          assert.equal(await operations.running(attempt.id), false)
        }
      }),
  },
  {
    name: 'work without a record commits alone',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order', UNGATED)
        assert.equal(await operation.finish(undefined, []), 'stored')
        await operation.rollback()
        const idle = await operations.open(attemptOn(randomUUID()), UNGATED)
        assert.equal(await idle.finish(undefined, []), 'stored')
        await idle.rollback()
        assert.equal(await opened.count('order'), 1)
        assert.equal(await operations.lookup(attempt.id), undefined)
      }),
  },
  {
    name: 'verifyCommit says committed to its own token, other to a foreign one, notCommitted to none',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID())
        assert.equal(await operations.verifyCommit(attempt, 1_000), 'notCommitted')
        await (await begun(opened, attempt, 'order')).finish(recordOf(attempt), [])
        assert.equal(await operations.verifyCommit(attempt, 1_000), 'committed')
        assert.equal(await operations.verifyCommit(attemptOn(attempt.id), 1_000), 'other')
      }),
  },
  {
    name: 'verifyCommit stays unresolved, within its bound, while the old transaction is alive',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        assert.equal(await opened.store.operations.verifyCommit(attempt, 200), 'unresolved')
        await operation.rollback()
        assert.equal(await opened.store.operations.verifyCommit(attempt, 1_000), 'notCommitted')
      }),
  },
  {
    name: 'in(tx): a claim blocks others until the transaction of the caller ends, and its outcome commits with it',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID())
        await opened.transaction(async (tx) => {
          const claim = await operations.claimIn(tx, attempt)
          assert.equal(claim.verdict, 'claimed')
          assert.equal(await verdictOn(opened, attemptOn(attempt.id), 'duplicate'), 'busy')
          assert.equal(await operations.succeedIn(tx, recordOf(attempt), claim.transactionId ?? ''), 'stored')
        })
        assert.equal((await operations.lookup(attempt.id))?.token, attempt.token)
        await opened.transaction(async (tx) => {
          assert.equal((await operations.claimIn(tx, attemptOn(attempt.id))).verdict, 'recorded')
          assert.equal((await operations.lookupIn(tx, attempt.id))?.token, attempt.token)
        })
      }),
  },
  {
    name: 'in(tx): succeeding in another transaction than the one that claimed writes nothing',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID())
        const claim = await opened.transaction((tx) => operations.claimIn(tx, attempt))
        await opened.transaction(async (tx) => {
          assert.equal(await operations.succeedIn(tx, recordOf(attempt), claim.transactionId ?? ''), 'fenced')
        })
        assert.equal(await operations.lookup(attempt.id), undefined)
      }),
  },
  {
    name: 'SC25, B41: a handle without a transaction is refused',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const idle = await opened.idleHandle()
        try {
          await assert.rejects(opened.store.operations.assertTransaction(idle.tx), { code: 'NOT_A_TRANSACTION' })
        } finally {
          await idle.close()
        }
        await opened.transaction((tx) => opened.store.operations.assertTransaction(tx))
      }),
  },
  {
    name: 'a handle is dead after its transaction has ended',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const attempt = attemptOn(randomUUID())
        const operation = await begun(opened, attempt, 'order')
        await operation.finish(recordOf(attempt), [])
        await assert.rejects(
          Promise.resolve().then(() => opened.write(operation.tx, 'late')),
          { code: 'NOT_A_TRANSACTION' },
        )
        assert.equal(await opened.count('late'), 0)
      }),
  },
  {
    name: 'the one-statement form stores its rows once, and a duplicate is undone',
    needs: 'statement',
    run: (harness) =>
      withStore(harness, async (opened) => {
        const { operations } = opened.store
        const attempt = attemptOn(randomUUID())
        const statement = opened.writeStatement('order')
        const first = await operations.statement(recordOf(attempt), statement, 1_000)
        assert.equal(first.kind, 'stored')
        const second = await operations.statement(recordOf(attemptOn(attempt.id)), statement, 1_000)
        assert.equal(second.kind, 'lost')
        assert.equal(await opened.count('order'), 1)
      }),
  },
]
