/** What a drill leaves behind: text, page, test cases, certificate, and the exit code. */
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Certificate } from '../../src/drill/report/certificate.ts'
import { type PostgresService, startPostgres } from '../../src/testing/services/postgres.ts'
import { DRILL_MS, drillHandler, failed } from './verdicts.ts'

let server: PostgresService
let folder: string

beforeAll(async () => {
  server = await startPostgres({ forgetful: true })
  folder = await mkdtemp(join(tmpdir(), 'effectively-once-reports-'))
})

afterAll(async () => {
  await server.stop()
  await rm(folder, { recursive: true, force: true })
})

interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

function cli(...words: string[]): Promise<Ran> {
  const env = { ...process.env, DATABASE_URL: server.url }
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['--import', 'tsx', 'src/cli/main.ts', 'drill', ...words],
      { env },
      (error, out, err) => {
        resolve({ code: error === null ? 0 : Number(error.code), out, err })
      },
    )
  })
}

const HANDLER = 'test/drill/handlers/check-then-insert.ts'

test(
  'R48: a failed drill ends with 1, tells the shortest story, writes its reports, and its token runs that window again',
  async () => {
    const file = (name: string) => join(folder, name)
    const reports = ['--html', file('map.html'), '--junit', file('drill.xml'), '--certificate', file('drill.json')]
    const { code, out, err } = await cli(HANDLER, '--throw-away', 'postgres', ...reports)
    expect(code, err).toBe(1)
    expect(out).toMatch(
      /^DUPLICATE: delivered twice before sql:2:insert into orders\n +1\. process 1: POST \/orders arrives\n/m,
    )
    expect(out).toMatch(/^ +12\. effects: 2, promised 1$/m)
    expect(out.trim().split('\n').at(-1)).toMatch(
      /^drill check-then-insert: 15 windows found, 13 run, 15 reached, 3 failed; first verdict [\d.]+ s \(limit 30 s\), [\d.]+ s in all \(limit 117 s\)$/,
    )
    // Nobody watches a pipe.
    expect(err.trim()).toBe('error: the drill failed; see above')

    const certificate = JSON.parse(await readFile(file('drill.json'), 'utf8')) as Certificate
    expect(certificate).toMatchObject({
      format: 1,
      drill: 'check-then-insert',
      passed: false,
      windows: { found: 15, run: 13, reached: 15, failed: 3 },
      boundaries: ['sql:1:select from orders', 'sql:2:insert into orders'],
    })
    expect(certificate.codeHash).toMatch(/^[0-9a-f]{64}$/)
    expect(Object.keys(certificate.versions)).toEqual(['node', 'postgres'])
    expect(certificate.verdicts).toContainEqual({
      window: 'delivered twice before sql:2:insert into orders',
      verdict: 'DUPLICATE',
      reached: true,
      passed: false,
      counts: { effects: 2 },
    })

    const xml = await readFile(file('drill.xml'), 'utf8')
    expect(xml).toContain('<testsuite name="check-then-insert" tests="15" failures="3"')
    expect(xml.match(/<testcase /g)).toHaveLength(15)
    expect(xml.match(/<failure message="DUPLICATE">/g)).toHaveLength(3)

    const page = await readFile(file('map.html'), 'utf8')
    expect(page).toContain('<th scope="row">sql:2:insert into orders')
    expect(page).not.toMatch(/<script|https?:\/\//)

    const [, token = ''] = /drill replay (\S+)/.exec(out) ?? []
    const again = await cli('replay', token, '--throw-away', 'postgres')
    expect(again.code, again.err).toBe(1)
    expect(again.out).toContain('FAIL delivered twice before sql:2:insert into orders')
    expect(again.out).toContain('1 windows found, 1 run, 1 reached, 1 failed')
  },
  DRILL_MS,
)

test('T15: what is refused, and what is no drill, ends with 2 and one line that says what to do', async () => {
  const refused = await cli(HANDLER)
  expect(refused.code).toBe(2)
  expect(refused.err).toContain('--throw-away postgres')
  const missing = await cli('nowhere.ts')
  expect(missing.code).toBe(2)
  expect(missing.err).toContain('nowhere.ts does not exist')
  const other = await cli('src/shared/waiting.ts')
  expect(other.code).toBe(2)
  expect(other.err).toContain('a drill file exports { start, effects } by default')
})

test(
  'R48: a passed drill ends with 0, and with --json prints its certificate and nothing else',
  async () => {
    const { code, out, err } = await cli('test/drill/handlers/job.ts', '--throw-away', 'postgres', '--json')
    const certificate = JSON.parse(out) as Certificate
    expect(certificate).toMatchObject({ drill: 'job', passed: true, windows: { failed: 0 } })
    // On a machine that is busy with other things it may have been too slow.
    const inTime = certificate.firstVerdictMs <= 30_000 && certificate.tookMs <= 90_000
    expect({ code, quiet: err === '' }).toEqual({ code: inTime ? 0 : 1, quiet: inTime })
  },
  DRILL_MS,
)

test(
  'R48: with pairs, whoever recovers from a fault is hurt as well',
  async () => {
    const result = await drillHandler('job', { databaseUrl: server.url, throwAway: 'postgres', pairs: true })
    expect(failed(result)).toEqual([])
    const pairs = result.windows.filter(({ window }) => window.second !== undefined).map(({ name }) => name)
    expect(pairs).toContain('kill before sql:1:insert into done, then kill after sql:1:insert into done in process 2')
    expect(pairs).toContain(
      'answer lost after sql:1:insert into done, then kill before sql:2:insert into done in process 1',
    )
  },
  DRILL_MS,
)
