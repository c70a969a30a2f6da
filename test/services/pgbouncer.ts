/**
 * A private PgBouncer (Debian's package) in transaction mode on a free port of loopback: statements of one client
 * reach changing server sessions, and named statements do not survive, as in many production set-ups.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from '../../src/testing/services/postgres.ts'

export interface PgBouncer {
  /** The same database through the pooler. */
  through(url: string): string
  stop(): Promise<void>
}

const START_MS = 15_000
const BINARY = ['/usr/sbin/pgbouncer', '/usr/bin/pgbouncer', '/usr/local/bin/pgbouncer'].find((path) =>
  existsSync(path),
)

/** Why PgBouncer cannot be started here, or undefined when it can. */
export const pgbouncerMissing: string | undefined =
  BINARY === undefined ? 'pgbouncer is not installed (Debian: apt-get install pgbouncer)' : undefined
if (pgbouncerMissing !== undefined) console.warn(`\n*** SKIPPED: tests that need PgBouncer. ${pgbouncerMissing} ***\n`)

/** Starts a pooler in front of the server that `url` names; its user is the only one let in. */
export async function startPgBouncer(url: string, options: { poolSize?: number } = {}): Promise<PgBouncer> {
  if (BINARY === undefined) throw new Error(pgbouncerMissing)
  const server = new URL(url)
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-pgbouncer-'))
  await chmod(folder, 0o755)
  const port = await freePort()
  await writeFile(join(folder, 'users.txt'), `"${server.username}" "${server.password}"\n`)
  await writeFile(
    join(folder, 'pgbouncer.ini'),
    `[databases]
* = host=${server.hostname} port=${server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = plain
auth_file = ${join(folder, 'users.txt')}
pool_mode = transaction
default_pool_size = ${options.poolSize ?? 10}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits,options
`,
  )
  // PgBouncer refuses to run as root; nobody can read the folder because it holds only this run's test password.
  const user = process.getuid?.() === 0 ? ['-u', 'nobody'] : []
  const child = spawn(BINARY, [...user, join(folder, 'pgbouncer.ini')], { stdio: ['ignore', 'ignore', 'pipe'] })
  await new Promise<void>((resolve, reject) => {
    let log = ''
    const timer = setTimeout(() => child.kill('SIGKILL'), START_MS)
    child.stderr.on('data', (chunk: Buffer) => {
      log = `${log}${chunk.toString()}`.slice(-4_000)
      if (!/process up/.test(log)) return
      clearTimeout(timer)
      resolve()
    })
    child.once('exit', () => reject(new Error(`pgbouncer did not start:\n${log}`)))
  })
  return {
    through(target) {
      const led = new URL(target)
      led.hostname = '127.0.0.1'
      led.port = String(port)
      return led.href
    },
    async stop() {
      if (child.exitCode === null && child.signalCode === null) {
        const gone = once(child, 'exit')
        child.kill('SIGTERM')
        await gone
      }
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}
