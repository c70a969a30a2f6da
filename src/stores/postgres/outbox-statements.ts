/**
 * Statements of the outbox tables. Each is one round trip in its own transaction, READ COMMITTED.
 *
 * Shape of all that change something for a lane: `l` renews the lease and finds nothing when owner, fence or a live
 * lease do not match; everything else joins `l`. So a late owner changes nothing, whatever it sends (I5, SC30).
 * `held` in the answer tells which it was.
 *
 * @module
 */

import type { OutboxStatement } from './outbox-run.ts'
import { statementName } from './statement-name.ts'

const MESSAGE = 'lane, seq, id, topic, ordering_key, payload, encoding, content_type, headers, created_at'
const NOW = 'pg_catalog.clock_timestamp()'
/** Instants leave as whole milliseconds; double precision is exact there and cheaper than numeric. */
const millis = (instant: string): string => `pg_catalog.floor(pg_catalog.date_part('epoch', ${instant}) * 1000)::bigint`
const from = (table: string): string => MESSAGE.replaceAll(/\w+/g, `${table}.$&`)
const lease = (parameter: string): string => `${NOW} + ${parameter}::bigint * interval '1 millisecond'`
/** Null for what nearly every row has: a text of each row is made here and again by the driver. */
const READ =
  `seq::text as seq, id::text as id, topic, ordering_key, nullif(encoding, 'text') as encoding, ` +
  `nullif(content_type, 'application/json') as content_type, nullif(headers, '{}') as headers, ` +
  `${millis('created_at')}::text as created_at_ms`
/**
 * Everything visible is on disk when the flush position has reached the insert position, asked after the snapshot
 * was taken. False under load, and whenever a writer commits asynchronously.
 */
const DURABLE = '(select pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn()) as durable'
/**
 * What is in flight comes as ranges: thousands of numbers that follow each other are few of them, and each row costs one
 * search. `<> all($1)` is a linear search in a generic plan (130 ms at 2000 numbers), `not in (select unnest($1))` hashes
 * every number of every read.
 */
const notInFlight = (parameter: string): string => `not seq <@ ${parameter}::pg_catalog.int8multirange`
/** A lane step promises durability of what was read before, so its commit must flush whatever the session's setting is. */
const FLUSHED =
  `case when pg_catalog.current_setting('synchronous_commit') = 'off' ` +
  `then pg_catalog.set_config('synchronous_commit', 'local', true) end`
const HELD = `(select pg_catalog.count(*) from l)::int as held, ${FLUSHED}`
/** This ownership's claim of a row that is sent alone, taken back. */
const UNCLAIM =
  'alone_claims = case when alone_fence = fence ' +
  'then alone_claims[1:pg_catalog.cardinality(alone_claims) - 1] else alone_claims end, ' +
  'alone_fence = case when alone_fence = fence then null else alone_fence end'

/** The SQL of one schema; `schema` is the quoted identifier. */
export function outboxStatements(schema: string): OutboxStatements {
  const named = (name: string, text: string): OutboxStatement => ({
    // sql-built: only texts of this file are put together; every value is a parameter.
    name: statementName(schema, `outbox_${name}`),
    text: `/* effectively-once:outbox.${name} */ ${text}`,
  })
  /** $1 lane, $2 owner, $3 fence, $4 lease in milliseconds. */
  const step = (set = '', returning = 'lane'): string =>
    `l as (update ${schema}.outbox_lane set lease_until = ${lease('$4')}${set} ` +
    `where lane = $1::smallint and owner = $2::uuid and fence = $3::bigint and lease_until > ${NOW} ` +
    `returning ${returning})`
  const forgetDeaths = (parameter: string): string =>
    `, deaths = case when ${parameter}::boolean then 0 else deaths end`
  const toHistory = `h as (insert into ${schema}.outbox_history (${MESSAGE}) select ${MESSAGE} from d`
  /** The lowest parked row of each key in `k` that is not among `excluded`. */
  const lowest = (excluded: string): string =>
    `f as (select distinct on (x.ordering_key) x.ordering_key, x.seq from ${schema}.outbox_parked x ` +
    `join k on k.ordering_key = x.ordering_key where x.lane = $1::smallint and ${excluded} ` +
    `order by x.ordering_key, x.seq), ` +
    `n as (update ${schema}.outbox_parked x set next_at = ${NOW} from f ` +
    `where x.lane = $1::smallint and x.seq = f.seq returning x.ordering_key, x.seq)`
  const NEXT = `(select pg_catalog.json_agg(pg_catalog.json_build_array(n.ordering_key, n.seq)) from n)::text as next`
  const pendingRows = (inFlight = '$2', limit = '$3'): string =>
    `select ${MESSAGE} from ${schema}.outbox where lane = $1::smallint and ${notInFlight(inFlight)} ` +
    `order by lane, seq limit ${limit}::int`
  const upTo = (bytes: string): string =>
    `case when pg_catalog.octet_length(payload) <= ${bytes}::int then payload end as payload`
  /** What is settled is not read again: the statement has one snapshot, so it is among the rows in flight ($7). */
  const andRead = `select r.* from l left join (select ${READ}, ${upTo('$9')} from (${pendingRows('$7', '$8')}) p) r on true`

  return {
    lanes: named(
      'lanes',
      `with m as (insert into ${schema}.outbox_lane (lane) select g from pg_catalog.generate_series(0, ` +
        `(select pg_catalog.max(lane) from ${schema}.outbox)) g ` +
        `where g not in (select lane from ${schema}.outbox_lane) on conflict do nothing returning lane) ` +
        `select lane, case when lease_until > ${NOW} then owner::text end as owner, ` +
        `pg_catalog.ceil(pg_catalog.date_part('epoch', lease_until - ${NOW}) * 1000)::text as left_ms ` +
        `from ${schema}.outbox_lane union all select lane, null, null from m order by lane`,
    ),
    acquire: named(
      'acquire',
      `update ${schema}.outbox_lane l set owner = $2::uuid, fence = l.fence + 1, lease_until = ${lease('$3')}, ` +
        `deaths = l.deaths + case when l.owner <> $2::uuid then 1 else 0 end, wanted_by = null, wanted_until = null, ` +
        `system_identifier = c.system_identifier from pg_catalog.pg_control_system() c ` +
        `where l.lane = $1::smallint and (l.lease_until is null or l.lease_until < ${NOW}) ` +
        `and (l.wanted_by is null or l.wanted_by = $2::uuid or l.wanted_until < ${NOW}) ` +
        `and (l.system_identifier is null or l.system_identifier = c.system_identifier) ` +
        `returning l.fence::text as fence, l.deaths, ${FLUSHED}`,
    ),
    refused: named(
      'refused',
      `select l.system_identifier <> c.system_identifier as foreign, pg_catalog.ceil(pg_catalog.date_part('epoch', ` +
        `greatest(l.lease_until, l.wanted_until) - ${NOW}) * 1000)::text as left_ms ` +
        `from ${schema}.outbox_lane l, pg_catalog.pg_control_system() c where l.lane = $1::smallint`,
    ),
    renew: named(
      'renew',
      `with ${step(
        `${forgetDeaths('$5')}, alone_seq = case when $5::boolean then null else alone_seq end, ` +
          `alone_claims = case when $5::boolean then '{}' else alone_claims end`,
        `lane, wanted_by is not null and wanted_by <> owner and wanted_until > ${NOW} as wanted`,
      )} select ${HELD}, coalesce((select wanted from l), false) as wanted`,
    ),
    release: named(
      'release',
      `update ${schema}.outbox_lane set owner = null, lease_until = null, ${UNCLAIM} ` +
        `where lane = $1::smallint and owner = $2::uuid and fence = $3::bigint`,
    ),
    ask: named(
      'ask',
      `with o as (select owner, pg_catalog.count(*) as lanes from ${schema}.outbox_lane ` +
        `where owner is not null and lease_until > ${NOW} group by owner) ` +
        `update ${schema}.outbox_lane set wanted_by = $1::uuid, wanted_until = ${lease('$2')} where lane = (` +
        `select l.lane from ${schema}.outbox_lane l join o on o.owner = l.owner where l.owner <> $1::uuid ` +
        `and l.lease_until > ${NOW} and (l.wanted_until is null or l.wanted_until < ${NOW}) ` +
        `and o.lanes >= 2 + coalesce((select lanes from o where owner = $1::uuid), 0) ` +
        `order by o.lanes desc, l.lane desc limit 1)`,
    ),
    // Payloads above $4 bytes stay behind: the limit times $4 bounds what one answer can weigh.
    read: named('read', `select ${READ}, ${upTo('$4')}, ${DURABLE} ` + `from (${pendingRows()}) r order by r.seq`),
    // The exact form for large payloads: rows until $4 bytes are full, and always the first.
    readLarge: named(
      'read_large',
      `select ${READ}, payload, ${DURABLE} from (select r.*, ` +
        `pg_catalog.sum(pg_catalog.octet_length(payload)) over (order by seq) as running from (${pendingRows()}) r) w ` +
        `where running <= $4::bigint or running = pg_catalog.octet_length(payload) order by w.seq`,
    ),
    settle: named(
      'settle',
      `with ${step(forgetDeaths('$6'))}, d as (delete from ${schema}.outbox o using l ` +
        `where o.lane = l.lane and o.seq = any($5::bigint[])) select ${HELD}`,
    ),
    settleToHistory: named(
      'settle_to_history',
      `with ${step(forgetDeaths('$6'))}, d as (delete from ${schema}.outbox o using l ` +
        `where o.lane = l.lane and o.seq = any($5::bigint[]) returning ${from('o')}), ${toHistory}) select ${HELD}`,
    ),
    settleAndRead: named(
      'settle_and_read',
      `with ${step(forgetDeaths('$6'), `lane, ${FLUSHED}`)}, d as (delete from ${schema}.outbox o using l ` +
        `where o.lane = l.lane and o.seq = any($5::bigint[])) ${andRead}`,
    ),
    settleToHistoryAndRead: named(
      'settle_to_history_and_read',
      `with ${step(forgetDeaths('$6'), `lane, ${FLUSHED}`)}, d as (delete from ${schema}.outbox o using l ` +
        `where o.lane = l.lane and o.seq = any($5::bigint[]) returning ${from('o')}), ${toHistory}) ${andRead}`,
    ),
    stoppedKeys: named(
      'stopped_keys',
      `with ${step()}, h as materialized (select distinct on (p.ordering_key) p.ordering_key, p.seq, p.next_at ` +
        `from ${schema}.outbox_parked p join l on l.lane = p.lane where p.ordering_key is not null ` +
        `order by p.ordering_key, p.seq), ` +
        `q as materialized (select s.ordering_key, pg_catalog.min(s.seq) as seq from ${schema}.outbox_quarantine s ` +
        `join l on l.lane = s.lane where s.stops_key and s.ordering_key is not null group by s.ordering_key), ` +
        `m as (update ${schema}.outbox_parked p set next_at = ${NOW} from h where p.lane = $1::smallint ` +
        `and p.seq = h.seq and h.next_at is null and not exists (` +
        `select 1 from q where q.ordering_key = h.ordering_key and q.seq < h.seq)), ` +
        `k as (select u.ordering_key, pg_catalog.min(u.seq) as seq from (select ordering_key, seq from h ` +
        `union all select ordering_key, seq from q) u group by u.ordering_key) ` +
        `select ${FLUSHED}, k.ordering_key, k.seq::text as seq from l left join k on true`,
    ),
    park: named(
      'park',
      // sql-built: only texts of this file are put together; every value is a parameter.
      `with ${step()}, r as (select * from rows from (pg_catalog.unnest($5::bigint[]), pg_catalog.unnest($6::text[]), ` +
        `pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::bigint[]), pg_catalog.unnest($9::int[])) ` +
        `as r(seq, reason, error, delay_ms, counts)), ` +
        `d as (delete from ${schema}.outbox o using l, r where o.lane = l.lane and o.seq = r.seq returning ${from('o')}), ` +
        `i as (insert into ${schema}.outbox_parked (${MESSAGE}, attempts, next_at, reason, last_error) ` +
        // sql-built: a list of our own columns.
        `select ${from('d')}, r.counts, ${lease('r.delay_ms')}, r.reason, r.error from d join r on r.seq = d.seq), ` +
        `u as (update ${schema}.outbox_parked p set attempts = p.attempts + r.counts, next_at = ${lease('r.delay_ms')}, ` +
        `reason = r.reason, last_error = r.error from l, r where p.lane = l.lane and p.seq = r.seq) select ${HELD}`,
    ),
    parkBehind: named(
      'park_behind',
      `with ${step()}, d as (delete from ${schema}.outbox o using l ` +
        `where o.lane = l.lane and o.seq = any($5::bigint[]) returning ${from('o')}), ` +
        `i as (insert into ${schema}.outbox_parked (${MESSAGE}, reason) select ${MESSAGE}, 'behind' from d) select ${HELD}`,
    ),
    due: named(
      'due',
      `select w.*, (select pg_catalog.ceil(pg_catalog.date_part('epoch', pg_catalog.min(next_at) - ${NOW}) * 1000) ` +
        `from ${schema}.outbox_parked where lane = $1::smallint and next_at > ${NOW})::text as next_in_ms ` +
        `from (select 1) one left join (select ${READ}, payload, attempts, ` +
        `pg_catalog.sum(pg_catalog.octet_length(payload)) over (order by due, seq) as running, ` +
        `pg_catalog.octet_length(payload) as own from (select ${MESSAGE}, attempts, next_at as due ` +
        `from ${schema}.outbox_parked p where lane = $1::smallint and next_at <= ${NOW} and ${notInFlight('$2')} ` +
        `and not exists (select 1 from ${schema}.outbox_parked e where e.lane = p.lane ` +
        `and e.ordering_key = p.ordering_key and e.seq < p.seq) ` +
        `and not exists (select 1 from ${schema}.outbox_quarantine q where q.lane = p.lane ` +
        `and q.ordering_key = p.ordering_key and q.stops_key and q.seq < p.seq) ` +
        `order by next_at, seq limit $3::int) d) w on running <= $4::bigint or running = own order by w.seq::bigint`,
    ),
    settleParked: named(
      'settle_parked',
      `with ${step(forgetDeaths('$7'))}, d as (delete from ${schema}.outbox_parked p using l ` +
        `where p.lane = l.lane and p.seq = any($5::bigint[]) returning ${from('p')}), ${toHistory} where $6::boolean), ` +
        `k as (select distinct d.ordering_key from d where d.ordering_key is not null), ` +
        `m as materialized (select x.seq from ${schema}.outbox_parked x join k on k.ordering_key = x.ordering_key ` +
        `where x.lane = $1::smallint and x.seq not in (select d.seq from d) order by x.seq limit $8::int), ` +
        `b as (delete from ${schema}.outbox_parked x using m where x.lane = $1::smallint and x.seq = m.seq ` +
        `returning ${from('x')}), ` +
        `i as (insert into ${schema}.outbox (${MESSAGE}) overriding system value select ${MESSAGE} from b), ` +
        `${lowest('x.seq not in (select d.seq from d) and x.seq not in (select m.seq from m)')} ` +
        `select ${HELD}, (select pg_catalog.count(*) from b)::int as moved, ${NEXT}`,
    ),
    quarantine: named(
      'quarantine',
      // sql-built: only texts of this file are put together; every value is a parameter.
      `with r as (select * from rows from (pg_catalog.unnest($5::bigint[]), pg_catalog.unnest($6::text[]), ` +
        `pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::boolean[])) as r(seq, reason, error, stops_key)), ` +
        `${step(`${forgetDeaths("('poison' = any($6::text[]))")}`, 'lane, alone_claims')}, ` +
        `o as (delete from ${schema}.outbox x using l, r where x.lane = l.lane and x.seq = r.seq returning ${from('x')}), ` +
        `p as (delete from ${schema}.outbox_parked x using l, r where x.lane = l.lane and x.seq = r.seq ` +
        `returning ${from('x')}, x.attempts, x.last_error, x.parked_at), ` +
        `u as (select ${MESSAGE}, 0 as attempts, null as history from o union all select ${MESSAGE}, attempts, ` +
        `pg_catalog.json_build_object('parkedAt', parked_at, 'attempts', attempts, 'lastError', last_error) from p), ` +
        `i as (insert into ${schema}.outbox_quarantine (${MESSAGE}, attempts, reason, last_error, stops_key, history) ` +
        `select ${from('u')}, case when r.reason = 'poison' then pg_catalog.cardinality(l.alone_claims) - 1 ` +
        `else u.attempts end, r.reason, r.error, r.stops_key and u.ordering_key is not null, ` +
        `case when r.reason = 'poison' then pg_catalog.json_build_object('claimedAt', l.alone_claims, 'parked', u.history) ` +
        `else pg_catalog.json_build_object('parked', u.history) end::text from u join r on r.seq = u.seq, l), ` +
        `k as (select distinct p.ordering_key from p join r on r.seq = p.seq ` +
        `where p.ordering_key is not null and not r.stops_key), ` +
        `${lowest('x.seq <> all($5::bigint[])')} select ${HELD}, ${NEXT}`,
    ),
    claimAlone: named(
      'claim_alone',
      `with ${step(
        `, alone_seq = $5::bigint, alone_fence = fence, alone_claims = case ` +
          `when alone_seq is distinct from $5::bigint then array[${NOW}] when alone_fence = fence then alone_claims ` +
          `else alone_claims || ${NOW} end`,
        'lane, pg_catalog.cardinality(alone_claims) as claims',
      )} select ${HELD}, (select claims from l) as claims`,
    ),
    unclaimAlone: named('unclaim_alone', `with ${step(`, ${UNCLAIM}`)} select ${HELD}`),
    pending: named(
      'pending',
      `with l as (select lane, owner is not null and lease_until > ${NOW} as alive from ${schema}.outbox_lane), ` +
        `a as (select l.lane, l.alive, ` +
        `(select created_at from ${schema}.outbox o where o.lane = l.lane order by o.lane, o.seq limit 1) as oldest, ` +
        `(select created_at from ${schema}.outbox_parked p where p.lane = l.lane order by p.lane, p.seq limit 1) as parked ` +
        `from l) select ${millis(NOW)}::text as now_ms, ` +
        `${millis('pg_catalog.min(oldest)')}::text as oldest_ms, ${millis('pg_catalog.min(parked)')}::text as parked_ms, ` +
        `(select ${millis('pg_catalog.min(quarantined_at)')} from ${schema}.outbox_quarantine)::text as quarantined_ms, ` +
        `coalesce(pg_catalog.bool_or(alive), false) as alive, coalesce(pg_catalog.array_agg(lane order by lane) ` +
        `filter (where not alive and (oldest is not null or parked is not null)), '{}')::int[] as without_owner from a`,
    ),
    quarantined: named(
      'quarantined',
      `select lane, seq::text as seq, id::text as id, topic, attempts, reason, last_error, stops_key, history, ` +
        `${millis('created_at')}::text as created_at_ms, ${millis('quarantined_at')}::text as quarantined_at_ms ` +
        `from ${schema}.outbox_quarantine order by quarantined_at, lane, seq limit $1::int`,
    ),
    // The lane's row is locked first: no step of its owner runs in between.
    redrive: named(
      'redrive',
      // sql-built: only texts of this file are put together; every value is a parameter.
      `with c as (select lane, id from ${schema}.outbox_quarantine where id = any($1::uuid[]) union all ` +
        `select lane, id from ${schema}.outbox_parked where id = any($1::uuid[])), ` +
        `l as materialized (select lane from ${schema}.outbox_lane where lane in (select lane from c) order by lane for update), ` +
        `q as (delete from ${schema}.outbox_quarantine x using l where x.lane = l.lane and x.id = any($1::uuid[]) ` +
        `returning ${from('x')}, x.attempts, x.reason, x.last_error, x.history, x.stops_key or exists (select 1 from ` +
        `${schema}.outbox_parked p where p.lane = x.lane and p.ordering_key = x.ordering_key) as aside), ` +
        `a as (insert into ${schema}.outbox_parked (${MESSAGE}, next_at, reason) ` +
        `select ${MESSAGE}, ${NOW}, 'redriven' from q where aside), ` +
        `o as (insert into ${schema}.outbox (${MESSAGE}) overriding system value select ${MESSAGE} from q where not aside), ` +
        `p as (update ${schema}.outbox_parked x set next_at = ${NOW}, attempts = 0, reason = 'redriven' ` +
        `from l, ${schema}.outbox_parked y where x.lane = l.lane and x.id = any($1::uuid[]) and y.lane = x.lane ` +
        `and y.seq = x.seq and (x.reason <> 'redriven' or x.next_at > ${NOW}) ` +
        `returning x.id, y.attempts, y.reason, y.last_error), ` +
        `u as (select id, attempts, reason, last_error, history from q union all ` +
        `select id, attempts, reason, last_error, '{}' from p), ` +
        `w as (insert into ${schema}.audit (actor, act, subject, reason, detail) select $2::text, 'outbox.redrive', ` +
        `u.id::text, $3::text, pg_catalog.json_build_object('was', u.reason, 'attempts', u.attempts, ` +
        `'lastError', u.last_error, 'history', u.history::json)::text from u) select u.id::text as id from u`,
    ),
    discard: named(
      'discard',
      `with q as (delete from ${schema}.outbox_quarantine where id = any($1::uuid[]) ` +
        `returning id, topic, reason, attempts, last_error), ` +
        `w as (insert into ${schema}.audit (actor, act, subject, reason, detail) select $2::text, 'outbox.discard', ` +
        `q.id::text, $3::text, pg_catalog.json_build_object('was', q.reason, 'attempts', q.attempts, ` +
        `'lastError', q.last_error, 'topic', q.topic)::text from q) select q.id::text as id from q`,
    ),
    adopt: named(
      'adopt',
      `with u as (update ${schema}.outbox_lane l set system_identifier = c.system_identifier ` +
        `from pg_catalog.pg_control_system() c, ${schema}.outbox_lane b where b.lane = l.lane ` +
        `and l.system_identifier <> c.system_identifier returning l.lane, b.system_identifier as before) ` +
        `insert into ${schema}.audit (actor, act, subject, reason, detail) select $1::text, 'outbox.adopt', ` +
        `'lane ' || u.lane, $2::text, pg_catalog.json_build_object('systemIdentifier', u.before::text)::text from u`,
    ),
  }
}

/** By name of the step; parameters are documented at the statements. */
export interface OutboxStatements {
  readonly lanes: OutboxStatement
  readonly acquire: OutboxStatement
  /** Why a lane was not given. */
  readonly refused: OutboxStatement
  readonly renew: OutboxStatement
  readonly release: OutboxStatement
  readonly ask: OutboxStatement
  readonly read: OutboxStatement
  readonly readLarge: OutboxStatement
  readonly settle: OutboxStatement
  readonly settleToHistory: OutboxStatement
  readonly settleAndRead: OutboxStatement
  readonly settleToHistoryAndRead: OutboxStatement
  readonly stoppedKeys: OutboxStatement
  readonly park: OutboxStatement
  readonly parkBehind: OutboxStatement
  readonly due: OutboxStatement
  readonly settleParked: OutboxStatement
  readonly quarantine: OutboxStatement
  readonly claimAlone: OutboxStatement
  readonly unclaimAlone: OutboxStatement
  readonly pending: OutboxStatement
  readonly quarantined: OutboxStatement
  readonly redrive: OutboxStatement
  readonly discard: OutboxStatement
  readonly adopt: OutboxStatement
}
