/**
 * What outbox cases begin with: a store, messages in it, and a relay that owns lane 0.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { LaneLease, OutboxRow, OutboxStore, ParkedRow, PendingRow } from '../outbox.ts'
import type { OpenStore, StoreHarness } from './harness.ts'

export const LEASE_MS = 30_000
/** More bytes than any case writes. */
export const BYTES = 1_000_000
export const ACT = { actor: 'ops@example.com', reason: 'the queue exists now' }

/** A message's row; `{}` on topic `order.created.v1` unless told otherwise. */
export function rowOf(orderingKey: string | null = null, parts: Partial<OutboxRow> = {}): OutboxRow {
  return {
    id: randomUUID(),
    lane: 0,
    topic: 'order.created.v1',
    orderingKey,
    payload: '{}',
    encoding: 'text',
    contentType: 'application/json',
    headers: '{}',
    ...parts,
  }
}

/** An open store with what the cases do most. */
export interface OutboxBench {
  readonly opened: OpenStore<unknown>
  readonly outbox: OutboxStore
  /** Commits messages in one transaction of the application, and answers their rows as they are read. */
  readonly commit: (rows: readonly OutboxRow[]) => Promise<PendingRow[]>
  /** Takes a free lane. */
  readonly own: (lane?: number, owner?: string) => Promise<LaneLease>
  /** Ids of what lane 0 has to read, in order. */
  readonly pendingIds: () => Promise<string[]>
  /** What is due in lane 0. */
  readonly due: () => Promise<readonly ParkedRow[]>
}

export async function withOutbox(harness: StoreHarness, run: (bench: OutboxBench) => Promise<void>): Promise<void> {
  const opened = await harness.open()
  const { outbox, operations } = opened.store
  try {
    await run({
      opened,
      outbox,
      async commit(rows) {
        await opened.transaction((tx) => operations.addIn(tx, rows))
        const found = new Map<string, PendingRow>()
        for (const lane of new Set(rows.map((row) => row.lane))) {
          for (const row of await readAll(outbox, lane)) found.set(row.id, row)
        }
        return rows.map((row) => present(found.get(row.id)))
      },
      async own(lane = 0, owner = randomUUID()) {
        await outbox.lanes()
        const result = await outbox.acquire(lane, owner, LEASE_MS)
        assert.ok(result.kind === 'acquired', `lane ${lane} is ${result.kind}`)
        return result.lease
      },
      pendingIds: async () => (await outbox.read(0, [], 10_000, BYTES)).rows.map((row) => row.id),
      due: async () => (await outbox.due(0, [], 10_000, BYTES)).rows,
    })
  } finally {
    await opened.close()
  }
}

/** Page by page; a page may end early, for instance before a large row. */
async function readAll(outbox: OutboxStore, lane: number): Promise<PendingRow[]> {
  const all: PendingRow[] = []
  for (;;) {
    const sent = all.map((row) => row.seq)
    const { rows } = await outbox.read(lane, sent, 1_000, BYTES)
    if (rows.length === 0) return all
    all.push(...rows)
  }
}

/** The value, which must be there. */
export function present<T>(value: T | undefined | null): T {
  assert.ok(value !== undefined && value !== null, 'something that must be there is missing')
  return value
}

export const SETTLED = { history: false, progress: true }
export const RELEASED = { history: false, progress: true, limit: 1_000 }

/** A no by the broker that is tried again after `delayMs`. */
export function refusal(seq: number, delayMs = 0): Parameters<OutboxStore['park']>[2][number] {
  return { seq, reason: 'refused', error: 'nacked', delayMs, counts: true }
}

/** A message that can never be sent. */
export function invalid(seq: number, stopsKey = false): Parameters<OutboxStore['quarantine']>[2][number] {
  return { seq, reason: 'invalid', error: 'too large', stopsKey }
}
