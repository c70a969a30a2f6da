import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type MigrationFile, parseMigration, planMigrations } from '../src/store/migration.ts'
import { migrate, runMigrations } from '../src/stores/postgres/migrate.ts'
import { checkSchema, shippedMigrations } from '../src/stores/postgres/schema.ts'
import { startPostgres } from '../src/testing/services/postgres.ts'
import { tcpProxy } from '../src/testing/services/tcp-proxy.ts'
import { createDatabase } from './database.ts'
import { pgbouncerMissing, startPgBouncer } from './services/pgbouncer.ts'
import { startStandby } from './services/standby.ts'

let url: string
let admin: pg.Client
const pools: pg.Pool[] = []

/** A pool of this test; all are closed at the end of the file. */
function poolOf(options: pg.PoolConfig = {}): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, ...options })
  pool.on('error', () => {})
  pools.push(pool)
  return pool
}

const database = await createDatabase()
beforeAll(async () => {
  url = database.url
  admin = new pg.Client({ connectionString: url })
  await admin.connect()
})
beforeEach(async () => {
  await admin.query('drop schema if exists effectively_once cascade')
})
afterAll(async () => {
  await Promise.all(pools.filter((pool) => !pool.ended).map((pool) => pool.end()))
  await admin.end()
  await database.drop()
})

function text(name: string, body: string, compatible = 'yes'): [string, string] {
  return [
    `${name}.sql`,
    `-- ${name}.sql (postgres)\n-- why:        a test.\n-- lock:       as the statement says.\n-- compatible: ${compatible}, a test.\n${body}\n`,
  ]
}
const file = (name: string, body: string, compatible?: string): MigrationFile =>
  parseMigration(...text(name, body, compatible))

async function versionTable(): Promise<MigrationFile> {
  const first = (await shippedMigrations())[0]
  if (first === undefined) throw new Error('no file is shipped')
  return first
}
async function versionTableText(): Promise<[string, string]> {
  const { name, sql } = await versionTable()
  return [`${name}.sql`, sql]
}

async function eventually(what: string, condition: () => Promise<boolean>): Promise<void> {
  const until = performance.now() + 20_000
  while (!(await condition())) {
    if (performance.now() > until) throw new Error(`did not come: ${what}`)
  }
}
const waiting = (pattern: string) => async () => {
  const { rowCount } = await admin.query(
    `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like $1`,
    [pattern],
  )
  return rowCount !== 0
}
const applied = async (): Promise<string[]> => {
  const { rows } = await admin.query<{ name: string }>('select name from effectively_once.migration order by version')
  return rows.map((row) => row.name)
}

describe('migrate', () => {
  test('SC58: an empty database gets every file once and the check accepts it', async () => {
    const pool = poolOf()
    await expect(checkSchema(pool)).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    const report = await migrate(pool)
    const files = await shippedMigrations()
    expect(report.before).toBeNull()
    expect(report.steps.map((step) => step.name)).toEqual(files.map(({ name }) => name))
    expect(await applied()).toEqual(files.map(({ name }) => name))
    await checkSchema(pool)
    expect(await migrate(pool)).toMatchObject({ before: report.after, after: report.after, steps: [] })
  })

  test('SC58: sixteen nodes that migrate at once apply each file exactly once', async () => {
    const reports = await Promise.all(Array.from({ length: 16 }, () => migrate(poolOf({ max: 1 }))))
    const files = await shippedMigrations()
    const names = reports.flatMap((report) => report.steps.map((step) => step.name))
    expect(names.sort()).toEqual(files.map(({ name }) => name))
    expect(new Set(reports.map((report) => report.after))).toEqual(new Set([files.at(-1)?.version]))
  })

  test('SC58: a dry run tells the statements and changes nothing', async () => {
    const report = await migrate(poolOf(), { dryRun: true })
    expect(report.steps.map((step) => step.name)).toEqual((await shippedMigrations()).map(({ name }) => name))
    expect(report.steps[0]?.sql).toContain('create table "effectively_once".migration')
    expect(report.steps.some((step) => /[^:]:schema\b/.test(step.sql))).toBe(false)
    const { rowCount } = await admin.query(`select 1 from pg_namespace where nspname = 'effectively_once'`)
    expect(rowCount).toBe(0)
  })

  test('SC58: a process killed in the middle of a file leaves whole files, and the next one finishes', async () => {
    const texts = [
      await versionTableText(),
      text('0001_first', 'create table :schema.first (id int);'),
      text(
        '0002_second',
        'create table :schema.second (id int);\nselect pg_advisory_xact_lock(4711);\ncreate table :schema.third (id int);',
      ),
    ]
    await admin.query('select pg_advisory_lock(4711)')
    const child = spawn(
      process.execPath,
      ['--import', 'tsx', fileURLToPath(new URL('processes/migrate.ts', import.meta.url))],
      {
        env: { ...process.env, DATABASE_URL: url, MIGRATION_FILES: JSON.stringify(texts) },
        stdio: 'inherit',
      },
    )
    await eventually('the child waits inside the second file', waiting('%pg_advisory_xact_lock(4711)%'))
    child.kill('SIGKILL')
    await once(child, 'exit')
    await admin.query('select pg_advisory_unlock(4711)')
    expect(await applied()).toEqual(['0000_migration', '0001_first'])
    const { rows } = await admin.query(`select to_regclass('effectively_once.second') as second`)
    expect(rows).toEqual([{ second: null }])
    const report = await runMigrations(
      poolOf(),
      texts.map(([name, sql]) => parseMigration(name, sql)),
    )
    expect(report.steps.map((step) => step.name)).toEqual(['0002_second'])
  })

  test('SC58: a connection terminated inside a file is replaced and the file runs whole', async () => {
    const files = [
      await versionTable(),
      file(
        '0001_first',
        'create table :schema.first (id int);\nselect pg_advisory_xact_lock(4712);\ncreate table :schema.second (id int);',
      ),
    ]
    await admin.query('select pg_advisory_lock(4712)')
    const running = runMigrations(poolOf(), files)
    await eventually('the migration waits inside its file', waiting('%pg_advisory_xact_lock(4712)%'))
    await admin.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock' and query like '%4712%'`,
    )
    await admin.query('select pg_advisory_unlock(4712)')
    expect((await running).steps.map((step) => step.name)).toEqual(['0000_migration', '0001_first'])
    await admin.query('select * from effectively_once.first, effectively_once.second')
  })

  test('B114: live readers never wait longer than the lock time-out, and the migration waits for its turn', async () => {
    await runMigrations(poolOf(), [await versionTable(), file('0001_live', 'create table :schema.live (id int);')])
    const files = [
      await versionTable(),
      file('0001_live', 'create table :schema.live (id int);'),
      file('0002_column', 'alter table :schema.live add column more int;'),
    ]
    const pool = poolOf()
    const old = await pool.connect()
    await old.query('begin')
    await old.query('select * from effectively_once.live')
    const running = runMigrations(poolOf(), files, { lockTimeoutMs: 200 })
    // Each of these would wait behind the queued ALTER; the server cancels one that waits over 2 s.
    const reader = await pool.connect()
    await reader.query(`set statement_timeout = '2s'`)
    let blocked = 0
    const look = waiting('%alter table "effectively_once".live%')
    while (blocked < 3) {
      await eventually('the ALTER waits', look)
      await reader.query('select * from effectively_once.live')
      blocked += 1
    }
    await old.query('commit')
    expect((await running).steps.map((step) => step.name)).toEqual(['0002_column'])
    old.release()
    reader.release()
  })

  test('B114: a lock that is never given ends as TOO_BUSY and leaves nothing half done', async () => {
    const first = file('0001_live', 'create table :schema.live (id int);')
    await runMigrations(poolOf(), [await versionTable(), first])
    await admin.query('begin')
    await admin.query('select * from effectively_once.live')
    const second = file(
      '0002_column',
      'create table :schema.other (id int);\nalter table :schema.live add column more int;',
    )
    const running = runMigrations(poolOf(), [await versionTable(), first, second], { lockTimeoutMs: 50, waitMs: 500 })
    await expect(running).rejects.toMatchObject({ code: 'TOO_BUSY', retryable: true })
    await admin.query('commit')
    expect(await applied()).toEqual(['0000_migration', '0001_live'])
    const { rows } = await admin.query(`select to_regclass('effectively_once.other') as other`)
    expect(rows).toEqual([{ other: null }])
  })

  test('B114: an older release works on beside a newer compatible file and stops at a newer breaking one', async () => {
    const old = [await versionTable(), file('0001_first', 'create table :schema.first (id int);')]
    const compatible = file('0002_compatible', 'alter table :schema.first add column more int;')
    const breaking = file('0003_breaking', 'alter table :schema.first drop column id;', 'no')
    const pool = poolOf()
    await runMigrations(pool, [...old, compatible])
    expect(await runMigrations(pool, old)).toMatchObject({ before: 2, after: 2, steps: [] })
    await runMigrations(pool, [...old, compatible, breaking])
    for (const dryRun of [false, true]) {
      const refused = runMigrations(pool, [...old, compatible], { dryRun })
      await expect(refused).rejects.toMatchObject({
        code: 'SCHEMA_NEWER',
        message: expect.stringContaining('0003_breaking'),
      })
    }
    expect(await applied()).toHaveLength(4)
  })

  test('B114: the shipped check tolerates a newer compatible file and refuses a newer breaking one', async () => {
    const pool = poolOf()
    await migrate(pool)
    await admin.query(`insert into effectively_once.migration values (9998, '9998_compatible', 'x', false)`)
    await checkSchema(pool)
    await admin.query(`insert into effectively_once.migration values (9999, '9999_breaking', 'x', true)`)
    await expect(checkSchema(pool)).rejects.toMatchObject({ code: 'SCHEMA_NEWER' })
    await expect(migrate(pool)).rejects.toMatchObject({ code: 'SCHEMA_NEWER' })
  })

  test('SC58: an applied file that was edited afterwards is refused by name', async () => {
    const pool = poolOf()
    await runMigrations(pool, [await versionTable(), file('0001_first', 'create table :schema.first (id int);')])
    const edited = [await versionTable(), file('0001_first', 'create table :schema.first (id bigint);')]
    await expect(runMigrations(pool, edited)).rejects.toMatchObject({
      code: 'SCHEMA_NEWER',
      message: expect.stringContaining('0001_first with other content'),
    })
  })

  test('B116: a standby and a read-only role are refused, also when nothing is to be done', async () => {
    const primary = await startPostgres()
    try {
      const pool = poolOf({ connectionString: primary.url })
      await migrate(pool)
      const standby = await startStandby(primary)
      try {
        const onStandby = poolOf({ connectionString: standby.urlOf('postgres') })
        await expect(migrate(onStandby)).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
        await expect(checkSchema(onStandby)).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
        await onStandby.end()
      } finally {
        await standby.stop()
      }
      await pool.end()
    } finally {
      await primary.stop()
    }
    const readOnly = poolOf({ options: '-c default_transaction_read_only=on' })
    await expect(migrate(readOnly)).rejects.toMatchObject({ code: 'REPLICA_REFUSED' })
  })

  test('T9: a schema name that is no plain identifier is refused before anything is sent', async () => {
    const untouched = {
      connect: () => Promise.reject(new Error('a connection was asked for')),
    }
    const hostile = ['', 'A', 'a b', 'a"b', 'a;drop table x', 'a.b', '1a', 'a'.repeat(64), "a'b", 'ä', 'a\u0000', 'a\n']
    for (const schema of hostile) await expect(migrate(untouched, { schema })).rejects.toThrow(/^schema must match/)
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: 'binary' }), async (schema) => {
        if (/^[a-z_][a-z0-9_]{0,62}$/.test(schema)) return
        await expect(migrate(untouched, { schema })).rejects.toThrow(TypeError)
        await expect(checkSchema(untouched, { schema })).rejects.toThrow(TypeError)
      }),
    )
    for (const schema of ['information_schema', 'pg_catalog', 'pg_temp', 'pg_anything']) {
      await expect(migrate(untouched, { schema })).rejects.toThrow(
        /^schema must not be information_schema or begin with/,
      )
      await expect(checkSchema(untouched, { schema })).rejects.toThrow(TypeError)
    }
    const wrong = { shema: 'x' } as object
    await expect(migrate(untouched, wrong)).rejects.toThrow('migrate: unknown option "shema"')
  })

  test('T9: a reserved word works as a schema name, and two schemas of one database are independent', async () => {
    await admin.query('drop schema if exists "select" cascade')
    const report = await migrate(poolOf(), { schema: 'select' })
    expect(report.before).toBeNull()
    await checkSchema(poolOf(), { schema: 'select' })
    await expect(checkSchema(poolOf())).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    expect((await migrate(poolOf())).before).toBeNull()
  })

  test("T9: the search path is pinned, whatever the role's is", async () => {
    const files = [
      await versionTable(),
      file('0001_path', `create table :schema.path as select current_setting('search_path')::text as path;`),
    ]
    await runMigrations(poolOf({ options: '-c search_path=hostile,public' }), files)
    const { rows } = await admin.query('select path from effectively_once.path')
    expect(rows).toEqual([{ path: 'pg_catalog, pg_temp' }])
  })

  test('SC58: a role that may not create schemas migrates one that was made for it', async () => {
    const name = `eo_migrator_${process.pid}`
    await admin.query(`create role ${name} login password 'x'`)
    try {
      await admin.query(`create schema effectively_once authorization ${name}`)
      const own = new URL(url)
      own.username = name
      own.password = 'x'
      const pool = poolOf({ connectionString: own.href })
      expect((await migrate(pool)).before).toBeNull()
    } finally {
      await admin.query(`drop owned by ${name} cascade`)
      await admin.query(`drop role ${name}`)
    }
  })

  test('a role that may not create a schema is SCHEMA_MISSING by name of 42501', async () => {
    const name = `eo_no_migrator_${process.pid}`
    await admin.query(`create role ${name} login password 'x'`)
    try {
      const own = new URL(url)
      own.username = name
      own.password = 'x'
      const refused = { code: 'SCHEMA_MISSING', message: expect.stringContaining('42501') }
      await expect(migrate(poolOf({ connectionString: own.href }))).rejects.toMatchObject(refused)
    } finally {
      await admin.query(`drop owned by ${name} cascade`)
      await admin.query(`drop role ${name}`)
    }
  })

  test('SC58: an abort ends the waiting at once and the pool stays usable', async () => {
    const files = [await versionTable(), file('0001_wait', 'select pg_advisory_xact_lock(4713);')]
    await admin.query('select pg_advisory_lock(4713)')
    const pool = poolOf({ max: 1 })
    const abort = new AbortController()
    const running = runMigrations(pool, files, { signal: abort.signal })
    await eventually('the migration waits inside its file', waiting('%4713%'))
    abort.abort(new Error('enough'))
    await expect(running).rejects.toThrow('enough')
    await admin.query('select pg_advisory_unlock(4713)')
    await eventually('the file can run', async () => (await runMigrations(pool, files)).after === 1)
    expect(await applied()).toEqual(['0000_migration', '0001_wait'])
  })

  test('SC58: a COMMIT whose answer is lost is read from the version table, never run twice', async () => {
    const proxy = await tcpProxy({ target: { port: Number(new URL(url).port) } })
    try {
      const files = [await versionTable(), file('0001_first', 'create table :schema.first (id int);')]
      const fault = proxy.swallow('commit\0')
      const disarmed = fault.met.then(() => fault.disarm())
      const pool = poolOf({ connectionString: proxy.through(url) })
      expect((await runMigrations(pool, files)).after).toBe(1)
      await disarmed
      expect(fault.count).toBe(1)
      expect(await applied()).toEqual(['0000_migration', '0001_first'])
      await pool.end()
    } finally {
      await proxy.close()
    }
  })

  test.skipIf(pgbouncerMissing !== undefined)(
    'SC58: eight nodes migrate at once through PgBouncer in transaction mode, in one server session each turn',
    async () => {
      const bouncer = await startPgBouncer(url, { poolSize: 3 })
      try {
        const own = Array.from({ length: 8 }, () => poolOf({ connectionString: bouncer.through(url), max: 1 }))
        const reports = await Promise.all(own.map((pool) => migrate(pool)))
        const names = reports.flatMap((report) => report.steps.map((step) => step.name))
        expect(names.sort()).toEqual((await shippedMigrations()).map(({ name }) => name))
        await Promise.all(own.map((pool) => checkSchema(pool)))
        const path = await own[0]?.query('show search_path')
        expect(path?.rows).toEqual([{ search_path: '"$user", public' }])
        await Promise.all(own.map((pool) => pool.end()))
      } finally {
        await bouncer.stop()
      }
    },
  )

  test('SC58: a server that cannot be reached is STORE_UNAVAILABLE', async () => {
    const pool = poolOf({ connectionString: 'postgres://postgres@127.0.0.1:1/none' })
    await expect(migrate(pool)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  })
})

describe('migration files', () => {
  test('every shipped file has a number of its own and a header that says why, lock and compatible', async () => {
    const folder = new URL('../sql/postgres/', import.meta.url)
    for (const name of await readdir(folder)) parseMigration(name, await readFile(new URL(name, folder), 'utf8'))
    const versions = (await shippedMigrations()).map(({ version }) => version)
    expect(versions).toEqual([...new Set(versions)].sort((a, b) => a - b))
  })

  test('a file without its header, with a wrong name or with a COMMIT in it is refused', () => {
    expect(() => parseMigration('1_a.sql', '')).toThrow('NNNN_name.sql')
    expect(() => parseMigration('0001_a.sql', 'select 1;')).toThrow('header')
    const [name, sql] = text('0001_a', 'create table :schema.a (id int);')
    expect(() => parseMigration('0002_a.sql', sql)).toThrow('header')
    expect(() => parseMigration(name, `${sql}commit;\n`)).toThrow('one transaction')
    expect(() => parseMigration(name, sql.replace('compatible: yes', 'compatible: maybe'))).toThrow('header')
  })

  test('a plpgsql body may begin and end, and line ends do not change the checksum', () => {
    const body = `create function :schema.f() returns int language plpgsql as $$\nbegin\n  return 1;\nend;\n$$;`
    const [name, sql] = text('0001_f', body)
    expect(parseMigration(name, sql.replaceAll('\n', '\r\n')).checksum).toBe(parseMigration(name, sql).checksum)
  })

  test('planning is total: missing files are pending in order, unknown breaking ones refuse, unknown others pass', () => {
    const files = [file('0001_a', 'a'), file('0002_b', 'b', 'no'), file('0003_c', 'c')]
    const [a, b, c] = files
    if (a === undefined || b === undefined || c === undefined) throw new Error('three files')
    expect(planMigrations(files, [a])).toEqual({ kind: 'pending', files: [b, c] })
    expect(planMigrations(files, files)).toEqual({ kind: 'current' })
    expect(planMigrations([a], [a, b, c])).toEqual({ kind: 'newer', name: '0002_b' })
    expect(planMigrations([a], [a, c])).toEqual({ kind: 'current' })
    expect(planMigrations([a], [{ ...a, checksum: 'other' }])).toMatchObject({ kind: 'edited', name: '0001_a' })
  })
})
