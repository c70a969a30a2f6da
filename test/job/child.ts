/** Starts and commands the processes of ../processes/job.ts. */
import { type ChildProcess, spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { JobAnswer, JobCommand } from '../processes/job.ts'
import type { JobSetup } from './setup.ts'

export interface JobChild {
  readonly process: ChildProcess
  /** Resolves with the first answer to the command. */
  ask(command: Omit<JobCommand, 'n'>): Promise<JobAnswer>
  /** Sends a command; every answer to it comes to `onAnswer`. */
  send(command: Omit<JobCommand, 'n'>, onAnswer: (answer: JobAnswer) => void): void
  /** Resolves when the process has gone. */
  readonly gone: Promise<{ readonly code: number | null; readonly signal: string | null; readonly stderr: string }>
  stop(): Promise<void>
}

const SCRIPT = fileURLToPath(new URL('../processes/job.ts', import.meta.url))

/** Resolves when the process has a connection. */
export async function startJobChild(
  { url, at }: Pick<JobSetup, 'url' | 'at'>,
  env: Readonly<Record<string, string>> = {},
): Promise<JobChild> {
  const child = spawn(process.execPath, ['--import', 'tsx', SCRIPT], {
    env: { ...process.env, DATABASE_URL: url, PROVIDER: JSON.stringify(at), ...env },
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  let stderr = ''
  child.stderr.on('data', (chunk: Buffer) => {
    stderr = `${stderr}${chunk.toString()}`.slice(-4_000)
  })
  child.stdin.on('error', () => {})
  const gone = new Promise<{ code: number | null; signal: string | null; stderr: string }>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal, stderr }))
  })
  const waiting = new Map<number, (answer: JobAnswer) => void>()
  let commands = 0
  await new Promise<void>((resolve, reject) => {
    void gone.then(() => reject(new Error(`the child did not start: ${stderr}`)))
    createInterface({ input: child.stdout }).on('line', (line) => {
      if (line === 'ready') return resolve()
      if (line.startsWith('step ')) return
      const answer = JSON.parse(line) as JobAnswer
      waiting.get(answer.n)?.(answer)
    })
  })
  const send: JobChild['send'] = (command, onAnswer) => {
    commands += 1
    waiting.set(commands, onAnswer)
    child.stdin.write(`${JSON.stringify({ ...command, n: commands })}\n`)
  }
  return {
    process: child,
    gone,
    send,
    ask: (command) =>
      new Promise((resolve, reject) => {
        void gone.then(({ code, signal }) => reject(new Error(`the child ended (${code ?? signal}): ${stderr}`)))
        send(command, resolve)
      }),
    async stop() {
      child.stdin.end()
      const timer = setTimeout(() => child.kill('SIGKILL'), 5_000)
      await gone
      clearTimeout(timer)
    },
  }
}

/** State letter of the process, as the kernel tells it: T = stopped. */
export async function stateOf({ process: child }: JobChild): Promise<string | undefined> {
  const stat = await readFile(`/proc/${child.pid}/stat`, 'utf8')
  return /\) (\w)/.exec(stat)?.[1]
}
