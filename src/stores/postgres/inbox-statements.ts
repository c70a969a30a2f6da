/**
 * Statements of the inbox tables. Each is prepared by name where the driver prepares; each is EXPLAINed by a test.
 *
 * @module
 */

import type {
  ClaimDueOptions,
  InboxMark,
  InboxOpenOptions,
  InboxQuarantineReason,
  InboxRun,
  KeptDelivery,
  NewQuarantine,
  NewWaiting,
  WaitingClaim,
} from '../../store/inbox.ts'
import { PgArray } from './array.ts'
import type { PgStatement } from './handle.ts'
import { statementName } from './statement-name.ts'

const WAITING =
  'id, consumer, source, message_id, fingerprint, reason, attempts, due_at, ' +
  'queue, topic, type, content_type, ordering_key, sent_at, transport, body, last_error, history'
const MOVED =
  'consumer, message_id, source, fingerprint, attempts, queue, topic, type, content_type, ordering_key, sent_at, ' +
  'transport, body, last_error, history'
const MARK = 'id, consumer, source, message_id, fingerprint, expires_at'
const CLOCK = 'pg_catalog.clock_timestamp()'

const CLAIMED =
  'w.id, w.consumer, w.source, w.message_id, w.fingerprint, w.reason, w.attempts, w.override, w.queue, w.topic, w.type, ' +
  'w.content_type, w.ordering_key, (extract(epoch from w.sent_at) * 1000)::float8 as sent_at_ms, w.transport, w.body, w.seq'
const after = (parameter: string): string => `${CLOCK} + ${parameter}::bigint * interval '1 millisecond'`
const momentOf = (parameter: string): string => `pg_catalog.to_timestamp(${parameter}::float8 / 1000)`

/**
 * 64 bits of the mark's id as two numbers: the advisory lock of one message. Locks of two numbers and those of one (which
 * operations use) are different to PostgreSQL.
 */
export function lockOf(id: string): [number, number] {
  return [Number.parseInt(id.slice(0, 8), 16) | 0, Number.parseInt(id.slice(9, 13) + id.slice(14, 18), 16) | 0]
}

/** The SQL of one schema; `schema` is the quoted identifier. */
export function inboxStatements(schema: string): InboxStatements {
  const name = (statement: string) => statementName(schema, `inbox_${statement}`)
  const tag = (statement: string) => `/* effectively-once:inbox.${statement} */`
  const held = (from: number) => `id = $${from}::uuid and owner = $${from + 1}::uuid and attempts = $${from + 2}::int`
  const heldValues = (claim: WaitingClaim): unknown[] => [claim.id, claim.owner, claim.attempts]
  /** Waiting rows of a key. */
  const earlier = (consumer: string, key: string) =>
    `select from ${schema}.inbox_waiting w where w.consumer = ${consumer} and w.ordering_key = ${key}`
  const notBehind = (key: string) =>
    `where ${key}::text is null or not exists (${earlier('$4::text', `${key}::text`)} ` +
    `and w.seq < coalesce((select o.seq from ${schema}.inbox_waiting o where o.id = $1::uuid), 9223372036854775807))`
  /** Remembers the limit that is in force, and sets ours. */
  const limitLocks = (parameter: string) =>
    `pg_catalog.set_config('lock_timeout', case when pg_catalog.set_config('effectively_once.lock_timeout', ` +
    `pg_catalog.current_setting('lock_timeout'), true) is not null then ${parameter}::text end, true)`
  /**
   * The id, unless the message is being worked on: then null, which the table refuses (23502). On the way, what
   * schema.open does without the cost of calling it: the session ends when BEGIN did not run, before statements sent
   * behind it commit one by one, and a silent owner is bounded (limit_transaction where the application
   * has a limit of its own, or the server is older than 17).
   */
  const guarded = (id: string) =>
    `case when pg_catalog.current_setting('transaction_deferrable') <> 'on' ` +
    `and pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()) then null ` +
    `when not pg_catalog.pg_try_advisory_xact_lock($2::int, $3::int) then null ` +
    `when case pg_catalog.current_setting('transaction_timeout', true) ` +
    `when '0' then pg_catalog.set_config('transaction_timeout', $9::text, true) ` +
    `else ${schema}.limit_transaction($9::text, pg_catalog.current_setting('transaction_timeout', true))::text end ` +
    `is null then null ` +
    `else ${id} end`
  const insertMark = (id: string) =>
    `insert into ${schema}.inbox as m (${MARK}) select ${id}, $4::text, $5::text, $6::text, $7::bytea, ${after('$8')}`
  const xid = 'returning pg_catalog.pg_current_xact_id()::text as xid'
  /**
   * Counts the marks that were taken, and then ends the limit of waits for locks, so that it is not that of the work:
   * an aggregate is complete before anything above it is evaluated.
   */
  const counted =
    `select m.xid, m.marks, pg_catalog.set_config('lock_timeout', ` +
    // Not limited at all when the guard was not reached.
    `coalesce(nullif(pg_catalog.current_setting('effectively_once.lock_timeout', true), ''), ` +
    `pg_catalog.current_setting('lock_timeout')), true) from (select ` +
    `pg_catalog.pg_current_xact_id()::text as xid, pg_catalog.count(*)::text as marks from marked) as m`
  // sql-built: the insert is a text of this file.
  const marked = (insert: string) => `marked as (${insert} returning 1) ${counted}`
  const limited = guarded(`case when ${limitLocks('$10')} is null then null else $1::uuid end`)
  // Only a mark past its retention, and only for the same content.
  const renewed =
    `do update set handled_at = ${CLOCK}, expires_at = excluded.expires_at ` +
    `where m.expires_at <= ${CLOCK} and m.fingerprint = excluded.fingerprint`
  const insertMarks = (keyed: boolean) =>
    `insert into ${schema}.inbox (${MARK}) select u.id, $4::text, u.source, u.message_id, u.fingerprint, o.expires_at ` +
    `from o, unnest($1::uuid[], $2::text[], $3::bytea[], $8::text[]${keyed ? ', $9::text[]' : ''}) ` +
    `as u(id, message_id, fingerprint, source${keyed ? ', key' : ''}) ` +
    (keyed ? `where u.key is null or not exists (${earlier('$4::text', 'u.key')}) ` : '') +
    // In one order, so that two batches with the same messages cannot deadlock.
    `order by u.id`
  // sql-built: as above.
  const many = (insert: string) =>
    `${tag('mark_many')} with o as materialized (select ${schema}.open($6::text), ${limitLocks('$7')}, ${after('$5')} as expires_at), ` +
    // sql-built: as above.
    marked(insert)
  // Made once: the hot path would spend more on putting texts together than on sending them.
  const answers = ['xid', 'marks']
  const texts = {
    mark: { name: name('mark'), text: `${tag('mark')} ${insertMark(guarded('$1::uuid'))} ${xid}`, columns: answers },
    markFirst: {
      name: name('mark_first'),
      text: `${tag('mark_first')} with ${marked(`${insertMark(limited)} ${notBehind('$11')} on conflict (id) do nothing`)}`,
      columns: answers,
    },
    markOverride: {
      name: name('mark_override'),
      text: `${tag('mark_override')} with ${marked(`${insertMark(limited)} ${notBehind('$11')} on conflict (id) ${renewed}`)}`,
      columns: answers,
    },
    // A mark that is there is a unique violation: looking for it first, row by row, costs half as much again.
    markMany: { name: name('mark_many'), text: many(insertMarks(false)), columns: answers },
    markManyFirst: {
      name: name('mark_many_first'),
      text: many(`${insertMarks(false)} on conflict (id) do nothing`),
      columns: answers,
    },
    markManyKeyed: {
      name: name('mark_many_keyed'),
      text: many(`${insertMarks(true)} on conflict (id) do nothing`),
      columns: answers,
    },
    seal: {
      name: name('seal'),
      text:
        `${tag('seal')} select case when pg_catalog.pg_current_xact_id_if_assigned() = $1::xid8 then null ` +
        `else ${schema}.inbox_refuse('ended') end`,
    },
  }
  const isDue = (options: Pick<ClaimDueOptions, 'headsOnly'>) =>
    `w.consumer = $1::text and w.due_at <= ${CLOCK} and w.id <> all($4::uuid[]) ` +
    `and (w.reason <> 'no-handler' or $5::text[] is null or w.type = any($5::text[]))` +
    (options.headsOnly
      ? ` and (w.ordering_key is null or not exists (select from ${schema}.inbox_waiting e ` +
        `where e.consumer = w.consumer and e.ordering_key = w.ordering_key and e.seq < w.seq))`
      : '')
  const dueValues = (options: Omit<ClaimDueOptions, 'limit'>): unknown[] => [
    options.consumer,
    options.owner,
    options.leaseMs,
    options.except,
    options.types ?? null,
  ]
  const entry = (what: string) => `${schema}.inbox_history(w.history, ${what})`
  const event = (kind: string, error: string) =>
    `pg_catalog.jsonb_build_object('attempt', w.attempts, 'at', ${CLOCK}, 'event', '${kind}'${error})`

  return {
    mark: (run, options, lockTimeoutMs) => {
      const { mark, stopKey, override } = run
      const { marksFirst, retentionMs, idleTimeoutMs } = options
      const [high, low] = lockOf(mark.id)
      const values: unknown[] = [
        mark.id,
        high,
        low,
        mark.consumer,
        mark.source,
        mark.messageId,
        mark.fingerprint,
        retentionMs,
        String(idleTimeoutMs),
      ]
      if (!marksFirst) return { ...texts.mark, values }
      values.push(String(lockTimeoutMs), stopKey ?? null)
      return { ...(override === true ? texts.markOverride : texts.markFirst), values }
    },
    markMany: (runs, options, lockTimeoutMs) => {
      const keyed = runs.some((run) => run.stopKey !== undefined)
      const marks = runs.map((run) => run.mark)
      const values = [
        new PgArray(
          'uuid',
          marks.map((mark) => mark.id),
        ),
        new PgArray(
          'text',
          marks.map((mark) => mark.messageId),
        ),
        new PgArray(
          'bytea',
          marks.map((mark) => mark.fingerprint),
        ),
        marks[0]?.consumer ?? '',
        options.retentionMs,
        String(options.idleTimeoutMs),
        String(lockTimeoutMs),
        new PgArray(
          'text',
          marks.map((mark) => mark.source),
        ),
      ]
      if (!keyed) return { ...(options.marksFirst ? texts.markManyFirst : texts.markMany), values }
      return { ...texts.markManyKeyed, values: [...values, runs.map((run) => run.stopKey ?? null)] }
    },
    verdicts: (runs) => ({
      name: name('verdicts'),
      text:
        `${tag('verdicts')} select pg_catalog.pg_current_xact_id()::text as xid, pg_catalog.string_agg(case ` +
        `when m.id is null then case when u.key is null then 'g' else 'b' end ` +
        `when m.xmin = pg_catalog.pg_current_xact_id()::xid then 'n' ` +
        `when m.fingerprint <> pg_catalog.substr($2::bytea, 32 * u.i::int - 31, 32) then 'm' ` +
        `when m.expires_at <= ${CLOCK} then 'e' else 'd' end, '' order by u.i) as letters ` +
        `from unnest($1::uuid[], $3::text[]) with ordinality as u(id, key, i) left join ${schema}.inbox m on m.id = u.id`,
      values: [runs.map((run) => run.mark.id), joinFingerprints(runs), runs.map((run) => run.stopKey ?? null)],
    }),
    seal: (transactionId, claim) =>
      claim === undefined
        ? { ...texts.seal, values: [transactionId] }
        : {
            name: name('seal_claim'),
            text: `${tag('seal_claim')} select ${schema}.inbox_seal($1::text, $2::uuid, $3::uuid, $4::int)`,
            values: [transactionId, ...heldValues(claim)],
          },
    ifNewer: (id, consumer, entity, version) => ({
      name: name('if_newer'),
      text:
        `${tag('if_newer')} insert into ${schema}.inbox_version as v (id, consumer, entity, version) ` +
        `values ($1::uuid, $2::text, $3::text, $4::bigint) on conflict (id) do update ` +
        `set version = excluded.version, updated_at = ${CLOCK} where v.version < excluded.version`,
      values: [id, consumer, entity, version.toString()],
    }),
    lookup: (marks) => ({
      name: name('lookup'),
      text:
        `${tag('lookup')} select id, fingerprint, expires_at <= ${CLOCK} as expired, pg_catalog.pg_is_in_recovery() as standby ` +
        `from ${schema}.inbox where id = any($1::uuid[]) union all ` +
        `select null, null, null, true where pg_catalog.pg_is_in_recovery()`,
      values: [marks.map((mark) => mark.id)],
    }),
    claimDelivery: (mark, delivery, claim) => ({
      name: name('claim'),
      text: `${tag('claim')} select ${schema}.inbox_claim($1::uuid, $2::int, $3::int, $4::text, $5::text, $6::text, $7::bytea, $8::uuid, $9::bigint, $10::text, $11::text, $12::text, $13::text, $14::text, ${momentOf('$15')}, $16::text, $17::bytea) as answer`,
      values: [
        mark.id,
        ...lockOf(mark.id),
        mark.consumer,
        mark.source,
        mark.messageId,
        mark.fingerprint,
        claim.owner,
        claim.leaseMs,
        ...deliveryValues(delivery),
      ],
    }),
    wait: (rows) => ({
      text:
        `${tag('wait')} insert into ${schema}.inbox_waiting (${WAITING}) ` +
        `select id, consumer, source, message_id, fingerprint, reason, attempts, ` +
        `${CLOCK} + due_in_ms * interval '1 millisecond', queue, topic, type, content_type, ordering_key, ` +
        `${momentOf('sent_at_ms')}, transport, body, error, case when error is null then '[]'::jsonb else ` +
        `pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('attempt', attempts, 'at', ${CLOCK}, 'event', 'failed', 'error', error)) end ` +
        `from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::int[], $8::bigint[], ` +
        `$9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::float8[], $15::text[], $16::bytea[], $17::text[]) ` +
        `with ordinality as u(id, consumer, source, message_id, fingerprint, reason, attempts, due_in_ms, ` +
        `queue, topic, type, content_type, ordering_key, sent_at_ms, transport, body, error, position) ` +
        `order by position on conflict (id) do nothing returning id`,
      values: columns(
        rows.map((row) => [
          ...markValues(row.mark),
          row.reason,
          row.attempts,
          Math.max(0, Math.round(row.dueInMs)),
          ...deliveryValues(row.delivery),
          row.error ?? null,
        ]),
      ),
    }),
    waitingFingerprints: (ids) => ({
      // Written, although nothing changes: the answer lets the broker forget the message, so the row must be on disk.
      text: `${tag('waiting_fingerprints')} update ${schema}.inbox_waiting set due_at = due_at where id = any($1::uuid[]) returning id, fingerprint`,
      values: [ids],
    }),
    claimDue: (options) => ({
      name: name(options.headsOnly ? 'claim_due_heads' : 'claim_due'),
      // sql-built: isDue chooses between two texts of this file; every value is a parameter.
      text:
        `${tag('claim_due')} with due as (select w.id from ${schema}.inbox_waiting w where ${isDue(options)} ` +
        `and w.owner is null order by w.due_at limit $6::int for update of w skip locked), ` +
        `claimed as (update ${schema}.inbox_waiting w set attempts = w.attempts + 1, owner = $2::uuid, due_at = ${after('$3')} ` +
        `from due where w.id = due.id returning ${CLAIMED}) ` +
        `select exists (select from ${schema}.inbox_waiting w where ${isDue(options)} and w.owner is not null) as suspects, ` +
        `claimed.* from (select) as one left join claimed on true`,
      values: [...dueValues(options), options.limit],
    }),
    claimSuspect: (options) => ({
      name: name(options.headsOnly ? 'claim_suspect_head' : 'claim_suspect'),
      // sql-built: as above.
      text:
        `${tag('claim_suspect')} with due as (select w.id from ${schema}.inbox_waiting w where ${isDue(options)} ` +
        `and w.owner is not null order by w.due_at limit 1 for update of w skip locked) ` +
        `update ${schema}.inbox_waiting w set attempts = w.attempts + 1, owner = $2::uuid, due_at = ${after('$3')}, ` +
        `history = ${entry(event('vanished', ''))} from due where w.id = due.id returning ${CLAIMED}`,
      values: dueValues(options),
    }),
    renew: (claims, leaseMs) => ({
      text:
        `${tag('renew')} update ${schema}.inbox_waiting w set due_at = ${after('$4')} ` +
        `from unnest($1::uuid[], $2::uuid[], $3::int[]) as c(id, owner, attempts) ` +
        `where w.id = c.id and w.owner = c.owner and w.attempts = c.attempts returning w.id`,
      values: [...claimColumns(claims), leaseMs],
    }),
    postpone: (claim, next) => ({
      text:
        `${tag('postpone')} update ${schema}.inbox_waiting w set owner = null, reason = $4::text, due_at = ${after('$5')}, ` +
        `attempts = case when $4::text = 'failed' then w.attempts else w.attempts - 1 end, ` +
        `last_error = coalesce($6::text, w.last_error), ` +
        `history = case when $6::text is null then w.history else ${entry(event('failed', `, 'error', $6::text`))} end ` +
        `where ${held(1)}`,
      values: [...heldValues(claim), next.reason, Math.max(0, Math.round(next.dueInMs)), next.error ?? null],
    }),
    release: (claims, dueInMs) => ({
      text:
        `${tag('release')} update ${schema}.inbox_waiting w set owner = null, attempts = w.attempts - 1, due_at = ${after('$4')} ` +
        `from unnest($1::uuid[], $2::uuid[], $3::int[]) as c(id, owner, attempts) ` +
        `where w.id = c.id and w.owner = c.owner and w.attempts = c.attempts`,
      values: [...claimColumns(claims), Math.max(0, Math.round(dueInMs))],
    }),
    discard: (claim) => ({
      text: `${tag('discard')} delete from ${schema}.inbox_waiting where ${held(1)}`,
      values: heldValues(claim),
    }),
    quarantineClaimed: (claim, reason, error) => ({
      text:
        `${tag('quarantine_claimed')} with w as (delete from ${schema}.inbox_waiting where ${held(1)} returning *) ` +
        `insert into ${schema}.inbox_quarantine (mark_id, reason, received_at, ${MOVED}) ` +
        `select id, $4::text, created_at, consumer, message_id, source, fingerprint, attempts, queue, topic, type, ` +
        `content_type, ordering_key, sent_at, transport, body, coalesce($5::text, last_error), ` +
        `${entry(event('quarantined', `, 'reason', $4::text, 'error', $5::text`))} from w`,
      values: [...heldValues(claim), reason, error ?? null],
    }),
    quarantine: (rows) => ({
      text:
        `${tag('quarantine')} insert into ${schema}.inbox_quarantine (mark_id, reason, received_at, ${MOVED}) ` +
        `select mark_id, reason, ${CLOCK}, consumer, message_id, source, fingerprint, attempts, queue, topic, type, ` +
        `content_type, ordering_key, ${momentOf('sent_at_ms')}, transport, body, error, ` +
        `pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('attempt', attempts, 'at', ${CLOCK}, 'event', 'quarantined', 'reason', reason, 'error', error)) ` +
        `from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::int[], ` +
        `$8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::float8[], $14::text[], $15::bytea[], ` +
        `$16::text[], $17::boolean[]) with ordinality as u(mark_id, consumer, source, message_id, fingerprint, reason, attempts, ` +
        `queue, topic, type, content_type, ordering_key, sent_at_ms, transport, body, error, redelivered, position) ` +
        // The same message again (its acknowledgement was lost) is one entry; equal messages without an id are not.
        `where not exists (select from ${schema}.inbox_quarantine q where q.mark_id = u.mark_id ` +
        `and q.fingerprint = u.fingerprint and (u.message_id is not null or u.redelivered)) order by position`,
      values: columns(
        rows.map((row) => [
          row.mark.id,
          row.mark.consumer,
          row.mark.source,
          row.mark.messageId ?? null,
          row.mark.fingerprint,
          row.reason,
          row.attempts,
          ...deliveryValues(row.delivery),
          row.error ?? null,
          row.redelivered,
        ]),
      ),
    }),
  }
}

export interface InboxStatements {
  /**
   * Takes the mark of one message. Without `marksFirst` a mark that is there is a unique violation, which aborts the
   * transaction; with it `marks` is '0', `verdicts` says why, and waits for locks are limited (55P03) within this
   * statement. A null id (23502) = busy. Answers `xid`, the transaction's id.
   */
  mark(run: InboxRun, options: InboxOpenOptions, lockTimeoutMs: number): PgStatement
  /** The same for many with different ids; fewer `marks` than runs = ask `verdicts`. Waits are limited in any case. */
  markMany(runs: readonly InboxRun[], options: InboxOpenOptions, lockTimeoutMs: number): PgStatement
  /** One letter a run: n new, d duplicate, m mismatch, e expired, b behind, g gone in the meantime. */
  verdicts(runs: readonly InboxRun[]): PgStatement
  /** The last statement before COMMIT. */
  seal(transactionId: string, claim: WaitingClaim | undefined): PgStatement
  ifNewer(id: string, consumer: string, entity: string, version: bigint): PgStatement
  lookup(marks: readonly InboxMark[]): PgStatement
  claimDelivery(
    mark: InboxMark,
    delivery: KeptDelivery,
    claim: { readonly owner: string; readonly leaseMs: number },
  ): PgStatement
  wait(rows: readonly NewWaiting[]): PgStatement
  waitingFingerprints(ids: readonly string[]): PgStatement
  claimDue(options: ClaimDueOptions): PgStatement
  claimSuspect(options: Omit<ClaimDueOptions, 'limit'>): PgStatement
  renew(claims: readonly WaitingClaim[], leaseMs: number): PgStatement
  postpone(
    claim: WaitingClaim,
    next: { readonly reason: string; readonly dueInMs: number; readonly error?: string | undefined },
  ): PgStatement
  release(claims: readonly WaitingClaim[], dueInMs: number): PgStatement
  discard(claim: WaitingClaim): PgStatement
  quarantineClaimed(claim: WaitingClaim, reason: InboxQuarantineReason, error: string | undefined): PgStatement
  quarantine(rows: readonly NewQuarantine[]): PgStatement
}

function markValues(mark: InboxMark): unknown[] {
  return [mark.id, mark.consumer, mark.source, mark.messageId, mark.fingerprint]
}

function deliveryValues(delivery: KeptDelivery): unknown[] {
  return [
    delivery.queue,
    delivery.topic,
    delivery.type ?? null,
    delivery.contentType ?? null,
    delivery.orderingKey ?? null,
    delivery.sentAtMs ?? null,
    delivery.transport,
    delivery.body,
  ]
}

function claimColumns(claims: readonly WaitingClaim[]): unknown[] {
  return [claims.map((claim) => claim.id), claims.map((claim) => claim.owner), claims.map((claim) => claim.attempts)]
}

/** Rows to columns: one array per parameter. */
function columns(rows: readonly (readonly unknown[])[]): unknown[] {
  return (rows[0] ?? []).map((_, index) => rows.map((row) => row[index]))
}

function joinFingerprints(runs: readonly InboxRun[]): Buffer {
  return Buffer.concat(runs.map((run) => run.mark.fingerprint))
}
