/**
 * Statements of the operation table. Each is prepared by name where the driver prepares; each is EXPLAINed by a test.
 *
 * @module
 */

import { hash } from 'node:crypto'
import type { Attempt, NewRecord, UserStatement } from '../../store/operation.ts'
import type { PgStatement } from './handle.ts'
import { keyLockParts, locksOf } from './locks.ts'
import { statementName } from './statement-name.ts'

/** Name of the constraint that is the arbiter: one record per operation. */
export const OPERATION_CONSTRAINT = 'operation_pkey'

/** Statements of the user that are prepared, for each connection; further ones are sent as they are. */
const SINGLES_MAX = 100

const RECORD_COLUMNS =
  'id, token, state, fingerprint_mode, fingerprint_key, fingerprint, scope, outcome_version, outcome, expires_at'

const SINGLE_COLUMNS = ['outcome']

/** A statement is written member by member: copying the constant part costs more than the rest of it. */
function valued(
  { name, text, columns }: { readonly name: string; readonly text: string; readonly columns?: readonly string[] },
  values: unknown[],
): PgStatement {
  return columns === undefined ? { name, text, values } : { name, text, values, columns }
}

/** The SQL of one schema; `schema` is the quoted identifier. */
export function operationStatements(schema: string): OperationStatements {
  const prefix = statementName(schema, '')
  const insert = `insert into ${schema}.operation (${RECORD_COLUMNS})`
  const record =
    `$1::uuid, $2::uuid, $3::${schema}.operation_state, $4::${schema}.operation_fingerprint_mode, $5::text, $6::bytea, $7::text, $8::smallint, $9::text, ` +
    `pg_catalog.clock_timestamp() + $10::bigint * interval '1 millisecond'`
  /** Most records have no response; theirs are not burdened with it. */
  const insertWithResponse = insert.replace(/\)$/, ', response, response_expires_at)')
  const recordWithResponse = `${record}, $11::bytea, pg_catalog.clock_timestamp() + $12::bigint * interval '1 millisecond'`
  const valuesOf = (r: Omit<NewRecord, 'outcome'>, ...more: readonly unknown[]): unknown[] => [
    r.id,
    r.token,
    r.state,
    r.fingerprint.mode,
    r.fingerprint.keyId,
    r.fingerprint.value,
    r.scope,
    r.outcomeVersion,
    ...more,
  ]
  /** By the user's text, whose string is usually the same one each time. */
  const singles = new Map<string, { readonly ownValues: number; readonly name: string; readonly text: string }>()
  /** Text and name are made once for each statement of the user; one that is built anew each time is not prepared. */
  const singleOf = (user: string, ownValues: number): { name?: string; text: string } => {
    const known = singles.get(user)
    if (known !== undefined && known.ownValues === ownValues) return known
    const shifted = record
      .replace('$10::bigint', '$9::bigint')
      .replace(
        '$9::text',
        `(select case when pg_catalog.octet_length(t) > $10::int then ${schema}.fit(t, $10::int) else t end ` +
          `from (select coalesce(pg_catalog.json_agg(w), '[]')::text as t from w) as outcome)`,
      )
      .replace(/\$(\d+)/g, (_, position: string) => `$${Number(position) + ownValues}`)
    // sql-built: the user's own statement text, and ours with its positions moved behind the user's.
    const text =
      `/* effectively-once:operation.single */ with w as (${user}\n) ` +
      `${insert} values (${shifted}) returning outcome`
    if (singles.size >= SINGLES_MAX) return { text }
    const digest = hash('sha256', `${ownValues} ${user}`, 'hex').slice(0, 16)
    const made = { ownValues, name: statementName(schema, `single_${digest}`), text }
    singles.set(user, made)
    return made
  }
  // Text and name are made once: the driver and the batch look statements up by them, which is cheap for the same string.
  const gate = {
    name: `${prefix}gate`,
    text: `/* effectively-once:operation.gate */ select ${schema}.gate($1::uuid, $2::bigint, $3::bigint, $4::text) as xid`,
    columns: ['xid'],
  }
  const open = {
    name: `${prefix}open`,
    text: `/* effectively-once:operation.open */ select ${schema}.open($1::text) as xid`,
    columns: ['xid'],
  }
  const plainRecord = {
    name: `${prefix}record`,
    text: `/* effectively-once:operation.record */ ${insert} values (${record})`,
  }
  const conditionalRecord = {
    name: `${prefix}record_if`,
    text:
      `/* effectively-once:operation.record_if */ ${insert} select ${record} ` +
      `where pg_catalog.pg_current_xact_id_if_assigned() = $11::xid8`,
  }
  const recordAndResponse = {
    name: `${prefix}record_response`,
    text: `/* effectively-once:operation.record_response */ ${insertWithResponse} values (${recordWithResponse})`,
  }
  const conditionalRecordAndResponse = {
    name: `${prefix}record_response_if`,
    text:
      `/* effectively-once:operation.record_response_if */ ${insertWithResponse} select ${recordWithResponse} ` +
      `where pg_catalog.pg_current_xact_id_if_assigned() = $13::xid8`,
  }
  const lookup = {
    name: `${prefix}lookup`,
    text:
      `/* effectively-once:operation.lookup */ select o.id, o.token, o.state, o.fingerprint_mode, ` +
      `o.fingerprint_key, o.fingerprint, o.scope, o.outcome_version, o.outcome, s.standby, ` +
      `case when o.response_expires_at > pg_catalog.clock_timestamp() then o.response end as response, o.not_applied, ` +
      `(extract(epoch from o.lease_until - pg_catalog.clock_timestamp()) * 1000)::int8 as lease_left_ms ` +
      `from (select pg_catalog.pg_is_in_recovery() as standby) s left join ${schema}.operation o ` +
      `on o.id = any($1::uuid[]) and o.expires_at > pg_catalog.clock_timestamp()`,
  }
  return {
    gate: (attempt, idleTimeoutMs) => {
      const locks = locksOf(attempt)
      return valued(gate, [attempt.id, locks.payload, locks.key, String(idleTimeoutMs)])
    },
    open: (idleTimeoutMs) => valued(open, [String(idleTimeoutMs)]),
    record: (r) =>
      r.response === undefined
        ? valued(plainRecord, valuesOf(r, r.outcome, r.retentionMs))
        : valued(recordAndResponse, valuesOf(r, r.outcome, r.retentionMs, r.response, r.responseRetentionMs ?? 0)),
    recordIf: (r, transactionId) =>
      r.response === undefined
        ? valued(conditionalRecord, valuesOf(r, r.outcome, r.retentionMs, transactionId))
        : valued(
            conditionalRecordAndResponse,
            valuesOf(r, r.outcome, r.retentionMs, r.response, r.responseRetentionMs ?? 0, transactionId),
          ),
    lookup: (ids) => valued(lookup, [ids]),
    running: (id) => {
      const { classId, objectId } = keyLockParts(id)
      return {
        text:
          `/* effectively-once:operation.running */ select exists (select from pg_catalog.pg_locks ` +
          `where locktype = 'advisory' and granted and objsubid = 1 and classid = $1::bigint::oid ` +
          `and objid = $2::bigint::oid and database = (select oid from pg_catalog.pg_database ` +
          `where datname = pg_catalog.current_database())) as running`,
        values: [classId, objectId],
      }
    },
    token: (id) => ({
      text:
        `/* effectively-once:operation.token */ select ` +
        `(select token from ${schema}.operation where id = $1::uuid) as token, pg_catalog.pg_is_in_recovery() as standby`,
      values: [id],
    }),
    lockBoth: (attempt) => {
      const locks = locksOf(attempt)
      return {
        text:
          `/* effectively-once:operation.lock */ select pg_catalog.pg_advisory_xact_lock($1::bigint), ` +
          `pg_catalog.pg_advisory_xact_lock($2::bigint)`,
        values: [locks.payload, locks.key],
      }
    },
    claim: (attempt) => {
      const locks = locksOf(attempt)
      return {
        text: `/* effectively-once:operation.claim */ select ${schema}.claim($1::uuid, $2::bigint, $3::bigint) as answer`,
        values: [attempt.id, locks.payload, locks.key],
      }
    },
    removeExpired: (id) => ({
      text:
        `/* effectively-once:operation.remove_expired */ delete from ${schema}.operation ` +
        `where id = $1::uuid and expires_at <= pg_catalog.clock_timestamp()`,
      values: [id],
    }),
    single: (r, user, bytesMax) => {
      const own = user.values ?? []
      const { name, text } = singleOf(user.text, own.length)
      const values = [...own, ...valuesOf(r, r.retentionMs, bytesMax)]
      return name === undefined
        ? { text, values, columns: SINGLE_COLUMNS }
        : { name, text, values, columns: SINGLE_COLUMNS }
    },
  }
}

export interface OperationStatements {
  /** BEGIN's companion: decides the attempt. */
  gate(attempt: Attempt, idleTimeoutMs: number): PgStatement
  /** The same without deciding (ungated). */
  open(idleTimeoutMs: number): PgStatement
  /** Writes the record; only for transactions in which no statement of the user ran. */
  record(record: NewRecord): PgStatement
  /** Writes the record while the transaction is still the one that was opened; otherwise no row. */
  recordIf(record: NewRecord, transactionId: string): PgStatement
  /** Live records, each with `standby`; one row without an id when there is none. */
  lookup(ids: readonly string[]): PgStatement
  /** Whether the lock of the operation's key is held. */
  running(id: string): PgStatement
  token(id: string): PgStatement
  /** Waits for both locks of the attempt: payload first, as every owner does. */
  lockBoth(attempt: Attempt): PgStatement
  claim(attempt: Attempt): PgStatement
  removeExpired(id: string): PgStatement
  /** The user's statement and the record as one statement. */
  single(record: Omit<NewRecord, 'outcome'>, user: UserStatement, outcomeBytesMax: number): PgStatement
}
