/**
 * Rows as earlier releases wrote them: each is loaded into a database of today and replayed.
 *
 * test/fixtures/stored holds one file of rows for each format, never changed once it is there: `outcome-N.sql` for outcomes
 * of transactions, `response-N.sql` for answers of routes, which count each rise of one of the three numbers in their rows.
 * Raising OUTCOME_VERSION, RESPONSE_VERSION or META_VERSION needs new files, which
 * `STORED_FIXTURES=write npx vitest run test/stored-formats.test.ts` makes, and readers of the old ones. What is written today has to be what lies in the newest file: a format that changes without a new number is
 * found here as well.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { idempotency } from '../src/frameworks/fetch/index.ts'
import { META_VERSION } from '../src/http/outcome.ts'
import { RESPONSE_VERSION } from '../src/http/stored.ts'
import { createOnce, type FingerprintSecrets, type Once, type Rejected, rejected } from '../src/index.ts'
import { OUTCOME_VERSION } from '../src/operation/outcome.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { createDatabase } from './database.ts'

const COLUMNS = [
  'id',
  'state',
  'fingerprint_mode',
  'fingerprint_key',
  'fingerprint',
  'scope',
  'outcome_version',
  'outcome',
  'response',
] as const
const fileOf = (format: string, version: number): string => `test/fixtures/stored/${format}-${version}.sql`

const secrets: FingerprintSecrets = { current: 's', keys: { s: new Uint8Array(32).fill(3) } }
const encryption = { current: 'a', keys: { a: new Uint8Array(32).fill(1) } }

let database: Awaited<ReturnType<typeof createDatabase>>
let pool: pg.Pool
let plain: Once<pg.PoolClient>
let withSecrets: Once<pg.PoolClient>
beforeAll(async () => {
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, pipeline: true, max: 2 })
  plain = createOnce({ store: postgres(pool) })
  withSecrets = createOnce({ store: postgres(pool), secrets })
  await plain.migrate()
})
afterAll(async () => {
  await pool.end()
  await database.drop()
})

/** Outcomes by key; what `work` returns is what every later release has to return for the row. */
const OUTCOMES: Readonly<Record<string, unknown>> = {
  object: { orderId: 7, lines: [{ sku: 'a', cents: 1.5 }], none: null },
  text: 'null \u0000, lone \ud800, é',
  zero: 0,
  no: false,
  list: [],
  nothing: undefined,
}
const operationOf = (key: string) => ({ scope: ['acme', 'stored'], key, payload: { key, amount: 1.0 } })

async function outcomes(work: 'run' | 'fail'): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = {}
  const ran = (value: unknown) => {
    if (work === 'fail') throw new Error('the work ran')
    return value
  }
  for (const [key, value] of Object.entries(OUTCOMES)) {
    found[key] = (await plain.transaction(operationOf(key), () => ran(value) as never)).value
  }
  const refuse = (): Rejected<object> => ran(rejected({ code: 'LIMIT' })) as Rejected<object>
  found['rejected'] = (await plain.transaction(operationOf('rejected'), refuse)).rejection
  const keyed = await withSecrets.transaction(operationOf('keyed'), () => ran('keyed'))
  found['keyed'] = keyed.value
  return found
}

/** Answers by key: status, headers and body that every later release has to send for the row. */
const RESPONSES: Readonly<Record<string, readonly [number, Readonly<Record<string, string>>, Uint8Array]>> = {
  created: [201, { 'content-type': 'application/json', location: '/orders/7' }, Buffer.from('{"orderId":7}')],
  empty: [204, {}, Buffer.alloc(0)],
  binary: [200, { 'content-type': 'application/octet-stream' }, Uint8Array.from({ length: 256 }, (_, at) => at)],
  refused: [409, { 'content-type': 'application/problem+json' }, Buffer.from('{"code":"SOLD_OUT"}')],
  encrypted: [200, { 'content-type': 'text/plain', etag: '"e"' }, Buffer.from('a secret')],
  'not kept': [201, { location: '/orders/8' }, Buffer.from('not kept')],
}

async function responses(work: 'run' | 'fail'): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = {}
  for (const [key, [status, headers, body]] of Object.entries(RESPONSES)) {
    const options = {
      scope: () => 'acme',
      operation: 'POST /stored',
      ...(key === 'encrypted' ? { encryption } : {}),
      keepResponse: key !== 'not kept',
    }
    const route = idempotency(plain, options, () => {
      if (work === 'fail') throw new Error('the handler ran')
      return new Response(body.byteLength === 0 ? null : Uint8Array.from(body), { status, headers })
    })
    const request = { method: 'POST', headers: { 'idempotency-key': `"${key}"`, 'content-type': 'application/json' } }
    const answer = await route(new Request('http://localhost/stored?a=1', { ...request, body: '{"cents":1}' }))
    found[key] = {
      status: answer.status,
      headers: Object.fromEntries([...answer.headers].filter(([name]) => name in headers)),
      body: Buffer.from(await answer.arrayBuffer()).toString('hex'),
      replayed: answer.headers.get('idempotent-replayed'),
    }
  }
  return found
}

const FORMATS = [
  { format: 'outcome', version: OUTCOME_VERSION, use: outcomes },
  { format: 'response', version: OUTCOME_VERSION + RESPONSE_VERSION + META_VERSION - 2, use: responses },
] as const

const empty = () => pool.query('truncate effectively_once.operation cascade')

describe.each(FORMATS)('$format', ({ format, version, use }) => {
  test('R41: what is written today is what lies in the newest file', async () => {
    await empty()
    await use('run')
    const written = await rows()
    const file = fileOf(format, version)
    if (process.env['STORED_FIXTURES'] === 'write' && !existsSync(file)) writeFileSync(file, sqlOf(format, written))
    expect(existsSync(file), `${file} is missing: see the head of this test`).toBe(true)
    await empty()
    await pool.query(readFileSync(file, 'utf8'))
    // A ciphertext has a nonce of its own each time.
    const comparable = (row: Row) => (row['response']?.startsWith('\\x0101') ? { ...row, response: 'encrypted' } : row)
    expect(written.map(comparable)).toEqual((await rows()).map(comparable))
  })

  test.each(Array.from({ length: version }, (_, at) => at + 1))(
    'R41, I3: rows of format %i are replayed as they were',
    async (old) => {
      await empty()
      const file = fileOf(format, old)
      expect(existsSync(file), `${file} is missing: rows of that format are in databases`).toBe(true)
      await pool.query(readFileSync(file, 'utf8'))
      const found = await use('fail')
      if (format === 'outcome') {
        expect(found).toEqual({ ...OUTCOMES, rejected: { code: 'LIMIT' }, keyed: 'keyed' })
        return
      }
      for (const [key, [status, headers, body]] of Object.entries(RESPONSES)) {
        expect(found[key]).toMatchObject(
          key === 'not kept'
            ? { status: 409, replayed: null }
            : { status, headers, body: Buffer.from(body).toString('hex'), replayed: 'true' },
        )
      }
    },
  )
})

type Row = Readonly<Record<(typeof COLUMNS)[number], string | null>>

async function rows(): Promise<Row[]> {
  const { rows: found } = await pool.query<Row>(
    `select ${COLUMNS.map((column) => `${column}::text`).join(', ')} from effectively_once.operation order by id`,
  )
  return found
}

function sqlOf(format: string, written: readonly Row[]): string {
  const literal = (value: string | null) => (value === null ? 'null' : pg.escapeLiteral(value))
  const values = written.map((row) => {
    const kept = row.response === null ? 'null' : `'infinity'`
    return `  (gen_random_uuid(), 'infinity', ${kept}, ${COLUMNS.map((column) => literal(row[column])).join(', ')})`
  })
  return (
    `-- Rows of ${format}s as this format's release wrote them. Never changed: databases have them.\n` +
    `insert into effectively_once.operation\n  (token, expires_at, response_expires_at, ${COLUMNS.join(', ')})\nvalues\n` +
    `${values.join(',\n')};\n`
  )
}
