/**
 * Inbox on PostgreSQL: marks as the gate of the work's transaction, waiting and quarantine as plain tables.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type {
  ClaimDueOptions,
  ClaimedDue,
  ClaimedWaiting,
  DeliveryClaim,
  InboxMark,
  InboxOpenOptions,
  InboxQuarantineEntry,
  InboxQuarantineReason,
  InboxRun,
  InboxStore,
  KeptDelivery,
  NewQuarantine,
  NewWaiting,
  OpenInbox,
  RedriveOptions,
  RedriveResult,
  WaitingClaim,
  WaitingEntry,
} from '../../store/inbox.ts'
import type { WorkFailure } from '../../store/operation.ts'
import type { PurgeBatch, Purged } from '../../store/retention.ts'
import { classify, toOnceError } from './classify.ts'
import type { Connections } from './connections.ts'
import { endingsOf } from './endings.ts'
import { GatedTransaction } from './gated-transaction.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { PostgresOpenInbox, sameBytes } from './inbox-open.ts'
import {
  type InboxOperatorStatements,
  inboxOperatorStatements,
  toKeptDelivery,
  toQuarantineEntry,
  toWaitingEntry,
} from './inbox-operator.ts'
import { type InboxStatements, inboxStatements } from './inbox-statements.ts'
import { failureOf, type PostgresSettings, withoutName } from './operations.ts'
import { owned } from './own-types.ts'
import { overdueMs, purgeBatch, type RetentionStatements, retentionStatements } from './retention.ts'

/** How long taking marks waits for a message that another transaction is working on. */
const LOCK_TIMEOUT_MS = 2_000

export class PostgresInbox<C extends PgClient> implements InboxStore<C> {
  readonly #connections: Connections<C>
  readonly #settings: PostgresSettings
  readonly #sql: InboxStatements
  readonly #operator: InboxOperatorStatements
  readonly #retention: RetentionStatements

  constructor(connections: Connections<C>, settings: PostgresSettings) {
    this.#connections = connections
    this.#settings = settings
    this.#sql = inboxStatements(settings.schema)
    this.#operator = inboxOperatorStatements(settings.schema)
    this.#retention = retentionStatements(settings.schema)
  }

  failureOf(error: unknown): WorkFailure {
    return failureOf(error, this.#settings)
  }

  async open(runs: readonly InboxRun[], options: InboxOpenOptions): Promise<OpenInbox<C>> {
    const [only] = runs
    if (only === undefined) throw new TypeError('an inbox transaction needs at least one run')
    if (!options.marksFirst && runs.some((run) => run.stopKey !== undefined || run.override === true)) {
      throw new TypeError('only messages without conditions may start before their verdicts')
    }
    if (runs.length > 1 && runs.some((run) => run.claim !== undefined)) {
      throw new TypeError('a claimed message runs in a transaction of its own')
    }
    // Without marks first, the same mark twice is a mark that is there.
    const distinct = options.marksFirst ? distinctRuns(runs) : runs
    const gate =
      distinct.length === 1
        ? this.#sql.mark(only, options, LOCK_TIMEOUT_MS)
        : this.#sql.markMany(distinct, options, LOCK_TIMEOUT_MS)
    const begin =
      options.isolation === undefined ? 'begin deferrable' : `begin isolation level ${options.isolation}, deferrable`
    const client = await this.#connections.acquire()
    const transaction = new GatedTransaction(client, this.#connections, { begin, gate }, this.#settings)
    return new PostgresOpenInbox(
      transaction,
      { runs, distinct, lookup: () => this.lookup([only.mark]), endings: endingsOf(client) },
      this.#sql,
      this.#settings,
    )
  }

  async lookup(marks: readonly InboxMark[]): Promise<readonly ('new' | 'duplicate' | 'mismatch' | 'expired')[]> {
    const { rows } = await this.#ask(this.#sql.lookup(marks), 'looking up marks')
    if (rows.some((row) => row['standby'] === true)) {
      throw new OnceError('REPLICA_REFUSED', 'looking up marks: the connection leads to a standby')
    }
    const found = new Map(rows.map((row) => [String(row['id']), row]))
    return marks.map((mark) => {
      const row = found.get(mark.id)
      if (row === undefined) return 'new'
      if (!sameBytes(row['fingerprint'], mark.fingerprint)) return 'mismatch'
      return row['expired'] === true ? 'expired' : 'duplicate'
    })
  }

  async claimDelivery(
    mark: InboxMark,
    delivery: KeptDelivery,
    claim: { readonly owner: string; readonly leaseMs: number },
  ): Promise<DeliveryClaim> {
    const { rows } = await this.#ask(this.#sql.claimDelivery(mark, delivery, claim), 'claiming a redelivery')
    const answer = String(rows[0]?.['answer'])
    return answer === 'claimed'
      ? { kind: 'claimed', claim: { id: mark.id, owner: claim.owner, attempts: 1 } }
      : { kind: answer as Exclude<DeliveryClaim['kind'], 'claimed'> }
  }

  async wait(rows: readonly NewWaiting[]): Promise<readonly ('waiting' | 'stored' | 'mismatch')[]> {
    if (rows.length === 0) return []
    const inserted = await this.#ask(this.#sql.wait(rows), 'storing messages that wait')
    const written = new Set(inserted.rows.map((row) => String(row['id'])))
    const others = rows.filter((row) => !written.has(row.mark.id)).map((row) => row.mark.id)
    const there = new Map<string, unknown>()
    if (others.length > 0) {
      const found = await this.#ask(this.#sql.waitingFingerprints(others), 'reading messages that wait')
      for (const row of found.rows) there.set(String(row['id']), row['fingerprint'])
    }
    return rows.map((row) => {
      if (written.has(row.mark.id)) return 'waiting'
      // Gone in the meantime: it was applied from there.
      if (!there.has(row.mark.id)) return 'stored'
      return sameBytes(there.get(row.mark.id), row.mark.fingerprint) ? 'stored' : 'mismatch'
    })
  }

  async claimDue(options: ClaimDueOptions): Promise<ClaimedDue> {
    const { rows } = await this.#ask(this.#sql.claimDue(options), 'claiming messages that are due')
    return {
      suspects: rows[0]?.['suspects'] === true,
      claimed: rows
        .filter((row) => row['id'] !== null)
        .sort((a, b) => Number(a['seq']) - Number(b['seq']))
        .map((row) => toClaimed(row, options.owner, false)),
    }
  }

  async claimSuspect(options: Omit<ClaimDueOptions, 'limit'>): Promise<ClaimedWaiting | undefined> {
    const { rows } = await this.#ask(this.#sql.claimSuspect(options), 'claiming a message that is suspect')
    return rows[0] === undefined ? undefined : toClaimed(rows[0], options.owner, true)
  }

  async renew(claims: readonly WaitingClaim[], leaseMs: number): Promise<readonly string[]> {
    const { rows } = await this.#ask(this.#sql.renew(claims, leaseMs), 'renewing claims')
    return rows.map((row) => String(row['id']))
  }

  async postpone(
    claim: WaitingClaim,
    next: {
      readonly reason: 'failed' | 'no-handler' | 'behind'
      readonly dueInMs: number
      readonly error?: string | undefined
    },
  ): Promise<'waiting' | 'fenced'> {
    const { rowCount } = await this.#ask(this.#sql.postpone(claim, next), 'postponing a message')
    return rowCount === 1 ? 'waiting' : 'fenced'
  }

  async release(claims: readonly WaitingClaim[], dueInMs: number): Promise<void> {
    if (claims.length > 0) await this.#ask(this.#sql.release(claims, dueInMs), 'giving claims back')
  }

  async discard(claim: WaitingClaim): Promise<'discarded' | 'fenced'> {
    const { rowCount } = await this.#ask(this.#sql.discard(claim), 'settling a message that was applied before')
    return rowCount === 1 ? 'discarded' : 'fenced'
  }

  async quarantineClaimed(
    claim: WaitingClaim,
    why: { readonly reason: InboxQuarantineReason; readonly error?: string | undefined },
  ): Promise<'quarantined' | 'fenced'> {
    const statement = this.#sql.quarantineClaimed(claim, why.reason, why.error)
    const { rowCount } = await this.#ask(statement, 'quarantining a message')
    return rowCount === 1 ? 'quarantined' : 'fenced'
  }

  async quarantine(rows: readonly NewQuarantine[]): Promise<void> {
    if (rows.length > 0) await this.#ask(this.#sql.quarantine(rows), 'quarantining messages')
  }

  async redrive(ids: readonly string[], options: RedriveOptions): Promise<readonly RedriveResult[]> {
    if (ids.length === 0) return []
    const { rows } = await this.#ask(this.#operator.redrive(ids, options), 'redriving messages')
    return rows.map((row) => row['result'] as RedriveResult)
  }

  async hasten(consumer: string, ids?: readonly string[]): Promise<number> {
    const { rowCount } = await this.#ask(this.#operator.hasten(consumer, ids), 'hastening messages')
    return rowCount ?? 0
  }

  async listWaiting(page: {
    readonly consumer?: string | undefined
    readonly limit: number
  }): Promise<readonly WaitingEntry[]> {
    const { rows } = await this.#ask(this.#operator.listWaiting(page), 'listing messages that wait')
    return rows.map(toWaitingEntry)
  }

  async listQuarantine(page: {
    readonly consumer?: string | undefined
    readonly limit: number
    readonly after?: string | undefined
  }): Promise<readonly InboxQuarantineEntry[]> {
    const { rows } = await this.#ask(this.#operator.listQuarantine(page), 'listing quarantined messages')
    return rows.map(toQuarantineEntry)
  }

  async readQuarantined(id: string): Promise<KeptDelivery | undefined> {
    const { rows } = await this.#ask(this.#operator.readQuarantined(id), 'reading a quarantined message')
    return rows[0] === undefined ? undefined : toKeptDelivery(rows[0])
  }

  purgeMarks(batch: PurgeBatch): Promise<Purged> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.marks(batch)
    return purgeBatch(this.#connections, answerTimeoutMs, statement, batch, 'removing old marks')
  }

  overdueMarksMs(graceMs: number): Promise<number> {
    const { answerTimeoutMs } = this.#settings
    const statement = this.#retention.marksOverdue(graceMs)
    return overdueMs(this.#connections, answerTimeoutMs, statement, 'looking for old marks')
  }

  /** One statement of ours on a connection of its own, with a bound. */
  async #ask(statement: PgStatement, doing: string): Promise<PgResult> {
    // As it is sent: another one may have switched it off by the time of the answer.
    const { prepare, answerTimeoutMs } = this.#settings
    try {
      return await this.#connections.use(answerTimeoutMs, (client) =>
        client.query(owned(prepare ? statement : withoutName(statement))),
      )
    } catch (error) {
      if (prepare && classify(error) === 'statement') {
        this.#settings.prepare = false
        return await this.#ask(statement, doing)
      }
      throw toOnceError(error, doing)
    }
  }
}

/** The first run of each mark. */
function distinctRuns(runs: readonly InboxRun[]): readonly InboxRun[] {
  const byId = new Map<string, InboxRun>()
  for (const run of runs) if (!byId.has(run.mark.id)) byId.set(run.mark.id, run)
  return byId.size === runs.length ? runs : [...byId.values()]
}

function toClaimed(row: Record<string, unknown>, owner: string, suspect: boolean): ClaimedWaiting {
  const id = String(row['id'])
  return {
    mark: {
      id,
      consumer: String(row['consumer']),
      source: String(row['source']),
      messageId: String(row['message_id']),
      fingerprint: row['fingerprint'] as Uint8Array,
    },
    claim: { id, owner, attempts: Number(row['attempts']) },
    delivery: toKeptDelivery(row),
    reason: row['reason'] as ClaimedWaiting['reason'],
    override: row['override'] === true,
    suspect,
  }
}
