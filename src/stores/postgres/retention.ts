/**
 * Retention on PostgreSQL: one batch of what is past its time, in a transaction of its own.
 *
 * Rows are found through an index in the order in which they became due, and locked with `skip locked`: the gate of a
 * late retry, which deletes the expired record of its key, and a purge never wait for each other's transaction here, and
 * two purges share the work. Each statement decides with one instant of the server's clock, taken in a sub-select:
 * compared with the function itself, which is volatile, no index could be used. The planner does not know that instant
 * either, and takes a batch for a handful of rows or for a third of the table; so it is told to walk the index.
 *
 * @module
 */

import type { PurgeBatch } from '../../store/retention.ts'
import { toOnceError } from './classify.ts'
import type { Connections } from './connections.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { owned } from './own-types.ts'

const CLOCK = 'pg_catalog.clock_timestamp()'
/** The instant before which rows are due; the grace is the first value. */
const BEFORE = `(select ${CLOCK} - $1::bigint * interval '1 millisecond')`
/** Where the batch before this one stopped: microseconds since 1970 as the third value, or null. */
const FROM = `coalesce('epoch'::timestamptz + $3::bigint * interval '1 microsecond', '-infinity'::timestamptz)`

/** Milliseconds since `instant` became due; 0 for null. */
const sinceDue = (instant: string): string =>
  `select coalesce(extract(epoch from ${BEFORE} - (${instant})) * 1000, 0)::float8 as ms`
/** Where the next batch goes on. */
const through = (instant: string): string => `(extract(epoch from max(${instant})) * 1000000)::bigint::text`

/**
 * Opens the transaction of one statement. Above READ COMMITTED, which may be the role's default, a row that another purge
 * has removed in the meantime would be an error.
 */
export const PURGE_BEGIN: string =
  'begin isolation level read committed; set local enable_seqscan = off; set local enable_sort = off; ' +
  'set local enable_hashjoin = off; set local enable_mergejoin = off'

/** The SQL of one schema; `schema` is the quoted identifier. */
export function retentionStatements(schema: string): RetentionStatements {
  /** The expression of the index operation_expiry: when the row has to be looked at next. */
  const due = 'least(o.expires_at, o.response_expires_at)'
  const mark =
    `not exists (select from ${schema}.inbox_waiting w where w.id = m.id) ` +
    `and not exists (select from ${schema}.inbox_quarantine q where q.mark_id = m.id)`
  return {
    // The state is compared so that a state which is not an end, should there ever be one, is never removed by age.
    operations: ({ graceMs, limit, after }) => ({
      text:
        `/* effectively-once:retention.operations */ with due as materialized (` +
        `select o.id, ${due} as at, o.expires_at <= ${BEFORE} as over from ${schema}.operation o ` +
        `where ${due} <= ${BEFORE} and ${due} >= ${FROM} and o.expires_at < 'infinity' and o.state in ('succeeded', 'rejected') ` +
        `order by ${due} limit $2::int for update skip locked), ` +
        `gone as (delete from ${schema}.operation o using due where o.id = due.id and due.over returning 1), ` +
        `erased as (update ${schema}.operation o set response = null, response_expires_at = null from due ` +
        `where o.id = due.id and not due.over returning 1) ` +
        `select (select count(*) from gone)::int as removed, (select count(*) from erased)::int as erased, ` +
        `count(*)::int as seen, ${through('due.at')} as after from due`,
      values: [graceMs, limit, after ?? null],
    }),
    operationsOverdue: (graceMs) => ({
      text:
        `/* effectively-once:retention.operations_overdue */ ` +
        sinceDue(
          `select ${due} from ${schema}.operation o where ${due} <= ${BEFORE} ` +
            `and o.expires_at < 'infinity' and o.state in ('succeeded', 'rejected') order by ${due} limit 1`,
        ),
      values: [graceMs],
    }),
    marks: ({ graceMs, limit, after }) => ({
      text:
        `/* effectively-once:retention.marks */ with due as materialized (` +
        `select m.id, m.expires_at as at from ${schema}.inbox m ` +
        `where m.expires_at < ${BEFORE} and m.expires_at >= ${FROM} and ${mark} ` +
        `order by m.expires_at limit $2::int for update of m skip locked), ` +
        `gone as (delete from ${schema}.inbox m using due where m.id = due.id returning 1) ` +
        `select (select count(*) from gone)::int as removed, count(*)::int as seen, ${through('due.at')} as after from due`,
      values: [graceMs, limit, after ?? null],
    }),
    marksOverdue: (graceMs) => ({
      text:
        `/* effectively-once:retention.marks_overdue */ ` +
        sinceDue(
          `select m.expires_at from ${schema}.inbox m where m.expires_at < ${BEFORE} and ${mark} ` +
            `order by m.expires_at limit 1`,
        ),
      values: [graceMs],
    }),
    // The history has no key; where a batch stopped is not needed to find the next rows in the order of the table.
    history: ({ graceMs, limit }) => ({
      text:
        `/* effectively-once:retention.history */ with due as materialized (` +
        `select h.ctid from ${schema}.outbox_history h where h.published_at < ${BEFORE} ` +
        `limit $2::int for update skip locked), ` +
        `gone as (delete from ${schema}.outbox_history h where h.ctid = any(array(select due.ctid from due)) returning 1) ` +
        `select (select count(*) from gone)::int as removed, count(*)::int as seen, '0' as after from due`,
      values: [graceMs, limit],
    }),
    historyOverdue: (graceMs) => ({
      text:
        `/* effectively-once:retention.history_overdue */ ` +
        sinceDue(`select min(h.published_at) from ${schema}.outbox_history h where h.published_at < ${BEFORE}`),
      values: [graceMs],
    }),
  }
}

export interface RetentionStatements {
  operations(batch: PurgeBatch): PgStatement
  operationsOverdue(graceMs: number): PgStatement
  marks(batch: PurgeBatch): PgStatement
  marksOverdue(graceMs: number): PgStatement
  history(batch: PurgeBatch): PgStatement
  historyOverdue(graceMs: number): PgStatement
}

/** What a batch told. */
export interface PurgedRows {
  readonly removed: number
  readonly erased: number
  readonly after: string | undefined
}

/** Runs one batch in a transaction of its own. */
export async function purgeBatch<C extends PgClient>(
  connections: Connections<C>,
  answerTimeoutMs: number,
  statement: PgStatement,
  { limit }: PurgeBatch,
  doing: string,
): Promise<PurgedRows> {
  const [row] = (await ownTransaction(connections, answerTimeoutMs, statement, doing)).rows
  const more = Number(row?.['seen'] ?? 0) >= limit
  return {
    removed: Number(row?.['removed'] ?? 0),
    erased: Number(row?.['erased'] ?? 0),
    after: more ? String(row?.['after']) : undefined,
  }
}

/** Milliseconds for which the oldest row has been due. */
export async function overdueMs<C extends PgClient>(
  connections: Connections<C>,
  answerTimeoutMs: number,
  statement: PgStatement,
  doing: string,
): Promise<number> {
  const [row] = (await ownTransaction(connections, answerTimeoutMs, statement, doing)).rows
  return Math.max(0, Math.floor(Number(row?.['ms'] ?? 0)))
}

/** A standby refuses `for update`. */
async function ownTransaction<C extends PgClient>(
  connections: Connections<C>,
  answerTimeoutMs: number,
  statement: PgStatement,
  doing: string,
): Promise<PgResult> {
  try {
    return await connections.use(
      answerTimeoutMs,
      async (client) => {
        await client.query({ text: PURGE_BEGIN })
        const result = await client.query(owned(statement))
        await client.query({ text: 'commit' })
        return result
      },
      true,
    )
  } catch (error) {
    throw toOnceError(error, doing)
  }
}
