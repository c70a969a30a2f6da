/**
 * What operators do with waiting and quarantined messages, as statements and functions: list, read, redrive, hasten.
 *
 * @module
 */

import type { InboxQuarantineEntry, KeptDelivery, RedriveOptions, WaitingEntry } from '../../store/inbox.ts'
import type { PgStatement } from './handle.ts'

const CLOCK = 'pg_catalog.clock_timestamp()'

/** The SQL of one schema; `schema` is the quoted identifier. */
export function inboxOperatorStatements(schema: string): InboxOperatorStatements {
  const tag = (statement: string) => `/* effectively-once:inbox.${statement} */`
  return {
    redrive: (ids, options) => ({
      text: `${tag('redrive')} select given, result from ${schema}.inbox_redrive($1::bigint[], $2::boolean, $3::text, $4::text)`,
      values: [ids, options.override, options.actor, options.reason],
    }),
    hasten: (consumer, ids) => ({
      text:
        `${tag('hasten')} update ${schema}.inbox_waiting set due_at = ${CLOCK} ` +
        `where consumer = $1::text and owner is null and due_at > ${CLOCK} and ($2::uuid[] is null or id = any($2::uuid[]))`,
      values: [consumer, ids ?? null],
    }),
    listWaiting: (page) => ({
      text:
        `${tag('list_waiting')} select id, consumer, source, message_id, type, topic, ordering_key, reason, attempts, due_at, ` +
        `owner is not null as claimed, last_error, history, created_at from ${schema}.inbox_waiting ` +
        `where ($1::text is null or consumer = $1::text) order by seq limit $2::int`,
      values: [page.consumer ?? null, page.limit],
    }),
    listQuarantine: (page) => ({
      text:
        `${tag('list_quarantine')} select id, mark_id, consumer, source, message_id, type, topic, ordering_key, reason, attempts, ` +
        `last_error, history, received_at, quarantined_at from ${schema}.inbox_quarantine ` +
        `where ($1::text is null or consumer = $1::text) and id > $3::bigint order by id limit $2::int`,
      values: [page.consumer ?? null, page.limit, page.after ?? '0'],
    }),
    readQuarantined: (id) => ({
      text:
        `${tag('read_quarantined')} select queue, topic, type, content_type, ordering_key, ` +
        `(extract(epoch from sent_at) * 1000)::float8 as sent_at_ms, transport, body ` +
        `from ${schema}.inbox_quarantine where id = $1::bigint`,
      values: [id],
    }),
  }
}

export interface InboxOperatorStatements {
  redrive(ids: readonly string[], options: RedriveOptions): PgStatement
  hasten(consumer: string, ids: readonly string[] | undefined): PgStatement
  listWaiting(page: { readonly consumer?: string | undefined; readonly limit: number }): PgStatement
  listQuarantine(page: {
    readonly consumer?: string | undefined
    readonly limit: number
    readonly after?: string | undefined
  }): PgStatement
  readQuarantined(id: string): PgStatement
}

type Row = Record<string, unknown>

const textOf = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

export function toWaitingEntry(row: Row): WaitingEntry {
  return {
    id: String(row['id']),
    consumer: String(row['consumer']),
    source: String(row['source']),
    messageId: String(row['message_id']),
    type: textOf(row['type']),
    topic: String(row['topic']),
    orderingKey: textOf(row['ordering_key']),
    reason: row['reason'] as WaitingEntry['reason'],
    attempts: Number(row['attempts']),
    dueAt: row['due_at'] as Date,
    claimed: row['claimed'] === true,
    lastError: textOf(row['last_error']),
    history: row['history'] as readonly unknown[],
    createdAt: row['created_at'] as Date,
  }
}

export function toQuarantineEntry(row: Row): InboxQuarantineEntry {
  return {
    id: String(row['id']),
    markId: String(row['mark_id']),
    consumer: String(row['consumer']),
    source: String(row['source']),
    messageId: textOf(row['message_id']),
    type: textOf(row['type']),
    topic: String(row['topic']),
    orderingKey: textOf(row['ordering_key']),
    reason: row['reason'] as InboxQuarantineEntry['reason'],
    attempts: Number(row['attempts']),
    lastError: textOf(row['last_error']),
    history: row['history'] as readonly unknown[],
    receivedAt: row['received_at'] as Date,
    quarantinedAt: row['quarantined_at'] as Date,
  }
}

export function toKeptDelivery(row: Row): KeptDelivery {
  return {
    queue: String(row['queue']),
    topic: String(row['topic']),
    type: textOf(row['type']),
    contentType: textOf(row['content_type']),
    orderingKey: textOf(row['ordering_key']),
    sentAtMs: row['sent_at_ms'] === null ? undefined : Number(row['sent_at_ms']),
    transport: String(row['transport']),
    body: row['body'] as Uint8Array,
  }
}
