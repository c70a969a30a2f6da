/** Processes: kept running, killed and stopped. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pause } from '../../src/shared/waiting.ts'
import type { PostgresService } from '../../src/testing/services/postgres.ts'

/** Longer than any lease of the soak. */
const STOPPED_MS = 2_500

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
  const postmaster = readFileSync(join(server.dataDir, 'postmaster.pid'), 'utf8').split('\n')[0] ?? ''
  for (const pid of [Number(postmaster), ...childrenOf(postmaster)]) signal(pid)
  for (let tries = 1; ; tries += 1) {
    try {
      return await server.start()
    } catch (error) {
      // Shared memory of backends that are about to end is still in use.
      if (tries === 10) throw error
      await pause(200)
    }
  }
}

/** Kills one backend; the server then ends all connections and recovers. */
export function killBackend(server: PostgresService, random: () => number): void {
  const postmaster = readFileSync(join(server.dataDir, 'postmaster.pid'), 'utf8').split('\n')[0] ?? ''
  const children = childrenOf(postmaster)
  signal(children[Math.floor(random() * children.length)] ?? 0)
}

function childrenOf(pid: string): readonly number[] {
  try {
    return execFileSync('ps', ['-o', 'pid=', '--ppid', pid], { encoding: 'utf8' })
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
