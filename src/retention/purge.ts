/**
 * Purge: removes what is past its retention, in short steps, until nothing is due or the time is over.
 *
 * Nothing depends on it: an expired record frees its key by itself, and an expired answer is not given out. It gives
 * back the space, and it is what makes "kept for 24 hours" true of the bytes as well.
 *
 * The store's clock decides what is due (I14), and each batch is a transaction of its own, so that no request waits for
 * more than one batch and a purge that is killed has lost nothing. What is unfinished has no expiry: messages that are
 * pending, parked, waiting or quarantined are never looked at, and the marks of the last two are kept with them (I13).
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { integerOption, refuseUnknownOptions, signalOption } from '../shared/options.ts'
import { pause } from '../shared/waiting.ts'
import type { PurgeBatch, Purged } from '../store/retention.ts'
import type { Store } from '../store/store.ts'

/**
 * How long an expired record stays: an attempt whose answer to COMMIT was lost still looks for its own record, however
 * short the retention is, and a failover may turn the clock back a little.
 */
const RECORD_GRACE_MS = 60_000
/** As for consumers, which remove their marks by themselves. */
const MARK_GRACE_MS = 24 * 3_600_000
const HISTORY_MAX_MS = 3_650 * 24 * 3_600_000

export interface PurgeOptions {
  /** Most rows of a batch, each a transaction. Default 1_000; 1 to 4_000. */
  readonly batchRows?: number | undefined
  /** Pause between batches, milliseconds, for everybody else. Default 10; 0 to 10_000. */
  readonly restMs?: number | undefined
  /** No batch starts later than this, milliseconds. Default 60_000; 1 to 86_400_000. */
  readonly timeMs?: number | undefined
  /**
   * Published messages that are kept as history (`history` of the relay) are removed when they are older than this,
   * milliseconds. Default: they stay. 0 to ten years.
   */
  readonly historyMs?: number | undefined
  /** No batch starts after it aborts; what was removed by then is reported. */
  readonly signal?: AbortSignal | undefined
}

/** What a purge did, and what it left. */
export interface PurgeReport {
  /** Operations removed with their outcomes; their keys had been free since they expired. */
  readonly records: number
  /** Stored answers erased; the keys stay taken. */
  readonly responses: number
  /** Marks of messages that consumers have applied. */
  readonly marks: number
  /** Published messages removed from the history. */
  readonly history: number
  /**
   * Milliseconds for which the oldest row that is left could have been removed; 0 = none is left. Worth an alert when it
   * grows from purge to purge: then more expires than is removed.
   */
  readonly lagMs: { readonly operations: number; readonly marks: number; readonly history: number }
  /** false = the time was over or the signal came, with something left. */
  readonly complete: boolean
}

interface Settings {
  readonly batchRows: number
  readonly restMs: number
  readonly timeMs: number
  readonly historyMs: number | undefined
  readonly signal: AbortSignal | undefined
}

/** One batch of one kind of row, counted. */
type Part = (batch: PurgeBatch) => Promise<Purged>

/** @see Once.purge */
export async function purge<Tx>(store: Store<Tx>, options: PurgeOptions = {}): Promise<PurgeReport> {
  const settings = readOptions(options)
  const { historyMs } = settings
  const counts = { records: 0, responses: 0, marks: 0, history: 0 }
  const parts = new Map<Part, number>()
  parts.set(async (batch) => {
    const purged = await store.operations.purge(batch)
    counts.records += purged.removed
    counts.responses += purged.erased
    return purged
  }, RECORD_GRACE_MS)
  parts.set(async (batch) => {
    const purged = await store.inbox.purgeMarks(batch)
    counts.marks += purged.removed
    return purged
  }, MARK_GRACE_MS)
  if (historyMs !== undefined) {
    parts.set(async (batch) => {
      const purged = await store.outbox.purgeHistory(batch)
      counts.history += purged.removed
      return purged
    }, historyMs)
  }
  const complete = await untilDone(parts, settings)
  const lagMs = {
    operations: await store.operations.overdueMs(RECORD_GRACE_MS),
    marks: await store.inbox.overdueMarksMs(MARK_GRACE_MS),
    history: historyMs === undefined ? 0 : await store.outbox.overdueHistoryMs(historyMs),
  }
  return { ...counts, lagMs, complete }
}

/** The parts take turns, so that a backlog of one does not take all the time. Whether nothing was left due. */
async function untilDone(parts: ReadonlyMap<Part, number>, settings: Settings): Promise<boolean> {
  const { batchRows: limit, restMs, timeMs, signal } = settings
  const endsAt = performance.now() + timeMs
  const stopped = () => signal?.aborted === true || performance.now() >= endsAt
  const left = new Map([...parts].map(([part, graceMs]): [Part, PurgeBatch] => [part, { graceMs, limit }]))
  while (left.size > 0) {
    for (const [part, batch] of left) {
      if (stopped()) return false
      const { after } = await part(batch)
      if (after === undefined) left.delete(part)
      else left.set(part, { ...batch, after })
      if (restMs > 0 && left.size > 0 && !stopped()) await pause(Math.min(restMs, endsAt - performance.now()), signal)
    }
  }
  return true
}

function readOptions(options: PurgeOptions): Settings {
  refuseUnknownOptions('once.purge', options, ['batchRows', 'restMs', 'timeMs', 'historyMs', 'signal'])
  const { historyMs } = options
  return {
    batchRows: integerOption('batchRows', options.batchRows, { min: 1, max: 4_000, default: 1_000 }),
    restMs: integerOption('restMs', options.restMs, { min: 0, max: 10_000, default: 10 }),
    timeMs: integerOption('timeMs', options.timeMs, { min: 1, max: 86_400_000, default: 60_000 }),
    historyMs:
      historyMs && integerOption('historyMs', historyMs, { min: 0, max: HISTORY_MAX_MS, default: HISTORY_MAX_MS }),
    signal: signalOption('signal', options.signal),
  }
}
