/**
 * Outbox insert: all messages of one work, in one statement, in the trip of its COMMIT.
 *
 * `seq` is drawn in the order of the array: the rows are sorted by their position before the identity column's
 * default is evaluated. The default runs after the work's own statements, hence after the locks that put writers
 * of one ordering key in a row, which makes order of seq the order of their commits. (I8)
 *
 * @module
 */

import type { OutboxRow } from '../../store/outbox.ts'
import type { PgStatement } from './handle.ts'
import { statementName } from './statement-name.ts'

const COLUMNS = 'lane, id, topic, ordering_key, payload, encoding, content_type, headers'
const ONE = '$1::smallint, $2::uuid, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text'
const TYPES = ['smallint', 'uuid', 'text', 'text', 'text', 'text', 'text', 'text']
const MANY = `rows from (${TYPES.map((type, index) => `pg_catalog.unnest($${index + 1}::${type}[])`).join(', ')}) with ordinality as u(${COLUMNS}, position)`
const SAME_TRANSACTION = 'pg_catalog.pg_current_xact_id_if_assigned() = $9::xid8'

interface Insert {
  readonly name: string
  readonly text: string
}

/** Text and name are made once for a schema: statements are looked up by them, which is cheap for the same string. */
interface Inserts {
  readonly one: Insert
  readonly many: Insert
  readonly oneIf: Insert
  readonly manyIf: Insert
}

const inserts = new Map<string, Inserts>()

function insertsOf(schema: string): Inserts {
  let made = inserts.get(schema)
  if (made === undefined) {
    const into = `insert into ${schema}.outbox (${COLUMNS})`
    made = {
      one: {
        name: statementName(schema, 'outbox_insert_1'),
        text: `/* effectively-once:outbox.insert_1 */ ${into} values (${ONE})`,
      },
      many: {
        name: statementName(schema, 'outbox_insert'),
        text: `/* effectively-once:outbox.insert */ ${into} select ${COLUMNS} from ${MANY} order by position`,
      },
      oneIf: {
        name: statementName(schema, 'outbox_insert_1_if'),
        text: `/* effectively-once:outbox.insert_1_if */ ${into} select ${ONE} where ${SAME_TRANSACTION}`,
      },
      manyIf: {
        name: statementName(schema, 'outbox_insert_if'),
        text: `/* effectively-once:outbox.insert_if */ ${into} select ${COLUMNS} from ${MANY} where ${SAME_TRANSACTION} order by position`,
      },
    }
    inserts.set(schema, made)
  }
  return made
}

/** Inserts `rows` (at least one) in their order. `schema` is the quoted identifier. */
export function outboxInsert(schema: string, rows: readonly OutboxRow[]): PgStatement {
  const { one, many } = insertsOf(schema)
  const only = rows.length === 1 ? rows[0] : undefined
  return only === undefined
    ? { name: many.name, text: many.text, values: arraysOf(rows) }
    : { name: one.name, text: one.text, values: valuesOf(only) }
}

/**
 * The same, only while the transaction is still the one whose id is `transactionId`: a work that ended our
 * transaction (COMMIT, ROLLBACK, COMMIT + BEGIN) leaves no messages behind.
 */
export function outboxInsertIf(schema: string, rows: readonly OutboxRow[], transactionId: string): PgStatement {
  const { oneIf, manyIf } = insertsOf(schema)
  const only = rows.length === 1 ? rows[0] : undefined
  return only === undefined
    ? { name: manyIf.name, text: manyIf.text, values: [...arraysOf(rows), transactionId] }
    : { name: oneIf.name, text: oneIf.text, values: [...valuesOf(only), transactionId] }
}

function valuesOf(row: OutboxRow): unknown[] {
  const { lane, id, topic, orderingKey, payload, encoding, contentType, headers } = row
  return [lane, id, topic, orderingKey, payload, encoding, contentType, headers]
}

function arraysOf(rows: readonly OutboxRow[]): unknown[] {
  return [
    rows.map((row) => row.lane),
    rows.map((row) => row.id),
    rows.map((row) => row.topic),
    rows.map((row) => row.orderingKey),
    rows.map((row) => row.payload),
    rows.map((row) => row.encoding),
    rows.map((row) => row.contentType),
    rows.map((row) => row.headers),
  ]
}
