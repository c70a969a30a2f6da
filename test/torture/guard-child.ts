/** Starts and commands the processes of ../processes/guard.ts. */
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { GuardAnswer, GuardCommand } from '../processes/guard.ts'

export interface GuardChild {
  readonly process: ChildProcess
  /** Resolves with all answers to the command: one for each caller and key. */
  ask(command: Omit<GuardCommand, 'n'>): Promise<readonly GuardAnswer[]>
  /** Sends a command whose answers come to `onAnswer`. */
  send(command: Omit<GuardCommand, 'n'>, onAnswer: (answer: GuardAnswer) => void): void
  /** Resolves when the process has gone, with how it ended and what it said on stderr. */
  readonly gone: Promise<{ readonly code: number | null; readonly signal: string | null; readonly stderr: string }>
  stop(): Promise<void>
}

const SCRIPT = fileURLToPath(new URL('../processes/guard.ts', import.meta.url))

/** Resolves when the process has a connection. */
export async function startGuardChild(url: string, env: Readonly<Record<string, string>> = {}): Promise<GuardChild> {
  const child = spawn(process.execPath, ['--import', 'tsx', SCRIPT], {
    env: { ...process.env, DATABASE_URL: url, ...env },
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
  const waiting = new Map<number, (answer: GuardAnswer) => void>()
  let commands = 0
  await new Promise<void>((resolve, reject) => {
    void gone.then(() => reject(new Error(`the child did not start: ${stderr}`)))
    createInterface({ input: child.stdout }).on('line', (line) => {
      if (line === 'ready') return resolve()
      const answer = JSON.parse(line) as GuardAnswer
      waiting.get(answer.n)?.(answer)
    })
  })
  const send = (command: Omit<GuardCommand, 'n'>, onAnswer: (answer: GuardAnswer) => void): void => {
    commands += 1
    waiting.set(commands, onAnswer)
    child.stdin.write(`${JSON.stringify({ ...command, n: commands })}\n`)
  }
  return {
    process: child,
    gone,
    send,
    ask(command) {
      const expected = command.keys.length * (command.callers ?? 1)
      return new Promise((resolve, reject) => {
        const answers: GuardAnswer[] = []
        void gone.then(({ code, signal }) => reject(new Error(`the child ended (${code ?? signal}): ${stderr}`)))
        send(command, (answer) => {
          answers.push(answer)
          if (answers.length === expected) resolve(answers)
        })
      })
    },
    async stop() {
      child.stdin.end()
      const timer = setTimeout(() => child.kill('SIGKILL'), 5_000)
      await gone
      clearTimeout(timer)
    },
  }
}
