import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { outboxLimits, toRow } from '../../src/outbox/message.ts'
import type { OutboxRow } from '../../src/store/outbox.ts'
import type { PgStatement } from '../../src/stores/postgres/handle.ts'
import { inlined } from '../../src/stores/postgres/inline.ts'
import { migrate } from '../../src/stores/postgres/migrate.ts'
import { outboxInsert, outboxInsertIf } from '../../src/stores/postgres/outbox-insert.ts'
import { createDatabase } from '../database.ts'

const SCHEMA = '"effectively_once"'
const database = await createDatabase()
const client = new pg.Client({ connectionString: database.url })

beforeAll(async () => {
  await client.connect()
  const pool = new pg.Pool({ connectionString: database.url, max: 1 })
  await migrate(pool)
  await pool.end()
})
afterAll(async () => {
  await client.end()
  await database.drop()
})

const rowsOf = (count: number, topic: string): OutboxRow[] =>
  Array.from({ length: count }, (_, index) =>
    toRow(
      { topic, orderingKey: index % 2 === 0 ? `k"${index}` : undefined, payload: { index, text: 'a"b\\c\0' } },
      outboxLimits(),
    ),
  )

const stored = async (topic: string) =>
  (await client.query(`select * from ${SCHEMA}.outbox where topic = $1 order by lane, seq`, [topic])).rows

const prepared = (statement: PgStatement) => client.query(statement)
const asString = (statement: PgStatement) => client.query(inlined(statement))

describe.each([
  ['prepared', prepared],
  ['as simple text', asString],
] as const)('outbox insert, %s', (how, run) => {
  test.each([1, 2, 20])('B39: %i rows of one transaction get their seq in the order of the array', async (count) => {
    const topic = `${how}-${count}`
    const rows = rowsOf(count, topic)
    await run(outboxInsert(SCHEMA, rows))
    const found = await stored(topic)
    expect(
      found.map(({ id, lane, ordering_key, payload, encoding, content_type, headers }) => ({
        id,
        lane,
        topic,
        orderingKey: ordering_key,
        payload,
        encoding,
        contentType: content_type,
        headers,
      })),
    ).toEqual(rows)
  })

  test.each([1, 3])('%i rows are not inserted when the work ended our transaction', async (count) => {
    const topic = `${how}-if-${count}`
    const xid = async () => String((await client.query('select pg_current_xact_id()::text as xid')).rows[0].xid)
    await client.query('begin')
    const ours = await xid()
    await client.query('commit')
    await run(outboxInsertIf(SCHEMA, rowsOf(count, topic), ours))
    await client.query('begin')
    await client.query('create temp table if not exists other (n int)')
    await run(outboxInsertIf(SCHEMA, rowsOf(count, topic), ours))
    await client.query('commit')
    expect(await stored(topic)).toEqual([])
    await client.query('begin')
    await run(outboxInsertIf(SCHEMA, rowsOf(count, topic), await xid()))
    await client.query('commit')
    expect(await stored(topic)).toHaveLength(count)
  })
})
