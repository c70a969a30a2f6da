/**
 * A private Redis for tests and examples: its own port and folder, loopback only, nothing saved. Never a server that
 * happens to listen on the standard port: it may be somebody's real one.
 *
 * The server runs under a small shell that watches the pipe to this process: when this process goes away, whatever the
 * reason, the server is killed.
 *
 * @module
 */

import { spawn } from 'node:child_process'
import { access, constants, mkdtemp, rm } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { pause } from '../../shared/waiting.ts'
import { freePort } from './postgres.ts'

/** A running private server. */
export interface RedisService {
  readonly host: string
  readonly port: number
  readonly url: string
  /** Kills the server and removes its folder. */
  stop(): Promise<void>
}

/** Where an installed server lies; undefined = there is none. */
export async function findRedis(): Promise<string | undefined> {
  const folders = (process.env['PATH'] ?? '').split(delimiter).filter((entry) => entry !== '')
  for (const folder of [...folders, '/usr/bin', '/usr/local/bin', '/opt/homebrew/bin']) {
    const path = join(folder, 'redis-server')
    const found = await access(path, constants.X_OK).then(
      () => true,
      () => false,
    )
    if (found) return path
  }
  return undefined
}

const SCRIPT = `
"$1" --port "$2" --bind 127.0.0.1 --save '' --appendonly no --dir "$3" --logfile "$3/redis.log" &
read -r _
kill -KILL 0
`
const START_MS = 20_000

/** Starts a server of its own. @throws {Error} when none is installed or it does not answer within 20 s. */
export async function startRedis(): Promise<RedisService> {
  const server = await findRedis()
  if (server === undefined) throw new Error('no redis-server is installed')
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-redis-'))
  const port = await freePort()
  const child = spawn('/bin/sh', ['-c', SCRIPT, 'redis', server, String(port), folder], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => resolve())
    child.once('error', () => resolve())
  })
  child.unref()
  const stop = async () => {
    child.ref()
    try {
      if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, 'SIGKILL')
    } catch {
      // It is gone already.
    }
    await ended
    await rm(folder, { recursive: true, force: true })
  }
  const deadline = performance.now() + START_MS
  while (!(await answers(port))) {
    if (performance.now() > deadline) {
      await stop()
      throw new Error(`the Redis server did not answer within ${START_MS} ms`)
    }
    await pause(25)
  }
  return { host: '127.0.0.1', port, url: `redis://127.0.0.1:${port}`, stop }
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', timeout: 2_000 })
    const end = (answer: boolean) => {
      socket.destroy()
      resolve(answer)
    }
    socket.once('connect', () => socket.write('PING\r\n'))
    socket.once('data', (data) => end(data.toString().startsWith('+PONG')))
    socket.once('error', () => end(false))
    socket.once('timeout', () => end(false))
    socket.once('close', () => end(false))
  })
}
