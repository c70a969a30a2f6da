/**
 * A hot standby of a private PostgreSQL: a base copy taken while the primary runs, then streaming. Real, because
 * a role check against a stand-in would prove nothing. The primary should be quiet while the copy is made.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, cp, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import pg from 'pg'
import { freePort, type PostgresService } from '../../src/testing/services/postgres.ts'

export interface Standby {
  /** Connection string of another database on the standby. */
  urlOf(database: string): string
  /** Waits until everything that the primary has committed so far can be read here. */
  caughtUp(): Promise<void>
  stop(): Promise<void>
}

const START_MS = 30_000

export async function startStandby(primary: PostgresService): Promise<Standby> {
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-standby-'))
  await chmod(folder, 0o755)
  const dataDir = join(folder, 'data')
  const port = await freePort()
  await copyOf(primary, dataDir)
  await writeFile(join(dataDir, 'standby.signal'), '')
  const owner = await stat(primary.dataDir)
  const asOwner = process.getuid?.() === 0 ? { uid: owner.uid, gid: owner.gid } : {}
  if (asOwner.uid !== undefined) await once(spawn('chown', ['-R', `${owner.uid}:${owner.gid}`, dataDir]), 'exit')

  const from = new URL(primary.url)
  const conninfo = `host=127.0.0.1 port=${primary.port} user=${from.username} password=${from.password}`
  const [binary = ''] = (await readFile(join(primary.dataDir, 'postmaster.opts'), 'utf8')).split(' ')
  const settings = ['listen_addresses=127.0.0.1', 'unix_socket_directories=', 'max_connections=300']
  const server = spawn(
    binary,
    ['-D', dataDir, '-p', String(port)].concat(
      [...settings, `primary_conninfo=${conninfo}`].flatMap((setting) => ['-c', setting]),
    ),
    { stdio: ['ignore', 'ignore', 'pipe'], ...asOwner },
  )
  await ready(server)
  const urlOf = (database: string) => `postgres://${from.username}:${from.password}@127.0.0.1:${port}/${database}`
  return {
    urlOf,
    caughtUp: () => caughtUp(primary.url, urlOf('postgres')),
    async stop() {
      if (server.exitCode === null && server.signalCode === null) {
        const gone = once(server, 'exit')
        server.kill('SIGINT')
        await gone
      }
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}

/** Copies the data directory between the start and the stop of a backup, as pg_basebackup does. */
async function copyOf(primary: PostgresService, dataDir: string): Promise<void> {
  const client = new pg.Client({ connectionString: primary.url })
  await client.connect()
  try {
    await client.query(`select pg_backup_start('standby', true)`)
    const left = new Set(['postmaster.pid', 'postmaster.opts'])
    await cp(primary.dataDir, dataDir, {
      recursive: true,
      preserveTimestamps: true,
      filter: (source) => !left.has(basename(source)),
    })
    await chmod(dataDir, 0o700)
    const { rows } = await client.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)')
    await writeFile(join(dataDir, 'backup_label'), rows[0]?.labelfile ?? '')
  } finally {
    await client.end()
  }
}

function ready(server: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let log = ''
    const timer = setTimeout(() => server.kill('SIGKILL'), START_MS)
    server.stderr?.on('data', (chunk: Buffer) => {
      log = `${log}${chunk.toString()}`.slice(-4_000)
      if (!log.includes('ready to accept read-only connections')) return
      clearTimeout(timer)
      resolve()
    })
    server.once('exit', () => reject(new Error(`the standby did not start:\n${log}`)))
  })
}

async function caughtUp(primaryUrl: string, standbyUrl: string): Promise<void> {
  const [primary, standby] = [primaryUrl, standbyUrl].map((url) => new pg.Client({ connectionString: url }))
  if (primary === undefined || standby === undefined) return
  await Promise.all([primary.connect(), standby.connect()])
  try {
    const { rows } = await primary.query<{ lsn: string }>('select pg_current_wal_insert_lsn() as lsn')
    const until = performance.now() + START_MS
    for (;;) {
      const { rows: seen } = await standby.query<{ done: boolean }>('select pg_last_wal_replay_lsn() >= $1 as done', [
        rows[0]?.lsn,
      ])
      if (seen[0]?.done === true) return
      if (performance.now() > until) throw new Error('the standby does not catch up')
    }
  } finally {
    await Promise.all([primary.end(), standby.end()])
  }
}
