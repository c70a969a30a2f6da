import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { access } from 'node:fs/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import { expect, inject, test } from 'vitest'
import { createDatabase } from './database.ts'
import { eventually } from './eventually.ts'

const run = promisify(execFile)
const DEMO_MS = 120_000

/** Runs the command as a user does and returns the JSON of its last line. */
async function demo(...flags: string[]): Promise<Record<string, unknown>> {
  const env = { ...process.env, DATABASE_URL: inject('postgresUrl') }
  const words = ['--import', 'tsx', 'src/cli/main.ts', 'demo', '--json', ...flags]
  const { stdout } = await run(process.execPath, words, { env, timeout: DEMO_MS })
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Record<string, unknown>
}

const promised = {
  orders: 1,
  applied: ['applied', 'duplicate'],
  projectionRows: 1,
  unroutablePending: true,
  mismatchRefused: true,
  rejectionReplayed: true,
}

test(
  'R49: the demo holds with relay and consumer killed, on RabbitMQ or whatever can be had',
  async () => {
    const result = await demo()
    expect(result).toMatchObject(promised)
    expect(result['published']).toBeGreaterThanOrEqual(2)
    if (process.env['CI'] === 'true') expect(result['broker']).toBe('rabbitmq')
  },
  DEMO_MS,
)

test(
  'R49: the demo holds on the in-process broker',
  async () => {
    const result = await demo('--memory')
    expect(result).toMatchObject({ ...promised, broker: 'memory' })
    expect(result['published']).toBeGreaterThanOrEqual(2)
  },
  DEMO_MS,
)

test.each(['SIGINT', 'SIGTERM'] as const)(
  'R49: a demo that %s stops half way throws away what it made in the database that it was given',
  async (signal) => {
    const database = await createDatabase()
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    try {
      const env = { ...process.env, DATABASE_URL: database.url }
      const words = ['--import', 'tsx', 'src/cli/main.ts', 'demo', '--memory']
      const child = spawn(process.execPath, words, { env, stdio: ['ignore', 'ignore', 'pipe'] })
      const exit = once(child, 'exit')
      let said = ''
      child.stderr.on('data', (chunk: Buffer) => {
        said += chunk.toString()
      })
      await eventually('it is at its second scene', () => said.includes('2. A relay process'), DEMO_MS)
      child.kill(signal)
      expect(await exit).toEqual([signal === 'SIGINT' ? 130 : 143, null])
      expect(said).not.toContain('Everything held')
      const { rows } = await client.query(`select nspname from pg_namespace where nspname like '%demo%'`)
      expect(rows).toEqual([])
    } finally {
      await client.end()
      await database.drop()
    }
  },
  DEMO_MS,
)

test.each(['SIGINT', 'SIGKILL'] as const)(
  'private servers and their folders go with their process, also after %s',
  async (signal) => {
    const program = `
      const { startPostgres } = await import('./src/testing/services/postgres.ts')
      const { port, dataDir } = await startPostgres()
      console.log(JSON.stringify({ port, dataDir }))
      setInterval(() => {}, 60_000)`
    const words = ['--import', 'tsx', '--input-type=module', '--eval', program]
    const child = spawn(process.execPath, words, { stdio: ['ignore', 'pipe', 'ignore'] })
    const exit = once(child, 'exit')
    const [line] = (await once(child.stdout, 'data')) as [Buffer]
    const { port, dataDir } = JSON.parse(line.toString()) as { port: number; dataDir: string }
    await access(dataDir)
    child.kill(signal)
    await exit
    const gone = (check: Promise<unknown>) =>
      check.then(
        () => false,
        () => true,
      )
    await eventually('the folder is gone', () => gone(access(dataDir)))
    await eventually('the server is gone', () => {
      const client = new pg.Client({ host: '127.0.0.1', port, user: 'postgres', password: 'x' })
      return client.connect().then(
        () => false,
        (error: { code?: string }) => error.code === 'ECONNREFUSED',
      )
    })
  },
  DEMO_MS,
)
