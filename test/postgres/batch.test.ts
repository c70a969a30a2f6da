import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { PgArray } from '../../src/stores/postgres/array.ts'
import { type BatchPort, batchPort, sendBatch } from '../../src/stores/postgres/batch.ts'
import type { PgClient, PgResult, PgStatement } from '../../src/stores/postgres/handle.ts'
import { inlined } from '../../src/stores/postgres/inline.ts'
import { createDatabase } from '../database.ts'

let database: Awaited<ReturnType<typeof createDatabase>>
beforeAll(async () => {
  database = await createDatabase()
})
afterAll(() => database.drop())

async function connected(options: pg.ClientConfig & { pipeline?: boolean } = {}): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: database.url, ...options })
  client.on('error', () => {})
  await client.connect()
  return client
}

function portOf(client: pg.Client): BatchPort {
  const port = batchPort(client)
  if (port === null) throw new Error('this driver takes no batches')
  return port
}

function batch(client: pg.Client, statements: readonly PgStatement[], prepare = true): Promise<readonly PgResult[]> {
  return new Promise((resolve, reject) => {
    sendBatch(client as unknown as PgClient, portOf(client), statements, prepare, (error, results) =>
      error === null ? resolve(results) : reject(error),
    )
  })
}

const prepared = async (client: pg.Client): Promise<string[]> => {
  const { rows } = await client.query<{ name: string }>('select name from pg_prepared_statements order by name')
  return rows.map((row) => row.name)
}

describe.each([{ pipeline: true }, { pipeline: false }])('a client with $pipeline', (options) => {
  test('answers every statement in order, with tags, counts and columns', async () => {
    const client = await connected(options)
    const results = await batch(client, [
      { text: 'begin' },
      { name: 'one', text: "select 'a', null::text", columns: ['first', 'second'] },
      { text: 'create temporary table t (n int)' },
      { name: 'two', text: 'insert into t select n from generate_series(1, $1::int) n', values: [3] },
      { text: 'commit' },
    ])
    expect(results.map((result) => [result.command, result.rowCount])).toEqual([
      ['BEGIN', null],
      ['SELECT', 1],
      ['CREATE', null],
      ['INSERT', 3],
      ['COMMIT', null],
    ])
    expect(results[1]?.rows).toEqual([{ first: 'a', second: null }])
    await client.end()
  })

  test('reads arrays in binary form and as written text alike', async () => {
    const client = await connected(options)
    const ids = ['00000000-0000-4000-8000-00000000000a', 'ffffffff-9abc-4def-8123-456789abcdef']
    const texts = ['', 'a,"b\\c{}', 'null', 'z\u00fcrich \u{1f600}', 'x'.repeat(300)]
    const bytes = [new Uint8Array(), Uint8Array.of(0, 255, 92, 34)]
    const statement: PgStatement = {
      text:
        'select pg_catalog.array_to_json($1::uuid[])::text, pg_catalog.array_to_json($2::text[])::text, ' +
        'pg_catalog.array_to_json($3::bytea[])::text, $4::uuid[]::text',
      values: [
        new PgArray('uuid', ids),
        new PgArray('text', texts),
        new PgArray('bytea', bytes),
        new PgArray('uuid', []),
      ],
      columns: ['uuid', 'text', 'bytea', 'empty'],
    }
    const [sent] = await batch(client, [statement])
    expect(JSON.parse(String(sent?.rows[0]?.['uuid']))).toEqual(ids)
    expect(JSON.parse(String(sent?.rows[0]?.['text']))).toEqual(texts)
    expect(JSON.parse(String(sent?.rows[0]?.['bytea']))).toEqual(['\\x', '\\x00ff5c22'])
    expect(sent?.rows[0]?.['empty']).toBe('{}')
    const written = await client.query({ text: inlined(statement), rowMode: 'array' })
    expect(written.rows[0]).toEqual(Object.values(sent?.rows[0] ?? {}))
    for (const wrong of [
      '',
      'ffffffff-9abc-4def-8123-456789abcde',
      'ffffffff-9abc-4def-8123-456789abcdeg',
      `${ids[0]}0`,
    ]) {
      const values = [new PgArray('uuid', [wrong])]
      expect(() =>
        sendBatch(client as unknown as PgClient, portOf(client), [{ text: 'select $1', values }], true, () => {}),
      ).toThrow(TypeError)
    }
    await client.end()
  })

  test('stops at the first error: COMMIT behind it is not reached, the transaction is failed and nothing stays', async () => {
    const client = await connected(options)
    await client.query('create table kept (n int)')
    const trip = batch(client, [
      { text: 'begin' },
      { text: 'insert into kept values (1)' },
      { text: 'select 1/0' },
      { text: 'commit' },
    ])
    await expect(trip).rejects.toMatchObject({ code: '22012' })
    await expect(client.query('select 1')).rejects.toMatchObject({ code: '25P02' })
    expect(await batch(client, [{ text: 'rollback' }])).toMatchObject([{ command: 'ROLLBACK' }])
    expect((await client.query('select * from kept')).rows).toEqual([])
    await client.query('drop table kept')
    await client.end()
  })

  test('prepares a name once, and again after its first use failed to parse or to run', async () => {
    const client = await connected(options)
    const select = (text: string): PgStatement => ({ name: 'own', text, values: ['1'], columns: ['value'] })
    await expect(batch(client, [select('select missing_function($1::text)')])).rejects.toMatchObject({ code: '42883' })
    await expect(batch(client, [select('select (1 / ($1::int - 1))::text')])).rejects.toMatchObject({ code: '22012' })
    expect(await prepared(client)).toEqual(['own_b'])
    for (let time = 0; time < 2; time++) {
      expect(await batch(client, [select('select $1::text')])).toMatchObject([{ rows: [{ value: '1' }] }])
    }
    expect(await prepared(client)).toEqual(['own_b'])
    await client.end()
  })

  test('without preparing leaves no name behind, for poolers in transaction mode', async () => {
    const client = await connected(options)
    await batch(client, [{ name: 'own', text: 'select $1::text', values: ['x'], columns: ['v'] }], false)
    expect(await prepared(client)).toEqual([])
    await client.end()
  })

  test('does not meet the names that the driver prepares itself', async () => {
    const client = await connected(options)
    const statement = { name: 'shared', text: 'select $1::text as v', values: ['x'], columns: ['v'] }
    await batch(client, [statement])
    expect((await client.query(statement)).rows).toEqual([{ v: 'x' }])
    expect(await prepared(client)).toEqual(['shared', 'shared_b'])
    await client.end()
  })

  test('T9: values arrive as they are: quotes, backslashes, null, bytes, lists, text longer than the buffer', async () => {
    const client = await connected(options)
    const long = 'ä"\\\u{1F600}'.repeat(20_000)
    const list = ['a,b', '"', '\\', 'null', '', ' ', '{}', null, 'ü']
    const [result] = await batch(client, [
      {
        name: 'values',
        text: 'select $1::text, $2::text, $3::bytea::text, $4::text[]::text = $5::text, array_length($4::text[], 1)::text, $6::bool::text, $7::int8::text, $8::text',
        values: [
          long,
          null,
          new Uint8Array([0, 255, 92]),
          list,
          (await client.query('select $1::text[]::text as t', [list])).rows[0].t,
          true,
          2n ** 62n,
          "'; drop table x; --",
        ],
        columns: ['long', 'none', 'bytes', 'same', 'count', 'yes', 'big', 'quoted'],
      },
    ])
    expect(result?.rows).toEqual([
      {
        long,
        none: null,
        bytes: '\\x00ff5c',
        same: 't',
        count: String(list.length),
        yes: 'true',
        big: String(2n ** 62n),
        quoted: "'; drop table x; --",
      },
    ])
    await client.end()
  })

  test('a value that cannot be sent is a TypeError before anything is sent', async () => {
    const client = await connected(options)
    await expect(batch(client, [{ text: 'select $1', values: [{ a: 1 }] }])).rejects.toThrow(TypeError)
    expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    await client.end()
  })

  test('a lost connection is told once, as an error without an SQLSTATE or a FATAL one', async () => {
    const client = await connected(options)
    const ends: unknown[] = []
    const ended = new Promise<void>((resolve) => {
      sendBatch(
        client as unknown as PgClient,
        portOf(client),
        [{ text: 'select pg_terminate_backend(pg_backend_pid())' }, { text: 'commit' }],
        true,
        (error) => {
          ends.push(error)
          resolve()
        },
      )
    })
    await ended
    await new Promise((resolve) => client.once('end', resolve))
    expect(ends).toHaveLength(1)
    expect(ends[0]).toBeInstanceOf(Error)
  })
})

test('answers of the statements around a batch stay with their callers when all are in flight at once', async () => {
  const client = await connected({ pipeline: true })
  const before = client.query('select 1 as n')
  const own = batch(client, [
    { text: "select '2'", columns: ['n'] },
    { text: "select '3'", columns: ['n'] },
  ])
  const failing = batch(client, [{ text: 'select 1/0' }, { text: "select 'never'" }]).catch((error) => error.code)
  const after = client.query('select 4 as n')
  expect((await before).rows).toEqual([{ n: 1 }])
  expect((await own).map((result) => result.rows)).toEqual([[{ n: '2' }], [{ n: '3' }]])
  expect(await failing).toBe('22012')
  expect((await after).rows).toEqual([{ n: 4 }])
  await client.end()
})

test('a client that shows nothing of its class takes no batch', () => {
  expect(batchPort({ query() {}, release() {} })).toBeNull()
  expect(batchPort({ connection: { stream: {} } })).toBeNull()
})
