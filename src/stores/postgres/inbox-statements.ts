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
import type { PgStatement } from './handle.ts'

const WAITING =
  'id, consumer, source, message_id, fingerprint, reason, attempts, due_at, ' +
  'queue, topic, type, content_type, ordering_key, sent_at, transport, body, last_error, history'
const MOVED =
  'consumer, message_id, source, fingerprint, attempts, queue, topic, type, content_type, ordering_key, sent_at, ' +
  'transport, body, last_error, history'
const CLOCK = 'pg_catalog.clock_timestamp()'

/** Milliseconds since 1970 as a number. */
const msOf = (column: string): string => `(extract(epoch from ${column}) * 1000)::float8`
const after = (parameter: string): string => `${CLOCK} + ${parameter}::bigint * interval '1 millisecond'`
const momentOf = (parameter: string): string => `pg_catalog.to_timestamp(${parameter}::float8 / 1000)`

/** 64 bits of the mark's id as a decimal string: the advisory lock of one message. */
export function lockOf(id: string): string {
  return BigInt.asIntN(64, BigInt(`0x${id.slice(0, 8)}${id.slice(9, 13)}${id.slice(14, 18)}`)).toString()
}

/** The SQL of one schema; `schema` is the quoted identifier. */
export function inboxStatements(schema: string): InboxStatements {
  const name = (statement: string) => `eo_${schema.replaceAll('"', '')}_inbox_${statement}`
  const tag = (statement: string) => `/* effectively-once:inbox.${statement} */`
  const held = (from: number) => `id = $${from}::uuid and owner = $${from + 1}::uuid and attempts = $${from + 2}::int`
  const heldValues = (claim: WaitingClaim): unknown[] => [claim.id, claim.owner, claim.attempts]
  const entry = (what: string) => `${schema}.inbox_history(w.history, ${what})`
  const event = (kind: string, error: string) =>
    `pg_catalog.jsonb_build_object('attempt', w.attempts, 'at', ${CLOCK}, 'event', '${kind}'${error})`

  return {
    gate: (run, options, raise) => ({
      name: name('gate'),
      text: `${tag('gate')} select ${schema}.inbox_gate($1::uuid, $2::bigint, $3::text, $4::text, $5::text, $6::bytea, $7::bigint, $8::text, $9::text, $10::boolean, $11::boolean) as answer`,
      values: [
        run.mark.id,
        lockOf(run.mark.id),
        run.mark.consumer,
        run.mark.source,
        run.mark.messageId,
        run.mark.fingerprint,
        options.retentionMs,
        String(options.idleTimeoutMs),
        run.stopKey ?? null,
        run.override === true,
        raise,
      ],
      columns: ['answer'],
    }),
    gateMany: (runs, options, lockTimeoutMs) => ({
      name: name('gate_many'),
      text: `${tag('gate_many')} select ${schema}.inbox_gate_many($1::int, $2::bytea, $3::bytea, $4::json, $5::text, $6::json, $7::json, $8::bigint, $9::text, $10::text) as answer`,
      values: [
        runs.length,
        joinIds(runs),
        joinFingerprints(runs),
        JSON.stringify(runs.map((run) => run.mark.messageId)),
        runs[0]?.mark.consumer ?? '',
        runs.some((run) => run.mark.source !== '') ? JSON.stringify(runs.map((run) => run.mark.source)) : null,
        runs.some((run) => run.stopKey !== undefined) ? JSON.stringify(runs.map((run) => run.stopKey ?? null)) : null,
        options.retentionMs,
        String(options.idleTimeoutMs),
        String(lockTimeoutMs),
      ],
      columns: ['answer'],
    }),
    seal: (transactionId, claim) => ({
      name: name('seal'),
      text: `${tag('seal')} select ${schema}.inbox_seal($1::text, $2::uuid, $3::uuid, $4::int)`,
      values: [transactionId, claim?.id ?? null, claim?.owner ?? null, claim?.attempts ?? null],
    }),
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
      text: `${tag('claim')} select ${schema}.inbox_claim($1::uuid, $2::bigint, $3::text, $4::text, $5::text, $6::bytea, $7::uuid, $8::bigint, $9::text, $10::text, $11::text, $12::text, $13::text, ${momentOf('$14')}, $15::text, $16::bytea) as answer`,
      values: [
        mark.id,
        lockOf(mark.id),
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
      text: `${tag('waiting_fingerprints')} select id, fingerprint from ${schema}.inbox_waiting where id = any($1::uuid[])`,
      values: [ids],
    }),
    claimDue: (options) => ({
      name: name(options.headsOnly ? 'claim_due_heads' : 'claim_due'),
      text:
        `${tag('claim_due')} with due as (select w.id, w.owner as previous from ${schema}.inbox_waiting w ` +
        `where w.consumer = $1::text and w.due_at <= ${CLOCK} and w.id <> all($5::uuid[]) ` +
        `and (w.reason <> 'no-handler' or $6::text[] is null or w.type = any($6::text[])) ` +
        (options.headsOnly
          ? `and (w.ordering_key is null or not exists (select from ${schema}.inbox_waiting e ` +
            `where e.consumer = w.consumer and e.ordering_key = w.ordering_key and e.seq < w.seq)) `
          : '') +
        `order by w.due_at limit $3::int for update of w skip locked) ` +
        `update ${schema}.inbox_waiting w set attempts = w.attempts + 1, owner = $2::uuid, due_at = ${after('$4')}, ` +
        `history = case when due.previous is null then w.history else ${entry(event('vanished', ''))} end ` +
        `from due where w.id = due.id returning w.id, w.consumer, w.source, w.message_id, w.fingerprint, w.reason, ` +
        `w.attempts, w.override, w.queue, w.topic, w.type, w.content_type, w.ordering_key, ${msOf('w.sent_at')} as sent_at_ms, ` +
        `w.transport, w.body, w.seq, due.previous is not null as suspect`,
      values: [
        options.consumer,
        options.owner,
        options.limit,
        options.leaseMs,
        options.except,
        options.types === undefined ? null : options.types,
      ],
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
  /** Decides one delivery by inserting its mark; with `raise` a refusal aborts the transaction. */
  gate(run: InboxRun, options: InboxOpenOptions, raise: boolean): PgStatement
  /** The same for many, which must have different ids. */
  gateMany(runs: readonly InboxRun[], options: InboxOpenOptions, lockTimeoutMs: number): PgStatement
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

function joinIds(runs: readonly InboxRun[]): Buffer {
  let hex = ''
  for (const run of runs) hex += run.mark.id.replaceAll('-', '')
  return Buffer.from(hex, 'hex')
}

function joinFingerprints(runs: readonly InboxRun[]): Buffer {
  return Buffer.concat(runs.map((run) => run.mark.fingerprint))
}
