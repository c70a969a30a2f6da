/**
 * A private RabbitMQ node for tests, drills and the demo: own node name, data directory, ports and epmd, loopback
 * only. Never a node that happens to listen on a standard port: it may be somebody's real one.
 *
 * The node runs in a process group of its own together with its epmd, under a small shell that watches the pipe to
 * this process: when this process goes away, whatever the reason, the group is killed. It starts in about a third
 * of the usual time, because the Erlang code path holds only the applications that the broker itself depends on.
 *
 * @module
 */

import { execFile, spawn } from 'node:child_process'
import { chmod, chown, mkdir, mkdtemp, open, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { pause } from '../../shared/waiting.ts'
import { freePort } from './postgres.ts'
import { findRabbit, type RabbitSearch } from './rabbitmq-install.ts'
import { watchFolder } from './watchdog.ts'

const run = promisify(execFile)

export interface RabbitServiceOptions {
  /** Path of the server's start script as `findRabbit` reports it. Default: an installed one. */
  readonly server?: string | undefined
  /** Extra lines of rabbitmq.conf, for example `{ consumer_timeout: '5000' }`. */
  readonly settings?: Readonly<Record<string, string>> | undefined
  /** Erlang terms of advanced.config, for what rabbitmq.conf cannot say. */
  readonly advanced?: string | undefined
  /** Plugins to enable. Default none: each makes the start slower. */
  readonly plugins?: readonly string[] | undefined
  /** Milliseconds in which the node must accept connections. Default 90_000. */
  readonly startTimeoutMs?: number | undefined
}

/** A running private node. */
export interface RabbitService {
  /** AMQP URL of the default virtual host, user guest. */
  readonly url: string
  readonly port: number
  /** Folder with the node's data, configuration and log. */
  readonly folder: string
  /** AMQP URL of another virtual host of the node. */
  urlOf(vhost: string): string
  /** Starts the node again on the same data, after `kill`. Resolves when it accepts connections. */
  start(): Promise<void>
  /** SIGKILL of the node and its epmd; the data stays. Call `flush` before when a quorum queue is new. */
  kill(): Promise<void>
  /**
   * Writes the node's registry of quorum queues to disk. RabbitMQ 3.10 does so only every 500 ms: a queue younger
   * than that does not survive a SIGKILL, and never elects a leader again.
   */
  flush(): Promise<void>
  /** Kills the node and removes its data. */
  stop(): Promise<void>
  /** Runs rabbitmqctl of this node; resolves with its output. */
  ctl(...args: readonly string[]): Promise<string>
  /** Raises or clears the memory alarm, which blocks every publishing connection. */
  memoryAlarm(on: boolean): Promise<void>
  /** Closes all client connections from the broker's side. */
  closeConnections(reason?: string): Promise<void>
}

/** Starts a node of its own. @throws {Error} when no server is installed or the node does not come up in time. */
export async function startRabbit(options: RabbitServiceOptions = {}): Promise<RabbitService> {
  const server = options.server ?? (await installedServer())
  const owner = await runAs()
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-mq-'))
  watchFolder(folder)
  const [port, distPort, epmdPort] = [await freePort(), await freePort(), await freePort()]
  const home = await trimmedHome(server, folder, options.plugins ?? [])
  const environment = await configure(folder, home, { port, distPort, epmdPort }, options)
  await chmod(folder, 0o755)
  for (const name of ['', 'mnesia', 'log', 'enabled_plugins']) {
    if (owner.uid !== undefined) await chown(join(folder, name), owner.uid, owner.gid)
  }
  const identity = owner.uid === undefined ? {} : owner
  const urlOf = (vhost: string) => `amqp://guest:guest@127.0.0.1:${port}/${encodeURIComponent(vhost)}`
  let group: NodeGroup | undefined

  const ctl = async (...args: readonly string[]) => {
    const { stdout } = await run(join(home, 'sbin', 'rabbitmqctl'), ['-q', ...args], {
      ...identity,
      env: environment,
      cwd: folder,
      timeout: 60_000,
    })
    return stdout
  }
  const kill = async () => {
    await group?.kill()
    group = undefined
  }
  const start = async () => {
    if (group !== undefined) throw new Error('the RabbitMQ node is already running')
    group = await startGroup(join(home, 'sbin', 'rabbitmq-server'), folder, environment, epmdPort, identity)
    try {
      await accepting(port, group, options.startTimeoutMs ?? 90_000)
    } catch (error) {
      await kill()
      throw error
    }
  }
  const stop = async () => {
    await kill()
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
  }

  try {
    await start()
  } catch (error) {
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
    throw error
  }
  return {
    url: `amqp://guest:guest@127.0.0.1:${port}`,
    port,
    folder,
    urlOf,
    start,
    kill,
    stop,
    ctl,
    async flush() {
      await ctl('eval', '[dets:sync(Table) || Table <- dets:all()].')
    },
    async memoryAlarm(on) {
      await ctl('set_vm_memory_high_watermark', on ? '0' : '0.6')
    },
    async closeConnections(reason = 'closed by a test') {
      await ctl('close_all_connections', reason)
    },
  }
}

/** A broker to use, however it could be had. */
export interface RabbitObtained {
  readonly url: string
  /** One line for people: where it came from. */
  readonly how: string
  /** Stops it when it is ours; does nothing to a broker named by AMQP_URL. */
  stop(): Promise<void>
}

/**
 * AMQP_URL when set, else a private node of an installed (or, with `install`, just installed) server. Starts nothing
 * when neither can be had: then `reason` says why in one line.
 */
export async function obtainRabbit(search: RabbitSearch = {}): Promise<RabbitObtained | { readonly reason: string }> {
  const found = await findRabbit(search)
  if (found.kind === 'none') return { reason: found.reason }
  if (found.kind === 'url') return { url: found.url, how: 'RabbitMQ named by AMQP_URL', stop: async () => {} }
  const node = await startRabbit({ server: found.server })
  return { url: node.url, how: `a private RabbitMQ node (${found.how})`, stop: () => node.stop() }
}

async function installedServer(): Promise<string> {
  const found = await findRabbit({ url: false })
  if (found.kind === 'server') return found.server
  throw new Error(`no RabbitMQ server to start: ${found.kind === 'none' ? found.reason : 'only a URL is known'}`)
}

/** Who the node runs as: the package's own user when we are root, else ourselves. */
async function runAs(): Promise<{ uid: number; gid: number } | { uid?: undefined; gid?: undefined }> {
  if (process.getuid?.() !== 0) return {}
  const users = await readFile('/etc/passwd', 'utf8').catch(() => '')
  const fields = users
    .split('\n')
    .find((line) => line.startsWith('rabbitmq:'))
    ?.split(':')
  return fields === undefined ? {} : { uid: Number(fields[2]), gid: Number(fields[3]) }
}

/**
 * A RABBITMQ_HOME whose plugins folder links only what `rabbit` and the wanted plugins depend on. The start spends
 * most of its time looking modules up in every folder of the code path and loading all of them. An installation of
 * another shape (zipped plugins) is used as it is.
 */
async function trimmedHome(server: string, folder: string, plugins: readonly string[]): Promise<string> {
  const installed = dirname(dirname(server))
  const folderOf = new Map<string, string>()
  const needs = new Map<string, readonly string[]>()
  for (const entry of await readdir(join(installed, 'plugins')).catch(() => [])) {
    const name = entry.replace(/-[^-]*$/, '')
    const text = await readFile(join(installed, 'plugins', entry, 'ebin', `${name}.app`), 'utf8').catch(() => undefined)
    if (text === undefined) continue
    folderOf.set(name, join(installed, 'plugins', entry))
    needs.set(name, (/\{\s*applications\s*,\s*\[([^\]]*)\]/.exec(text)?.[1] ?? '').split(/[\s,']+/))
  }
  if (!folderOf.has('rabbit')) return installed
  const wanted = new Set<string>()
  const queue = ['rabbit', ...plugins]
  for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
    if (wanted.has(name) || !folderOf.has(name)) continue
    wanted.add(name)
    queue.push(...(needs.get(name) ?? []))
  }
  const home = join(folder, 'home')
  await mkdir(join(home, 'plugins'), { recursive: true })
  for (const name of wanted) {
    const target = folderOf.get(name)
    if (target !== undefined) await symlink(target, join(home, 'plugins', basename(target)))
  }
  for (const name of ['sbin', 'escript']) await symlink(join(installed, name), join(home, name))
  return home
}

/** Writes the node's configuration and returns its whole environment: nothing of the machine's own node leaks in. */
async function configure(
  folder: string,
  home: string,
  ports: { readonly port: number; readonly distPort: number; readonly epmdPort: number },
  options: RabbitServiceOptions,
): Promise<NodeJS.ProcessEnv> {
  const settings = {
    'listeners.tcp.default': `127.0.0.1:${ports.port}`,
    'log.file': 'false',
    'log.console': 'true',
    'log.console.level': 'info',
    'disk_free_limit.absolute': '50MB',
    ...options.settings,
  }
  for (const name of ['mnesia', 'log']) await mkdir(join(folder, name), { recursive: true })
  const write = (name: string, text: string) => writeFile(join(folder, name), text)
  await write(
    'rabbitmq.conf',
    Object.entries(settings)
      .map(([name, value]) => `${name} = ${value}\n`)
      .join(''),
  )
  await write('enabled_plugins', `[${(options.plugins ?? []).join(',')}].\n`)
  await write('environment.conf', '')
  if (options.advanced !== undefined) await write('advanced.config', options.advanced)
  return {
    PATH: process.env['PATH'],
    LANG: 'C.UTF-8',
    HOME: folder,
    RABBITMQ_SCRIPTS_DIR: join(home, 'sbin'),
    RABBITMQ_PLUGINS_DIR: join(home, 'plugins'),
    RABBITMQ_CONF_ENV_FILE: join(folder, 'environment.conf'),
    RABBITMQ_NODENAME: 'effectively-once@localhost',
    RABBITMQ_BASE: folder,
    RABBITMQ_MNESIA_BASE: join(folder, 'mnesia'),
    RABBITMQ_LOG_BASE: join(folder, 'log'),
    RABBITMQ_CONFIG_FILE: join(folder, 'rabbitmq.conf'),
    RABBITMQ_ADVANCED_CONFIG_FILE: join(folder, 'advanced.config'),
    RABBITMQ_ENABLED_PLUGINS_FILE: join(folder, 'enabled_plugins'),
    RABBITMQ_DIST_PORT: String(ports.distPort),
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: '-kernel inet_dist_use_interface {127,0,0,1}',
    ERL_EPMD_PORT: String(ports.epmdPort),
    ERL_EPMD_ADDRESS: '127.0.0.1',
  }
}

interface NodeGroup {
  readonly log: string
  exited(): boolean
  kill(): Promise<void>
}

/** The shell leads the group. It ends it when the server ends or when the pipe from this process closes. */
const GROUP_SCRIPT = `
epmd -port "$2" -address 127.0.0.1 </dev/null >/dev/null 2>&1 &
{ "$1" </dev/null; kill -KILL 0; } &
read -r _
kill -KILL 0
`

async function startGroup(
  server: string,
  folder: string,
  environment: NodeJS.ProcessEnv,
  epmdPort: number,
  identity: { readonly uid?: number; readonly gid?: number },
): Promise<NodeGroup> {
  const log = join(folder, 'node.log')
  const output = await open(log, 'a')
  const child = spawn('/bin/sh', ['-c', GROUP_SCRIPT, 'rabbitmq', server, String(epmdPort)], {
    ...identity,
    cwd: folder,
    env: environment,
    detached: true,
    stdio: ['pipe', output.fd, output.fd],
  })
  let ended = false
  const exit = new Promise<void>((resolve) => {
    const done = () => {
      ended = true
      resolve()
    }
    child.once('exit', done)
    child.once('error', done)
  })
  child.stdin?.on('error', () => {})
  child.unref()
  await output.close()
  return {
    log,
    exited: () => ended,
    async kill() {
      if (child.pid !== undefined && !ended) {
        child.ref()
        try {
          process.kill(-child.pid, 'SIGKILL')
        } catch {
          // The group is gone already.
        }
      }
      await exit
    },
  }
}

/** Waits until the port answers the AMQP greeting. */
async function accepting(port: number, group: NodeGroup, timeoutMs: number): Promise<void> {
  const deadline = performance.now() + timeoutMs
  while (!(await greets(port))) {
    if (group.exited() || performance.now() > deadline) {
      const tail = (await readFile(group.log, 'utf8').catch(() => '')).split('\n').slice(-15).join('\n')
      const what = group.exited() ? 'ended while starting' : `did not accept connections within ${timeoutMs} ms`
      throw new Error(`the RabbitMQ node ${what}; end of its log:\n${tail}`)
    }
    await pause(25)
  }
}

function greets(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', timeout: 2_000 })
    const end = (answer: boolean) => {
      socket.destroy()
      resolve(answer)
    }
    socket.once('connect', () => socket.write('AMQP\x00\x00\x09\x01'))
    socket.once('data', () => end(true))
    socket.once('error', () => end(false))
    socket.once('timeout', () => end(false))
    socket.once('close', () => end(false))
  })
}
