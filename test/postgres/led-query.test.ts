import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type BatchPort, batchPort } from '../../src/stores/postgres/batch.ts'
import type { PgClient, PgResult, PgStatement } from '../../src/stores/postgres/handle.ts'
import { sendLed } from '../../src/stores/postgres/led-query.ts'
import { createDatabase } from '../database.ts'

let database: Awaited<ReturnType<typeof createDatabase>>
beforeAll(async () => {
  database = await createDatabase()
  const admin = await connected()
  await admin.query('create table kept (n int primary key)')
  await admin.end()
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

const BEGIN: PgStatement = { name: 'begin', text: 'begin' }
const answer = (value: string): PgStatement => ({
  name: 'gate',
  text: 'select $1::text',
  values: [value],
  columns: ['v'],
})
const REFUSE: PgStatement = { name: 'refuse', text: 'select (1 / $1::int)::text', values: ['0'], columns: ['v'] }

interface Led {
  /** What `query` returns for the user's statement; undefined when it was not led. */
  readonly answer: Promise<pg.QueryResult> | undefined
  /** How the statements in front ended. */
  readonly lead: Promise<readonly PgResult[]>
}

function led(client: pg.Client, statements: readonly PgStatement[], ...args: readonly unknown[]): Led {
  let sent: ReturnType<typeof sendLed>
  const lead = new Promise<readonly PgResult[]>((resolve, reject) => {
    const end = (error: Error | null, results: readonly PgResult[]) =>
      error === null ? resolve(results) : reject(error)
    const given = { port: portOf(client), statements, prepare: true, end }
    sent = sendLed(client as unknown as PgClient, given, args, () => Promise.reject(new Error('not led')))
  })
  lead.catch(() => {})
  return { answer: sent?.answer as Promise<pg.QueryResult> | undefined, lead }
}

const count = async (client: pg.Client): Promise<number> =>
  Number((await client.query('select count(*) as n from kept')).rows[0].n)

describe.each([{ pipeline: true }, { pipeline: false }])('a client with $pipeline', (options) => {
  test('answers both: ours to us, the result of the statement to its caller, again and again', async () => {
    const client = await connected(options)
    const statement = { name: 'named', text: 'select $1::int + 1 as n', values: [1] }
    for (let time = 0; time < 3; time++) {
      const both = led(client, [BEGIN, answer('passed')], statement)
      expect((await both.answer)?.rows).toEqual([{ n: 2 }])
      expect(await both.lead).toMatchObject([{ command: 'BEGIN' }, { rows: [{ v: 'passed' }] }])
      await client.query('rollback')
    }
    await client.end()
  })

  test('takes text with values, and a callback, as the driver does', async () => {
    const client = await connected(options)
    expect((await led(client, [BEGIN], 'select $1::text as t', ['x']).answer)?.rows).toEqual([{ t: 'x' }])
    const result = await new Promise<pg.QueryResult>((resolve, reject) => {
      led(client, [answer('a')], 'select $1::text as t', ['y'], (error: Error | null, found: pg.QueryResult) =>
        error === null ? resolve(found) : reject(error),
      )
    })
    expect(result.rows).toEqual([{ t: 'y' }])
    await client.end()
  })

  test('I4: a lead that fails keeps the statement from running at all, and both are told why', async () => {
    const client = await connected(options)
    const both = led(client, [BEGIN, REFUSE], 'insert into kept values ($1)', [1])
    await expect(both.answer).rejects.toMatchObject({ code: '22012' })
    await expect(both.lead).rejects.toMatchObject({ code: '22012' })
    await client.query('rollback')
    expect(await count(client)).toBe(0)
    await client.end()
  })

  test('B105: a BEGIN that fails keeps the statement from committing by itself', async () => {
    const client = await connected(options)
    const both = led(
      client,
      [{ text: 'begin isolation level no_such_level' }, answer('a')],
      'insert into kept values ($1)',
      [1],
    )
    await expect(both.answer).rejects.toMatchObject({ code: '42601' })
    await expect(both.lead).rejects.toMatchObject({ code: '42601' })
    expect(await count(client)).toBe(0)
    await client.end()
  })

  test('a named statement that was skipped is prepared when it comes again', async () => {
    const client = await connected(options)
    const statement = { name: 'skipped', text: 'select $1::int as n', values: [7] }
    await expect(led(client, [BEGIN, REFUSE], statement).answer).rejects.toMatchObject({ code: '22012' })
    await client.query('rollback')
    expect((await client.query(statement)).rows).toEqual([{ n: 7 }])
    // And one that was known before is still known.
    await expect(led(client, [BEGIN, REFUSE], statement).answer).rejects.toMatchObject({ code: '22012' })
    await client.query('rollback')
    expect((await client.query(statement)).rows).toEqual([{ n: 7 }])
    await client.end()
  })

  test('a named statement that the server cannot parse is parsed anew when it comes again', async () => {
    const client = await connected(options)
    const statement = { name: 'later', text: 'select n from made_later where n > $1', values: [0] }
    await expect(led(client, [BEGIN, answer('a')], statement).answer).rejects.toMatchObject({ code: '42P01' })
    await client.query('rollback')
    await client.query('create temp table made_later (n int)')
    expect((await client.query(statement)).rows).toEqual([])
    await client.end()
  })

  test('what the driver refuses, and what has no end of its own, is not led and not sent', async () => {
    const client = await connected(options)
    await client.query({ name: 'taken', text: 'select $1::int', values: [1] })
    for (const args of [
      [{ name: 'taken', text: 'select $1::text', values: ['x'] }],
      ['select $1::text', 'no list'],
      [{ text: 'select $1::int', values: [1], rows: 1 }],
      [{ text: 'select $1::int', values: [1], callback: 'no function' }],
      [{ name: 'no values', text: 'select 1' }],
    ]) {
      expect(led(client, [BEGIN], ...args).answer).toBeUndefined()
    }
    expect(
      (await client.query({ name: 'taken', text: 'select $1::int as n', values: [2] }).catch((e) => e)).message,
    ).toMatch(/must be unique/)
    expect((await client.query({ name: 'taken', text: 'select $1::int', values: [2] })).rowCount).toBe(1)
    await client.end()
  })

  test('an error of the statement itself is its own: the lead has passed', async () => {
    const client = await connected(options)
    const both = led(client, [BEGIN, answer('passed')], 'select 1 / $1::int', [0])
    await expect(both.answer).rejects.toMatchObject({ code: '22012' })
    expect(await both.lead).toHaveLength(2)
    await expect(client.query('select 1')).rejects.toMatchObject({ code: '25P02' })
    await client.end()
  })

  test('a value that the driver cannot send is an error of the statement, and the lead passes', async () => {
    const client = await connected(options)
    const circle: { self?: unknown } = {}
    circle.self = circle
    const both = led(client, [BEGIN, answer('passed')], 'select $1::json', [circle])
    await expect(both.answer).rejects.toThrow(TypeError)
    expect(await both.lead).toHaveLength(2)
    await client.query('rollback')
    expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    await client.end()
  })

  test('a lost connection is told to both', async () => {
    const client = await connected(options)
    const lost = new Promise((resolve) => client.once('end', resolve))
    const end = { text: 'select pg_terminate_backend(pg_backend_pid())' }
    const both = led(client, [BEGIN, end], 'select $1::int', [1])
    await expect(both.answer).rejects.toThrow()
    await expect(both.lead).rejects.toThrow()
    await lost
  })

  test('what the driver would send with the simple protocol, and queries of the user, are not led and not sent', async () => {
    const client = await connected(options)
    expect(led(client, [BEGIN], 'select 1').answer).toBeUndefined()
    expect(led(client, [BEGIN], { text: 'select 1' }).answer).toBeUndefined()
    expect(led(client, [BEGIN], new pg.Query('select $1::int', [1])).answer).toBeUndefined()
    const { rows } = await client.query(
      'select pg_current_xact_id_if_assigned() as xid, now() = statement_timestamp() as fresh',
    )
    expect(rows).toEqual([{ xid: null, fresh: true }])
    await client.end()
  })
})

test('statements in flight around a led one get their own answers', async () => {
  const client = await connected({ pipeline: true })
  const before = client.query('select $1::int as n', [1])
  const both = led(client, [BEGIN, answer('2')], 'select $1::int as n', [3])
  const after = client.query('select $1::int as n', [4])
  expect((await before).rows).toEqual([{ n: 1 }])
  expect((await both.lead)[1]?.rows).toEqual([{ v: '2' }])
  expect((await both.answer)?.rows).toEqual([{ n: 3 }])
  expect((await after).rows).toEqual([{ n: 4 }])
  await client.end()
})
