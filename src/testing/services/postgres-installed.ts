/**
 * A PostgreSQL server from binaries that are installed on this machine, as Debian's packages leave them: for testing
 * against another major version than the one from npm.
 *
 * @module
 */

import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chown, mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run: (file: string, args: string[], options?: Account) => Promise<{ stdout: string }> = promisify(execFile)

/** Longest start, milliseconds. */
const START_MS = 30_000

export interface InstalledPostgresOptions {
  /** Folder with `initdb` and `postgres`. */
  readonly binaries: string
  readonly dataDir: string
  readonly port: number
  readonly password: string
  readonly settings: Readonly<Record<string, string>>
}

/** Who runs the server: root may not. */
interface Account {
  readonly uid?: number
  readonly gid?: number
}

export class InstalledPostgres {
  readonly #options: InstalledPostgresOptions
  #account: Account = {}
  #server: ChildProcess | undefined

  constructor(options: InstalledPostgresOptions) {
    this.#options = options
  }

  async initialise(): Promise<void> {
    const { binaries, dataDir, password } = this.#options
    this.#account = process.getuid?.() === 0 ? await accountOf('postgres') : {}
    const { uid, gid } = this.#account
    await mkdir(dataDir, { recursive: true })
    const passwordFile = `${dataDir}.password`
    await writeFile(passwordFile, password, { mode: 0o600 })
    if (uid !== undefined && gid !== undefined) {
      await chown(dataDir, uid, gid)
      await chown(passwordFile, uid, gid)
    }
    const how = [
      '--username=postgres',
      '--auth=scram-sha-256',
      `--pwfile=${passwordFile}`,
      '--encoding=UTF8',
      '--locale=C',
    ]
    await run(join(binaries, 'initdb'), [`--pgdata=${dataDir}`, ...how], this.#account)
    await rm(passwordFile)
  }

  async start(): Promise<void> {
    const { binaries, dataDir, port, settings } = this.#options
    const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    const server = spawn(join(binaries, 'postgres'), ['-D', dataDir, '-p', String(port), ...flags], {
      ...this.#account,
      // The line that says that it is up is looked for.
      env: { ...process.env, LC_MESSAGES: 'C' },
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    this.#server = server
    // A process that ends without stopping it takes it along.
    const leave = (): void => void server.kill('SIGQUIT')
    process.once('exit', leave)
    server.once('exit', () => process.removeListener('exit', leave))
    await new Promise<void>((resolve, reject) => {
      let log = ''
      const timer = setTimeout(() => server.kill('SIGKILL'), START_MS)
      const settled = (): void => {
        clearTimeout(timer)
        server.removeListener('exit', ended)
      }
      const ended = (): void => {
        settled()
        reject(new Error(`postgres did not start:\n${log}`))
      }
      server.once('exit', ended)
      server.stderr.on('data', (chunk: Buffer) => {
        log = `${log}${chunk.toString()}`.slice(-4_000)
        if (!log.includes('ready to accept connections')) return
        settled()
        resolve()
      })
    })
  }

  /** Ends it in good order, without waiting for its clients. */
  async stop(): Promise<void> {
    const server = this.#server
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const gone = once(server, 'exit')
    server.kill('SIGINT')
    await gone
  }
}

async function accountOf(user: string): Promise<Account> {
  const [uid, gid] = await Promise.all(
    ['-u', '-g'].map((flag) => run('id', [flag, user]).then(({ stdout }) => Number(stdout))),
  )
  if (uid === undefined || gid === undefined) throw new Error(`there is no user ${user} to run the server`)
  return { uid, gid }
}
