/**
 * Statements over leased operations. Each is prepared by name where the driver prepares; each is EXPLAINed by a test.
 *
 * No deadlock is possible between them, and none with a step's transaction:
 * - A statement over many operations never waits for a lock on an operation: it skips what is locked
 *   (`skip locked`), and its caller asks again for each skipped one alone. So does a takeover.
 * - A statement over one operation holds nothing while it waits for that row. What it locks after it (a step, an event,
 *   an audit row) is always locked behind the operation's row, so nobody who has it waits for the row.
 * - A step's transaction holds whatever the user's work has locked. It asks for the operation's row in its last trip,
 *   where only statements of the two sorts above, and shared locks, can be in front of it.
 * - Inserts of operations wait for an insert of the same key under way elsewhere. They go in the order of ids, and a
 *   transaction that may keep such a row uncommitted holds the key's lock, which the insert asks for without waiting.
 *
 * @module
 */

import type { ClaimableKind, Lease, NewJob, Release } from '../../store/job.ts'
import type { NewRecord } from '../../store/operation.ts'
import type { PgStatement } from './handle.ts'
import {
  CLOCK,
  columnsOf,
  leaseValues,
  leftMs,
  MS,
  OWNED,
  OWNED_BY_ROW,
  prepared,
  RECORD,
  type ValueTypes,
  valueArrays,
  valueColumns,
  valued,
  valueRow,
  valueRows,
} from './job-sql.ts'
import { keyLockOf } from './locks.ts'

/** Most due rows of a kind that are read to lock one: the rest are left to whoever has locked those in front. */
const DUE_READ_AHEAD = 8

/** A job to be inserted. */
export interface JobInsert {
  readonly job: NewJob
  /** Null = it is claimed by nobody yet. */
  readonly leaseMs: number | null
  readonly delayMs: number
}

export interface Completion {
  readonly lease: Lease
  readonly record: NewRecord
}

export interface Renewal {
  readonly lease: Lease
  readonly leaseMs: number
}

const FLAGS = ['flags']
const ANSWER = ['answer']
const POSITIONS = ['n']
const DONE = ['done']

/** The SQL of one schema; `schema` is the quoted identifier. */
export function jobStatements(schema: string): JobStatements {
  const operation = `${schema}.operation`
  const state = `${schema}.operation_state`
  const mode = `${schema}.operation_fingerprint_mode`
  const made = (name: string, body: string, columns?: readonly string[]) => prepared(schema, name, body, columns)
  const dueAfter = (ms: string): string => `case when o.kind is not null then ${CLOCK} + ${ms} * ${MS} end`
  const event = (from: string): string =>
    `insert into ${schema}.job_event (operation_id, fence, event, detail) select ${from}`

  const insertTypes: ValueTypes = {
    id: 'uuid',
    key_lock: 'bigint',
    token: 'uuid',
    mode: `${schema}.operation_fingerprint_mode`,
    secret: 'text',
    fingerprint: 'bytea',
    scope: 'text',
    kind: 'text',
    version: 'integer',
    payload: 'text',
    lease_ms: 'bigint',
    delay_ms: 'bigint',
  }
  const insertColumns = valueColumns(insertTypes, ['mode', 'scope', 'version', 'lease_ms', 'delay_ms'])
  /** `lease_ms` 0 = it is claimed by nobody yet. */
  const into =
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `insert into ${operation} (id, token, state, fingerprint_mode, fingerprint_key, fingerprint, scope, ` +
    `outcome_version, expires_at, fence, lease_until, due_at, claims, failures, kind, kind_version, payload) ` +
    `select u.id, u.token, 'processing', u.mode, u.secret, u.fingerprint, u.scope, 0, 'infinity', ` +
    `case when u.lease_ms = 0 then 0 else 1 end, case when u.lease_ms > 0 then ${CLOCK} + u.lease_ms * ${MS} end, ` +
    `case when u.kind is not null then ${CLOCK} + case when u.lease_ms > 0 then u.lease_ms else u.delay_ms end * ${MS} end, ` +
    `case when u.lease_ms = 0 then 0 else 1 end, 0, u.kind, u.version, u.payload`
  const inserting = (conflict: string): string =>
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `with given as materialized (select u.*, pg_catalog.pg_try_advisory_xact_lock_shared(u.key_lock) as free ` +
    `from ${valueRows(insertColumns)}), stored as (${into} from given u where u.free order by u.n ${conflict}) `
  const insert = made(
    'insert',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `${inserting('')}` +
      `select pg_catalog.string_agg(case when free then 's' else 'b' end, '' order by n) as flags from given`,
    FLAGS,
  )
  const insertNew = made(
    'insert_new',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `${inserting('on conflict (id) do nothing returning id')}` +
      `select pg_catalog.string_agg(case when s.id is not null then 's' when not g.free then 'b' ` +
      `when (select o.expires_at <= ${CLOCK} from ${operation} o where o.id = g.id) then 'x' else 'e' end, '' order by g.n) ` +
      `as flags from given g left join stored s on s.id = g.id`,
    FLAGS,
  )
  const insertOne = made(
    'insert_1',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `${into} from ${valueRow(insertTypes)} where pg_catalog.pg_try_advisory_xact_lock_shared(u.key_lock) ` +
      `on conflict (id) do nothing returning 's' as flags`,
    FLAGS,
  )

  const finished =
    `lease_until = null, due_at = null, payload = null, reason = null, resolved = null, ` +
    `expires_at = ${CLOCK} + u.retention_ms * ${MS}, state = u.state, outcome_version = u.outcome_version, ` +
    `outcome = u.outcome, response = u.response, response_expires_at = ${CLOCK} + u.response_ms * ${MS}`
  const completionTypes: ValueTypes = {
    id: 'uuid',
    token: 'uuid',
    fence: 'bigint',
    state,
    outcome_version: 'smallint',
    outcome: 'text',
    retention_ms: 'bigint',
    response: 'bytea',
    response_ms: 'bigint',
  }
  const completionColumns = valueColumns(completionTypes, ['fence', 'state', 'outcome_version', 'retention_ms'])
  // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
  const complete = made('complete', `select ${schema}.job_complete(${valueArrays(completionColumns)}) as done`, DONE)
  const completeOne = made(
    'complete_1',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `update ${operation} o set ${finished} from ${valueRow(completionTypes)} where ${OWNED_BY_ROW} returning u.n`,
    POSITIONS,
  )

  const renewalColumns = valueColumns({ id: 'uuid', token: 'uuid', fence: 'bigint', lease_ms: 'bigint' })
  // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
  const renew = made('renew', `select ${schema}.job_renew(${valueArrays(renewalColumns)}) as done`, DONE)
  const held = made(
    'held',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `select pg_catalog.string_agg(u.n::text, ',') as done from ${valueRows(renewalColumns)} join ${operation} o on ${OWNED_BY_ROW}`,
    DONE,
  )

  const ownership = (token: string, leaseMs: string, claimsMax: string): string =>
    `state = case when o.claims >= ${claimsMax} then 'parked' else 'processing' end::${state}, ` +
    `token = case when o.claims >= ${claimsMax} then o.token else ${token} end, ` +
    `fence = case when o.claims >= ${claimsMax} then o.fence else o.fence + 1 end, ` +
    `claims = case when o.claims >= ${claimsMax} then o.claims else o.claims + 1 end, ` +
    `lease_until = case when o.claims >= ${claimsMax} then null else ${CLOCK} + ${leaseMs} * ${MS} end, ` +
    `due_at = case when o.claims >= ${claimsMax} then null else ${dueAfter(leaseMs)} end, ` +
    `reason = case when o.claims >= ${claimsMax} then 'claims' else o.reason end, resolved = null`
  const free = `(o.lease_until is null or o.lease_until <= ${CLOCK})`
  /** Only the first ownership of all takes nothing over. */
  const ownershipEvents =
    `${event(`id, fence, case when state = 'parked' then 'parked' else 'takenOver' end, case when state = 'parked' then 'claims' end`)} ` +
    `from taken where state = 'parked' or fence > 1`
  const takeOver = made(
    'take_over',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `with seen as materialized (select o.id from ${operation} o where o.id = $1::uuid and o.fence = $2::bigint ` +
      `and o.state in ('processing', 'unknown') and ${free} for no key update skip locked), ` +
      `taken as (update ${operation} o set ${ownership('$3::uuid', '$4::bigint', '$5::integer')} from seen s ` +
      `where o.id = s.id returning o.id, o.fence, o.state, o.claims), ` +
      `told as (${ownershipEvents}) ` +
      `select state::text, fence, claims from taken union all select 'parked', o.fence, o.claims from ${operation} o ` +
      `where o.id = $1::uuid and o.fence = $2::bigint and o.state = 'parked' and not exists (select from taken)`,
    ['state', 'fence', 'claims'],
  )

  const kinds =
    `rows from (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::integer[]), pg_catalog.unnest($3::bigint[]), ` +
    `pg_catalog.unnest($4::integer[])) as k(kind, version, lease_ms, claims_max)`
  const claimDue = made(
    'claim_due',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    // The rows are chosen and locked once, whatever plan is made: what is materialized is not computed again (B30).
    `with kinds as materialized (select * from ${kinds}), ` +
      `ahead as materialized (select d.id, d.due_at, k.lease_ms, k.claims_max from kinds k cross join lateral (` +
      `select o.id, o.due_at from ${operation} o where o.kind = k.kind and o.kind_version = k.version ` +
      `and o.due_at <= ${CLOCK} order by o.due_at limit $5::integer * ${DUE_READ_AHEAD}) d ` +
      `order by d.due_at limit $5::integer * ${DUE_READ_AHEAD}), ` +
      `due as materialized (select o.id, a.lease_ms, a.claims_max from ahead a join ${operation} o on o.id = a.id ` +
      `and o.state in ('processing', 'unknown') and o.due_at <= ${CLOCK} and ${free} ` +
      `order by a.due_at limit $5::integer for no key update of o skip locked), ` +
      `taken as (update ${operation} o set ${ownership('pg_catalog.gen_random_uuid()', 'd.lease_ms', 'd.claims_max')} ` +
      `from due d where o.id = d.id returning ${RECORD}, d.lease_ms), ` +
      `told as (${ownershipEvents}) ` +
      `select n.next_due_in_ms, t.* from (select ${leftMs('min(w.due_at)')} as next_due_in_ms from kinds k ` +
      `cross join lateral (select o.due_at from ${operation} o where o.kind = k.kind and o.kind_version = k.version ` +
      `and o.due_at is not null and o.id <> all (array(select id from due)) order by o.due_at limit 1) w) n ` +
      `left join taken t on true`,
  )

  const release = made(
    'release',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `with mine as (update ${operation} o set lease_until = null, claims = greatest(o.claims - 1, 0), ` +
      `failures = least(o.failures + $6::integer, 32767), reason = pg_catalog.left($7::text, 500), resolved = null, ` +
      `state = case when $4::${state} = 'unknown' and o.resolved then 'processing' else $4::${state} end, ` +
      `due_at = case when $4::${state} = 'unknown' and o.resolved then ${dueAfter('0')} else ${dueAfter('$5::bigint')} end ` +
      `where ${OWNED} returning o.id, o.fence) ` +
      `${event(`id, fence, $8::text, pg_catalog.left($7::text, 500) from mine`)} returning 'stored' as answer`,
    ANSWER,
  )

  const find = made(
    'find',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `select ${RECORD}, s.standby from (select pg_catalog.pg_is_in_recovery() as standby) s left join ${operation} o ` +
      `on o.id = any($1::uuid[]) and o.state in ('processing', 'unknown', 'parked')`,
  )
  return {
    insert: (items) => valued(insert, columnsOf(items.map(insertValues), insertColumns)),
    insertNew: (items) => valued(insertNew, columnsOf(items.map(insertValues), insertColumns)),
    insertOne: (item) => valued(insertOne, insertValues(item)),
    complete: (items) => valued(complete, columnsOf(items.map(completionValues), completionColumns)),
    completeOne: (item) => valued(completeOne, completionValues(item)),
    renew: (items) => valued(renew, columnsOf(items.map(renewalValues), renewalColumns)),
    held: (items) => valued(held, columnsOf(items.map(renewalValues), renewalColumns)),
    takeOver: (job) => valued(takeOver, [job.id, String(job.fence), job.token, job.leaseMs, job.claimsMax]),
    claimDue: (wanted, limit) =>
      valued(claimDue, [
        wanted.map(({ kind }) => kind),
        wanted.map(({ version }) => version),
        wanted.map(({ leaseMs }) => leaseMs),
        wanted.map(({ claimsMax }) => claimsMax),
        limit,
      ]),
    release: (lease, { state: to, dueInMs, failed, reason }) =>
      valued(release, [
        ...leaseValues(lease),
        to,
        dueInMs,
        failed ? 1 : 0,
        reason,
        to === 'processing' ? (failed ? 'failed' : 'released') : to,
      ]),
    find: (ids) => valued(find, [ids]),
    removeExpired: (id) => ({
      // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
      text: `/* effectively-once:job.remove_expired */ delete from ${operation} where id = $1::uuid and expires_at <= ${CLOCK}`,
      values: [id],
    }),
    enqueueIn: ({ job, delayMs }, transactionId) => ({
      text:
        `/* effectively-once:job.enqueue_in */ select ${schema}.enqueue($1::text, $2::uuid, $3::bigint, $4::uuid, ` +
        `$5::${mode}, $6::text, $7::bytea, $8::text, $9::text, $10::integer, $11::text, $12::bigint) as answer`,
      values: [
        transactionId,
        job.id,
        keyLockOf(job.id),
        job.token,
        job.fingerprint.mode,
        job.fingerprint.keyId,
        job.fingerprint.value,
        job.scope,
        job.kind,
        job.version,
        job.payload,
        delayMs,
      ],
    }),
  }
}

function insertValues({ job, leaseMs, delayMs }: JobInsert): unknown[] {
  return [
    job.id,
    keyLockOf(job.id),
    job.token,
    job.fingerprint.mode,
    job.fingerprint.keyId,
    job.fingerprint.value,
    job.scope,
    job.kind,
    job.version,
    job.payload,
    leaseMs ?? 0,
    delayMs,
  ]
}

function renewalValues({ lease, leaseMs }: Renewal): unknown[] {
  return [...leaseValues(lease), leaseMs]
}

function completionValues({ lease, record }: Completion): unknown[] {
  return [
    ...leaseValues(lease),
    record.state,
    record.outcomeVersion,
    record.outcome,
    record.retentionMs,
    record.response ?? null,
    record.response === undefined ? null : (record.responseRetentionMs ?? 0),
  ]
}

export interface JobStatements {
  /** One letter for each row: `s`tored, `b`usy. Fails as a whole when one of them is there. */
  insert(items: readonly JobInsert[]): PgStatement
  /** Inserts what is not there. One letter for each row: `s`tored, `b`usy, e`x`pired (to be removed), `e`xists. */
  insertNew(items: readonly JobInsert[]): PgStatement
  /** `s`tored; no row when it is not. */
  insertOne(item: JobInsert): PgStatement
  removeExpired(id: string): PgStatement
  /** `done`: positions, from 1, of those that were completed; the others are locked or not theirs. */
  complete(items: readonly Completion[]): PgStatement
  /** Waits for the row: no position = not theirs. */
  completeOne(item: Completion): PgStatement
  /** `done`: positions, from 1, of the leases that were renewed; the others are locked or lost. */
  renew(items: readonly Renewal[]): PgStatement
  /** `done`: positions of the leases that are live. */
  held(items: readonly Renewal[]): PgStatement
  takeOver(job: {
    readonly id: string
    readonly fence: bigint
    readonly token: string
    readonly leaseMs: number
    readonly claimsMax: number
  }): PgStatement
  /** Rows that were claimed or parked, each with `next_due_in_ms`; one row without an id when there are none. */
  claimDue(kinds: readonly ClaimableKind[], limit: number): PgStatement
  /** A row = stored, none = fenced. */
  release(lease: Lease, release: Release): PgStatement
  /** Unfinished operations, each with `standby`; one row without an id when there are none. */
  find(ids: readonly string[]): PgStatement
  enqueueIn(insert: JobInsert, transactionId: string): PgStatement
}
