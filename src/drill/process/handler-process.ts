/**
 * Handler process: one process of the handler as the drill holds it, from its spawn to its death.
 *
 * Processes are started ahead and load the drill file while another run is going on; a run takes one, so that it waits
 * for nothing but `start`.
 *
 * @module
 */

import { type ChildProcess, fork } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Bounded, bounded } from '../../shared/waiting.ts'
import { esbuildOf } from '../file/compile.ts'
import type { DrillWorld } from '../file/format.ts'
import { type Gateway, openGateway, type Route } from './gateway.ts'
import type { FromProcess, ProcessArguments, ToProcess } from './protocol.ts'

export interface HandlerProcess {
  readonly gateway: Gateway
  readonly pid: number
  readonly alive: boolean
  /** Where its server listens; 0 without one. */
  readonly port: number
  /** Resolves when it is dead. */
  readonly ended: Promise<void>
  /** The end of what it has printed. */
  readonly output: string
  /** Leads its connections and starts the handler. @throws {Error} when that fails or takes too long. */
  start(route: Route, world: DrillWorld, serves: boolean): Promise<void>
  /** Does one job; rejects when it fails or the process dies. */
  job(argument: unknown): Promise<void>
  /** Resolves when it has found time to answer, or is dead. */
  ping(): Promise<void>
  signal(name: NodeJS.Signals): void
  /** SIGKILL; resolves when it is dead. */
  kill(): Promise<void>
  /** Kills it and closes its gateway. */
  close(): Promise<void>
}

/** How processes of one drill are started. */
export interface ProcessKind {
  /** The module with the drill, compiled. */
  readonly module: string
  /** The process's entry, compiled. */
  readonly entry: string
  readonly hosts: readonly string[]
  /** Connection strings whose host and port are replaced by the gateway's. */
  readonly databaseUrl: string
  readonly amqpUrl: string | undefined
  readonly env: Readonly<Record<string, string | undefined>>
}

const LOAD_MS = 60_000
const START_MS = 30_000
const OUTPUT_CHARS = 4_000

/** Starts a process; resolves at once, `start` waits until it has loaded. */
export async function spawnHandler(kind: ProcessKind): Promise<HandlerProcess> {
  const gateway = await openGateway()
  const args: ProcessArguments = {
    module: kind.module,
    wirePort: gateway.port,
    outgoingPort: gateway.outgoingPort,
    hosts: kind.hosts,
  }
  const databaseUrl = through(kind.databaseUrl, gateway.port)
  const amqpUrl = kind.amqpUrl === undefined ? '' : through(kind.amqpUrl, gateway.port)
  const child = fork(kind.entry, [JSON.stringify(args)], {
    execArgv: ['--enable-source-maps'],
    env: { ...kind.env, DATABASE_URL: databaseUrl, AMQP_URL: amqpUrl, DRILL: '1' },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  return new Held(child, gateway, databaseUrl, amqpUrl)
}

class Held implements HandlerProcess {
  readonly gateway: Gateway
  readonly pid: number
  readonly ended: Promise<void>
  readonly #child: ChildProcess
  readonly #databaseUrl: string
  readonly #amqpUrl: string
  readonly #loaded: Promise<void>
  #started: ((message: Extract<FromProcess, { kind: 'started' | 'failed' }>) => void) | undefined
  readonly #jobs = new Map<number, (error: string | undefined) => void>()
  #pings: (() => void)[] = []
  #calls = 0
  #output = ''
  #alive = true
  port = 0

  constructor(child: ChildProcess, gateway: Gateway, databaseUrl: string, amqpUrl: string) {
    this.#child = child
    this.gateway = gateway
    this.pid = child.pid ?? 0
    this.#databaseUrl = databaseUrl
    this.#amqpUrl = amqpUrl
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on('data', (chunk: Buffer) => {
        this.#output = `${this.#output}${chunk.toString()}`.slice(-OUTPUT_CHARS)
      })
    }
    let loaded: () => void = () => {}
    let failed: (error: Error) => void = () => {}
    this.#loaded = new Promise((resolve, reject) => {
      loaded = resolve
      failed = reject
    })
    this.#loaded.catch(() => {})
    child.on('message', (raw) => {
      const message = raw as FromProcess
      switch (message.kind) {
        case 'loaded':
          return loaded()
        case 'outgoing':
          return gateway.expect(message.localPort, message)
        case 'pong':
          return this.#answered()
        case 'done':
          return this.#jobs.get(message.call)?.(message.error)
        case 'failed':
          failed(new Error(message.message))
          return this.#started?.(message)
        case 'started':
          return this.#started?.(message)
      }
    })
    child.on('error', (error) => failed(error))
    this.ended = new Promise((resolve) => {
      child.once('exit', (code, signal) => {
        this.#alive = false
        const message = `the process ended (${signal ?? code})`
        failed(new Error(message))
        this.#started?.({ kind: 'failed', message })
        for (const done of this.#jobs.values()) done(message)
        this.#answered()
        resolve()
      })
    })
  }

  get alive(): boolean {
    return this.#alive
  }

  get output(): string {
    return this.#output
  }

  async start(route: Route, world: DrillWorld, serves: boolean): Promise<void> {
    this.gateway.lead(route)
    inTime(await bounded(this.#loaded, LOAD_MS), 'loading the drill file')
    const answer = new Promise<Extract<FromProcess, { kind: 'started' | 'failed' }>>((resolve) => {
      this.#started = resolve
    })
    const led: DrillWorld = { ...world, databaseUrl: this.#databaseUrl, amqpUrl: this.#amqpUrl }
    this.#send({ kind: 'start', world: led, serves })
    const started = inTime(await bounded(answer, START_MS), '`start`')
    if (started.kind === 'failed') throw new Error(`the handler did not start: ${started.message}`)
    this.port = started.port ?? 0
  }

  job(argument: unknown): Promise<void> {
    this.#calls += 1
    const call = this.#calls
    return new Promise((resolve, reject) => {
      this.#jobs.set(call, (error) => {
        this.#jobs.delete(call)
        if (error === undefined) resolve()
        else reject(new Error(error))
      })
      if (this.#alive) this.#send({ kind: 'job', call, job: argument })
      else this.#jobs.get(call)?.('the process is dead')
    })
  }

  ping(): Promise<void> {
    return new Promise((resolve) => {
      this.#pings.push(resolve)
      if (this.#alive) this.#send({ kind: 'ping' })
      else this.#answered()
    })
  }

  #answered(): void {
    for (const resolve of this.#pings.splice(0)) resolve()
  }

  signal(name: NodeJS.Signals): void {
    if (this.#alive) this.#child.kill(name)
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL')
    await this.ended
  }

  async close(): Promise<void> {
    await this.kill()
    await this.gateway.close()
  }

  #send(message: ToProcess): void {
    if (this.#child.connected) this.#child.send(message, () => {})
  }
}

function inTime<T>(result: Bounded<T>, what: string): T {
  if (result.kind === 'timeout') throw new Error(`${what} took too long`)
  return result.value
}

function through(url: string, port: number): string {
  const led = new URL(url)
  led.hostname = '127.0.0.1'
  led.port = String(port)
  return led.href
}

/** The process's entry: beside this file when it is built; compiled first when it runs from its sources. */
export async function processEntry(): Promise<{ readonly path: string; remove(): Promise<void> }> {
  if (!import.meta.url.endsWith('.ts')) {
    return { path: fileURLToPath(new URL('../../drill/process/child.js', import.meta.url)), remove: async () => {} }
  }
  const source = fileURLToPath(new URL('../../drill/process/child.ts', import.meta.url))
  const esbuild = await esbuildOf(source)
  if (esbuild === undefined) throw new Error('running from the sources needs tsx')
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-drill-'))
  const path = join(folder, 'child.mjs')
  await esbuild.build({
    entryPoints: [source],
    outfile: path,
    bundle: true,
    platform: 'node',
    format: 'esm',
    logLevel: 'silent',
  })
  return { path, remove: () => rm(folder, { recursive: true, force: true }) }
}
