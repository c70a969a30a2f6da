import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { shippedMigrations } from '../src/stores/postgres/schema.ts'
import { createDatabase } from './database.ts'

const main = resolve('src/cli/main.ts')
const tsx = pathToFileURL(resolve('node_modules/tsx/dist/esm/index.mjs')).href
const database = await createDatabase()
let admin: pg.Client
let folder: string

beforeAll(async () => {
  admin = new pg.Client({ connectionString: database.url })
  await admin.connect()
})
beforeEach(async () => {
  await admin.query('drop schema if exists effectively_once cascade')
  folder = await mkdtemp(join(tmpdir(), 'effectively-once-cli-'))
})
afterEach(() => rm(folder, { recursive: true, force: true }))
afterAll(async () => {
  await admin.end()
  await database.drop()
})

/** Makes packages of this repository resolvable from the folder in which the command runs. */
async function install(...names: string[]): Promise<void> {
  await mkdir(join(folder, 'node_modules'), { recursive: true })
  for (const name of names) {
    const target = name === 'effectively-once' ? resolve('.') : resolve('node_modules', name)
    await symlink(target, join(folder, 'node_modules', name))
  }
}

interface Ended {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

function cli(words: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
  const { DATABASE_URL: _ignored, ...rest } = process.env
  return new Promise((done) => {
    const options = { cwd: folder, env: { ...rest, ...env }, timeout: 60_000 }
    execFile(process.execPath, ['--import', tsx, main, ...words], options, (error, stdout, stderr) => {
      const code = error === null ? 0 : typeof error.code === 'number' ? error.code : -1
      done({ code, stdout, stderr })
    })
  })
}

const configText = (schema: string): string => `
import pg from 'pg'
import { createOnce } from '${pathToFileURL(resolve('src/once.ts')).href}'
import { postgres } from '${pathToFileURL(resolve('src/stores/postgres/index.ts')).href}'
export const once = createOnce({
  store: postgres(new pg.Pool({ connectionString: process.env.TEST_URL }), { schema: '${schema}' }),
})
`

describe('cli', () => {
  test('--help lists the commands and the exit codes, and the version is that of package.json', async () => {
    const help = await cli(['--help'])
    expect(help).toMatchObject({ code: 0, stderr: '' })
    expect(help.stdout).toMatch(/^ {2}migrate \[options\] +create or update the tables/m)
    expect(help.stdout).toContain('Exit codes: 0 done, 1 failed, 2 wrong use')
    const version = await cli(['--version'])
    expect(version.stdout).toMatch(/^\d+\.\d+\.\d+\n$/)
  })

  test('an unknown command or option is wrong use', async () => {
    expect(await cli(['migrat'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("unknown command 'migrat'"),
    })
    expect(await cli(['migrate', '--shema', 'x'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('--shema'),
    })
  })

  test('SC58: migrate needs DATABASE_URL alone; a dry run prints SQL, changes nothing, and a repeat has nothing to do', async () => {
    await install('pg')
    const env = { DATABASE_URL: database.url }
    const dry = await cli(['migrate', '--dry-run'], env)
    expect(dry).toMatchObject({ code: 0, stderr: expect.stringContaining('nothing was changed') })
    expect(dry.stdout).toMatch(/^-- 0000_migration\.sql/)
    expect((await admin.query(`select 1 from pg_namespace where nspname = 'effectively_once'`)).rowCount).toBe(0)
    const real = await cli(['migrate'], env)
    const files = await shippedMigrations()
    expect(real).toMatchObject({ code: 0, stderr: '' })
    expect(real.stdout.trim().split('\n')).toEqual([
      ...files.map(({ name }) => `applied ${name}`),
      `schema effectively_once is at version ${files.at(-1)?.version}`,
    ])
    expect((await cli(['migrate'], env)).stdout).toMatch(/nothing to do\n$/)
  })

  test('migrate --json prints one line: the report, or the error with its code', async () => {
    await install('pg')
    const done = await cli(['migrate', '--json', '--schema', 'other'], { DATABASE_URL: database.url })
    expect(JSON.parse(done.stdout)).toMatchObject({ schema: 'other', dryRun: false, before: null })
    await admin.query(`insert into other.migration values (9999, '9999_breaking', 'x', true)`)
    const refused = await cli(['migrate', '--json', '--schema', 'other'], { DATABASE_URL: database.url })
    expect(refused).toMatchObject({ code: 1, stderr: '' })
    expect(JSON.parse(refused.stdout)).toMatchObject({ error: { code: 'SCHEMA_NEWER', retryable: false } })
    await admin.query('drop schema other cascade')
  })

  test('T9: a schema name that is no identifier is wrong use', async () => {
    await install('pg')
    const ended = await cli(['migrate', '--schema', 'a"; drop schema public cascade; --'], {
      DATABASE_URL: database.url,
    })
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('schema must match') })
  })

  test('I13, R40: purge removes what is expired and tells what it left, with DATABASE_URL alone or a configuration', async () => {
    await install('pg')
    const env = { DATABASE_URL: database.url }
    await cli(['migrate'], env)
    await admin.query(
      `insert into effectively_once.operation
         (id, token, state, fingerprint_mode, fingerprint, scope, outcome_version, outcome, expires_at)
       select gen_random_uuid(), gen_random_uuid(), 'succeeded', 'canonical', '\\x00', '["x"]', 1, '1',
         now() + (case when n > 8 then 1 else -1 end) * interval '1 hour' from generate_series(1, 10) n`,
    )
    const done = await cli(['purge', '--batch-rows', '3', '--json'], env)
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(JSON.parse(done.stdout)).toEqual({
      records: 8,
      responses: 0,
      marks: 0,
      history: 0,
      lagMs: { operations: 0, marks: 0, history: 0 },
      complete: true,
    })
    await writeFile(join(folder, 'effectively-once.config.mjs'), configText('effectively_once'))
    const again = await cli(['purge', '--history-ms', '0'], { TEST_URL: database.url })
    expect(again.stdout).toBe('removed 0 outcomes and 0 marks, 0 published messages; erased 0 answers\n')
    expect(await cli(['purge', '--batch-rows', '5000'], { TEST_URL: database.url })).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('batchRows takes a whole number from 1 to 4000'),
    })
    expect((await admin.query('select from effectively_once.operation')).rowCount).toBe(2)
  })

  test('a missing database, a missing pg and an unreachable server are each one clear error', async () => {
    expect(await cli(['migrate'])).toMatchObject({ code: 2, stderr: expect.stringContaining('no DATABASE_URL') })
    const env = { DATABASE_URL: 'postgres://nobody:hunter2@127.0.0.1:1/none' }
    expect(await cli(['migrate'], env)).toMatchObject({ code: 2, stderr: expect.stringContaining('npm install pg') })
    await install('pg')
    const unreachable = await cli(['migrate'], env)
    expect(unreachable).toMatchObject({ code: 1, stderr: expect.stringContaining('ECONNREFUSED 127.0.0.1:1') })
    expect(unreachable.stderr).toContain('[STORE_UNAVAILABLE]')
    expect(unreachable.stderr).not.toContain('hunter2')
  })

  test.each(['mjs', 'ts'])('a configuration in .%s that exports once is found and ends by itself', async (end) => {
    await install('pg', 'tsx')
    await writeFile(join(folder, `effectively-once.config.${end}`), configText(`config_${end}`))
    const ended = await cli(['migrate'], { TEST_URL: database.url })
    expect(ended).toMatchObject({ code: 0, stderr: '' })
    expect(ended.stdout).toContain(`schema config_${end} is at version`)
    const both = await cli(['migrate', '--schema', 'x'], { TEST_URL: database.url })
    expect(both).toMatchObject({ code: 2, stderr: expect.stringContaining('says its schema itself') })
    await admin.query(`drop schema config_${end} cascade`)
  })

  test('a configuration that is not there, exports no once or cannot be read is wrong use', async () => {
    expect(await cli(['migrate', '--config', 'none.mjs'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('none.mjs does not exist'),
    })
    await writeFile(join(folder, 'other.mjs'), 'export default {}')
    expect(await cli(['migrate', '--config', 'other.mjs'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('must export the object that createOnce() returns as `once`'),
    })
    await writeFile(join(folder, 'typed.ts'), 'export const once: unknown = {}')
    const typed = await cli(['migrate', '--config', 'typed.ts'])
    expect(typed).toMatchObject({ code: 2, stderr: expect.stringContaining('npm install --save-dev tsx') })
  })

  test('SIGTERM stops a waiting migration: exit code 143, and what was committed stays', async () => {
    await install('pg')
    await cli(['migrate'], { DATABASE_URL: database.url })
    await admin.query(`delete from effectively_once.migration where version > 0`)
    // Held by a session, so that the look at pg_stat_activity below is a new one each time.
    await admin.query(`select pg_advisory_lock(hashtextextended('effectively-once migrate effectively_once', 0))`)
    const child = spawn(process.execPath, ['--import', tsx, main, 'migrate'], {
      cwd: folder,
      env: { ...process.env, DATABASE_URL: database.url },
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let told = ''
    child.stderr.on('data', (chunk: Buffer) => {
      told += chunk.toString()
    })
    const until = performance.now() + 20_000
    for (;;) {
      const { rowCount } = await admin.query(
        `select 1 from pg_stat_activity where datname = current_database() and application_name = 'effectively-once'`,
      )
      if (rowCount === 1) break
      if (performance.now() > until) throw new Error('the command did not connect')
    }
    child.kill('SIGTERM')
    const [code] = (await once(child, 'exit')) as [number]
    expect({ code, told }).toMatchObject({ code: 143, told: expect.stringContaining('stopped by SIGTERM') })
    await admin.query('select pg_advisory_unlock_all()')
  })
})
