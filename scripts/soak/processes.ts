/** Processes: kept running, killed and stopped. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pause } from '../../src/shared/waiting.ts'
import type { PostgresService } from '../../src/testing/services/postgres.ts'

/** Longer than any lease of the soak. */
const STOPPED_MS = 2_500
/** On a busy machine killed backends take their time to go. */
const RESTART_MS = 60_000

/** One place for a process; whoever is killed there gets a successor. */
export class Slot {
  readonly name: string
  readonly #script: string
  readonly #env: Readonly<Record<string, string>>
  #child: ChildProcess | undefined
  #ended = false
  stopped = false

  constructor(name: string, script: string, env: Readonly<Record<string, string>>) {
    this.name = name
    this.#script = script
    this.#env = env
    this.#start()
  }

  /** Whether it can be killed. */
  get isUp(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null
  }

  kill(): void {
    this.#child?.kill('SIGKILL')
  }

  /** Stops it for longer than its leases, and lets it go on beside its successors. */
  async freeze(): Promise<void> {
    const child = this.#child
    this.stopped = true
    child?.kill('SIGSTOP')
    await pause(STOPPED_MS)
    child?.kill('SIGCONT')
    this.stopped = false
  }

  end(): void {
    this.#ended = true
    this.kill()
  }

  #start(): void {
    const child = spawn(process.execPath, ['--enable-source-maps', this.#script], {
      env: { ...process.env, ...this.#env },
      stdio: ['pipe', 'ignore', 'inherit'],
    })
    this.#child = child
    child.on('error', () => {})
    child.once('exit', () => {
      if (!this.#ended) setTimeout(() => this.#ended || this.#start(), 100)
    })
  }
}

/** Kills the server as a power cut would (SIGKILL of the postmaster and its backends), and starts it again. */
export async function killServer(server: PostgresService): Promise<void> {
  const postmaster = postmasterOf(server)
  if (postmaster !== undefined) for (const pid of [postmaster, ...childrenOf(postmaster)]) signal(pid)
  await started(server)
}

/** Starts the server again if it has ended: it gives up when what recovers it is killed. */
export async function revive(server: PostgresService): Promise<void> {
  const postmaster = postmasterOf(server)
  if (postmaster === undefined || !isAlive(postmaster)) await started(server)
}

async function started(server: PostgresService): Promise<void> {
  const giveUpAt = performance.now() + RESTART_MS
  for (;;) {
    try {
      return await server.start()
    } catch (error) {
      // Shared memory of backends that are about to end is still in use.
      if (performance.now() > giveUpAt) throw error
      await pause(200)
    }
  }
}

/** Kills one backend; the server then ends all connections and recovers. */
export function killBackend(server: PostgresService, random: () => number): void {
  const postmaster = postmasterOf(server)
  const children = postmaster === undefined ? [] : childrenOf(postmaster)
  signal(children[Math.floor(random() * children.length)] ?? 0)
}

function postmasterOf(server: PostgresService): number | undefined {
  try {
    const [pid] = readFileSync(join(server.dataDir, 'postmaster.pid'), 'utf8').split('\n')
    return Number(pid) || undefined
  } catch {
    return undefined
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

function childrenOf(pid: number): readonly number[] {
  try {
    return execFileSync('ps', ['-o', 'pid=', '--ppid', String(pid)], { encoding: 'utf8' })
      .split('\n')
      .map(Number)
      .filter(Boolean)
  } catch {
    return []
  }
}

function signal(pid: number): void {
  if (pid <= 1) return
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // It was gone already.
  }
}
