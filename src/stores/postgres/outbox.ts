/**
 * Outbox on PostgreSQL: the store contract over the statements beside this file.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type {
  AcquireResult,
  LaneLease,
  LaneStep,
  LaneView,
  NextRead,
  OperatorAct,
  OutboxBell,
  OutboxStore,
  ParkedRow,
  Parking,
  PendingRow,
  PendingView,
  QuarantinedView,
  QuarantineReason,
  Quarantining,
  ReadResult,
  Released,
  RenewResult,
  StoppedKey,
} from '../../store/outbox.ts'
import type { PurgeBatch, Purged } from '../../store/retention.ts'
import type { PgPool, PgResult } from './handle.ts'
import { PostgresBell } from './outbox-bell.ts'
import { OutboxRunner, type OutboxRunSettings, type OutboxStatement } from './outbox-run.ts'
import { type OutboxStatements, outboxStatements } from './outbox-statements.ts'
import { overdueMs, purgeBatch, type RetentionStatements, retentionStatements } from './retention.ts'

type Row = Readonly<Record<string, unknown>>

/** After a large payload was met, so many reads use the exact form. */
const LARGE_READS = 50

export class PostgresOutbox implements OutboxStore {
  readonly bell: OutboxBell
  readonly #runner: OutboxRunner
  readonly #sql: OutboxStatements
  readonly #retention: RetentionStatements
  readonly #settings: OutboxRunSettings
  /** Reads left that use the exact form, by lane. */
  readonly #largeReads = new Map<number, number>()

  constructor(pool: PgPool, settings: OutboxRunSettings) {
    this.#runner = new OutboxRunner(pool, settings)
    this.#sql = outboxStatements(settings.schema)
    this.#retention = retentionStatements(settings.schema)
    this.#settings = settings
    this.bell = new PostgresBell(pool, this.#runner, settings)
  }

  async lanes(): Promise<readonly LaneView[]> {
    const { rows } = await this.#runner.run(this.#sql.lanes, [], 'listing outbox lanes')
    return rows.map((row) => ({
      lane: Number(row['lane']),
      owner: row['owner'] as string | null,
      leaseLeftMs: row['owner'] === null ? 0 : Math.max(0, Number(row['left_ms'])),
    }))
  }

  async acquire(lane: number, owner: string, leaseMs: number): Promise<AcquireResult> {
    const doing = `taking outbox lane ${lane}`
    const { rows } = await this.#runner.run(this.#sql.acquire, [lane, owner, leaseMs], doing)
    const row = rows[0]
    if (row !== undefined) {
      return {
        kind: 'acquired',
        lease: { lane, owner, fence: Number(row['fence']) },
        deaths: Number(row['deaths']),
      }
    }
    const refused = (await this.#runner.run(this.#sql.refused, [lane], doing)).rows[0]
    if (refused?.['foreign'] === true) return { kind: 'foreign' }
    return { kind: 'held', retryAfterMs: Math.max(1, Number(refused?.['left_ms'] ?? 0)) }
  }

  async renew(lease: LaneLease, leaseMs: number, settled: boolean): Promise<RenewResult> {
    const { rows } = await this.#step(this.#sql.renew, lease, leaseMs, [settled])
    return { kind: heldOf(rows), wanted: rows[0]?.['wanted'] === true }
  }

  async release({ lane, owner, fence }: LaneLease): Promise<LaneStep> {
    const { rowCount } = await this.#runner.run(this.#sql.release, [lane, owner, fence], `handing back lane ${lane}`)
    return rowCount === 1 ? 'done' : 'lost'
  }

  async askForLane(owner: string, waitMs: number): Promise<void> {
    await this.#runner.run(this.#sql.ask, [owner, waitMs], 'asking for an outbox lane')
  }

  async read(lane: number, inFlight: readonly number[], limit: number, bytesMax: number): Promise<ReadResult> {
    const doing = `reading outbox lane ${lane}`
    const left = this.#largeReads.get(lane) ?? 0
    if (left === 0) {
      const perRow = Math.max(1, Math.floor(bytesMax / limit))
      const { rows } = await this.#runner.run(this.#sql.read, [lane, ranges(inFlight), limit, perRow], doing)
      const small = rows.findIndex((row) => row['payload'] === null)
      if (small === -1) return readResult(rows, lane)
      if (small > 0) return { ...readResult(rows.slice(0, small), lane), more: true }
      this.#largeReads.set(lane, LARGE_READS)
    } else {
      this.#largeReads.set(lane, left - 1)
    }
    const { rows } = await this.#runner.run(this.#sql.readLarge, [lane, ranges(inFlight), limit, bytesMax], doing)
    return { ...readResult(rows, lane), more: rows.length > 0 }
  }

  async settle(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
  ): Promise<LaneStep> {
    const statement = options.history ? this.#sql.settleToHistory : this.#sql.settle
    return heldOf((await this.#step(statement, lease, leaseMs, [literal(seqs), options.progress])).rows)
  }

  async settleAndRead(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean },
    { inFlight, limit, bytesMax }: NextRead,
  ): Promise<ReadResult & { readonly kind: LaneStep }> {
    if ((this.#largeReads.get(lease.lane) ?? 0) > 0) {
      const kind = await this.settle(lease, leaseMs, seqs, options)
      if (kind === 'lost') return { kind, rows: [], durable: true }
      return { kind, ...(await this.read(lease.lane, inFlight, limit, bytesMax)) }
    }
    const statement = options.history ? this.#sql.settleToHistoryAndRead : this.#sql.settleAndRead
    const perRow = Math.max(1, Math.floor(bytesMax / limit))
    const values = [literal(seqs), options.progress, ranges(inFlight), limit, perRow]
    const { rows } = await this.#step(statement, lease, leaseMs, values)
    if (rows.length === 0) return { kind: 'lost', rows: [], durable: true }
    if (rows[0]?.['seq'] === null) return { kind: 'done', rows: [], durable: true }
    const large = rows.findIndex((row) => row['payload'] === null)
    const fitting = large === -1 ? rows : rows.slice(0, large)
    if (large === 0) this.#largeReads.set(lease.lane, LARGE_READS)
    return {
      kind: 'done',
      // They come in this order; no clause of the statement says so, for it would sort them once more.
      rows: fitting.map((row) => pendingRow(row, lease.lane)).sort((one, other) => one.seq - other.seq),
      // Its commit is on disk, and with it every commit that it saw.
      durable: true,
      more: large !== -1,
    }
  }

  async stoppedKeys(
    lease: LaneLease,
    leaseMs: number,
  ): Promise<{ readonly kind: LaneStep; readonly keys: readonly StoppedKey[] }> {
    const { rows } = await this.#step(this.#sql.stoppedKeys, lease, leaseMs, [])
    const keys = rows.filter((row) => row['seq'] !== null)
    return {
      kind: rows.length === 0 ? 'lost' : 'done',
      keys: keys.map((row) => ({ orderingKey: String(row['ordering_key']), seq: Number(row['seq']) })),
    }
  }

  async park(lease: LaneLease, leaseMs: number, rows: readonly Parking[]): Promise<LaneStep> {
    const values = [
      literal(rows.map((row) => row.seq)),
      rows.map((row) => row.reason),
      rows.map((row) => storable(row.error)),
      literal(rows.map((row) => row.delayMs)),
      literal(rows.map((row) => (row.counts ? 1 : 0))),
    ]
    return heldOf((await this.#step(this.#sql.park, lease, leaseMs, values)).rows)
  }

  async parkBehind(lease: LaneLease, leaseMs: number, seqs: readonly number[]): Promise<LaneStep> {
    return heldOf((await this.#step(this.#sql.parkBehind, lease, leaseMs, [literal(seqs)])).rows)
  }

  async due(
    lane: number,
    inFlight: readonly number[],
    limit: number,
    bytesMax: number,
  ): Promise<{ readonly rows: readonly ParkedRow[]; readonly nextInMs: number | null }> {
    const values = [lane, ranges(inFlight), limit, bytesMax]
    const { rows } = await this.#runner.run(this.#sql.due, values, `reading parked rows of lane ${lane}`)
    const next = rows[0]?.['next_in_ms'] ?? null
    return {
      rows: rows
        .filter((row) => row['seq'] !== null)
        .map((row) => ({ ...pendingRow(row, lane), attempts: Number(row['attempts']) })),
      nextInMs: next === null ? null : Math.max(1, Number(next)),
    }
  }

  async settleParked(
    lease: LaneLease,
    leaseMs: number,
    seqs: readonly number[],
    options: { readonly history: boolean; readonly progress: boolean; readonly limit: number },
  ): Promise<Released> {
    const values = [literal(seqs), options.history, options.progress, options.limit]
    const { rows } = await this.#step(this.#sql.settleParked, lease, leaseMs, values)
    return { kind: heldOf(rows), next: nextOf(rows), moved: Number(rows[0]?.['moved']) }
  }

  async quarantine(
    lease: LaneLease,
    leaseMs: number,
    rows: readonly Quarantining[],
  ): Promise<{ readonly kind: LaneStep; readonly next: readonly StoppedKey[] }> {
    const values = [
      literal(rows.map((row) => row.seq)),
      rows.map((row) => row.reason),
      rows.map((row) => storable(row.error)),
      rows.map((row) => row.stopsKey),
    ]
    const result = await this.#step(this.#sql.quarantine, lease, leaseMs, values)
    return { kind: heldOf(result.rows), next: nextOf(result.rows) }
  }

  async claimAlone(lease: LaneLease, leaseMs: number, seq: number): Promise<number> {
    const { rows } = await this.#step(this.#sql.claimAlone, lease, leaseMs, [seq])
    return heldOf(rows) === 'lost' ? 0 : Number(rows[0]?.['claims'])
  }

  async unclaimAlone(lease: LaneLease, leaseMs: number): Promise<LaneStep> {
    return heldOf((await this.#step(this.#sql.unclaimAlone, lease, leaseMs, [])).rows)
  }

  async pending(): Promise<PendingView> {
    const { rows } = await this.#runner.run(this.#sql.pending, [], 'asking what is pending in the outbox')
    const row: Row = rows[0] ?? {}
    const now = Number(row['now_ms'])
    const age = (at: unknown) => (at === null || at === undefined ? null : Math.max(0, now - Number(at)))
    return {
      oldestMs: age(row['oldest_ms']),
      oldestParkedMs: age(row['parked_ms']),
      oldestQuarantinedMs: age(row['quarantined_ms']),
      relayAlive: row['alive'] === true,
      lanesWithoutOwner: row['without_owner'] as number[],
    }
  }

  async quarantined(limit: number): Promise<readonly QuarantinedView[]> {
    const { rows } = await this.#runner.run(this.#sql.quarantined, [limit], 'listing quarantined messages')
    return rows.map((row) => ({
      lane: Number(row['lane']),
      seq: Number(row['seq']),
      id: String(row['id']),
      topic: String(row['topic']),
      attempts: Number(row['attempts']),
      reason: row['reason'] as QuarantineReason,
      lastError: row['last_error'] as string | null,
      stopsKey: row['stops_key'] === true,
      history: String(row['history']),
      createdAtMs: Number(row['created_at_ms']),
      quarantinedAtMs: Number(row['quarantined_at_ms']),
    }))
  }

  async redrive(ids: readonly string[], act: OperatorAct): Promise<readonly string[]> {
    const { rows } = await this.#runner.run(this.#sql.redrive, [ids, act.actor, act.reason], 'redriving messages')
    return rows.map((row) => String(row['id']))
  }

  async discard(ids: readonly string[], act: OperatorAct): Promise<readonly string[]> {
    const { rows } = await this.#runner.run(this.#sql.discard, [ids, act.actor, act.reason], 'discarding messages')
    return rows.map((row) => String(row['id']))
  }

  async adoptCluster(act: OperatorAct): Promise<void> {
    await this.#runner.run(this.#sql.adopt, [act.actor, act.reason], 'adopting the database cluster')
  }

  purgeHistory(batch: PurgeBatch): Promise<Purged> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.history(batch)
    return purgeBatch(this.#runner.connections, answerTimeoutMs, statement, batch, 'purging outbox history')
  }

  overdueHistoryMs(graceMs: number): Promise<number> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.historyOverdue(graceMs)
    return overdueMs(this.#runner.connections, answerTimeoutMs, statement, 'looking at outbox history')
  }

  #step(statement: OutboxStatement, lease: LaneLease, leaseMs: number, values: unknown[]): Promise<PgResult> {
    const { lane, owner, fence } = lease
    return this.#runner.run(statement, [lane, owner, fence, leaseMs, ...values], `working on outbox lane ${lane}`)
  }
}

function heldOf(rows: readonly Row[]): LaneStep {
  return rows[0]?.['held'] === 1 ? 'done' : 'lost'
}

/** The driver would quote and escape each number. */
function literal(numbers: readonly number[]): string {
  return `{${numbers.join(',')}}`
}

/** As a multirange: numbers that follow each other are one range. */
function ranges(numbers: readonly number[]): string {
  const sorted = [...numbers].sort((one, other) => one - other)
  let text = ''
  for (let from = 0; from < sorted.length; ) {
    const low = sorted[from] as number
    let high = low
    for (from += 1; from < sorted.length && (sorted[from] as number) <= high + 1; from += 1)
      high = sorted[from] as number
    text += `${text === '' ? '' : ','}[${low},${high}]`
  }
  return `{${text}}`
}

/** Errors come from brokers; U+0000 and lone surrogates must not keep a row from being moved. */
function storable(text: string): string {
  return text.replaceAll('\0', '').toWellFormed()
}

function readResult(rows: readonly Row[], lane: number): ReadResult {
  return { rows: rows.map((row) => pendingRow(row, lane)), durable: rows.length === 0 || rows[0]?.['durable'] === true }
}

function pendingRow(row: Row, lane: number): PendingRow {
  const seq = Number(row['seq'])
  if (!Number.isSafeInteger(seq)) throw new OnceError('STORE_UNAVAILABLE', 'an outbox seq is beyond 2^53')
  return {
    seq,
    lane,
    id: row['id'] as string,
    topic: row['topic'] as string,
    orderingKey: row['ordering_key'] as string | null,
    payload: row['payload'] as string,
    encoding: (row['encoding'] as string | null) ?? 'text',
    contentType: (row['content_type'] as string | null) ?? 'application/json',
    headers: (row['headers'] as string | null) ?? '{}',
    createdAtMs: Number(row['created_at_ms']),
  }
}

/** `[["key", seq], ...]` as JSON text. */
function nextOf(rows: readonly Row[]): readonly StoppedKey[] {
  const text = rows[0]?.['next']
  if (typeof text !== 'string') return []
  return (JSON.parse(text) as [string, number][]).map(([orderingKey, seq]) => ({ orderingKey, seq }))
}
