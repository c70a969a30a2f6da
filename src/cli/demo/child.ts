/**
 * Child: real processes of the demo, and the one line at a time that they tell their parent.
 *
 * A child that is about to be killed writes its last line with a synchronous call, so that SIGKILL cannot swallow it.
 *
 * @module
 */

import { type ChildProcess, fork } from 'node:child_process'
import { writeSync } from 'node:fs'

/** What a child tells. */
export type ChildLine =
  | { readonly kind: 'ready' }
  /** The broker has confirmed this message; told before the relay can hear of it. */
  | { readonly kind: 'confirmed'; readonly messageId: string }
  /** What the consumer did with a delivery. */
  | { readonly kind: 'consumed'; readonly messageId: string; readonly result: string }
  | { readonly kind: 'failed'; readonly message: string }

/** File descriptor on which a child reports. */
const REPORT_FD = 3

/** Tells the parent, before anything else can happen. */
export function report(line: ChildLine): void {
  writeSync(REPORT_FD, `${JSON.stringify(line)}\n`)
}

/** Ends this process as a power cut would. */
export function dieNow(): void {
  process.kill(process.pid, 'SIGKILL')
}

export interface Child {
  readonly process: ChildProcess
  /** Everything told so far. */
  readonly lines: readonly ChildLine[]
  /** Resolves with the signal or exit code that ended it. */
  readonly ended: Promise<NodeJS.Signals | number | null>
  /** Ends it within a second or two, whatever it is doing. */
  stop(): Promise<void>
}

/** Starts `name` (a file beside this one, in the sources and in the built package) as a process of its own. */
export function startChild(name: string, settings: object): Child {
  const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js'
  const child = fork(new URL(`../../cli/demo/${name}.${extension}`, import.meta.url), [JSON.stringify(settings)], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'ipc'],
  })
  const lines: ChildLine[] = []
  let rest = ''
  const reports = child.stdio[REPORT_FD]
  reports?.on('data', (chunk: Buffer) => {
    const parts = `${rest}${chunk.toString('utf8')}`.split('\n')
    rest = parts.pop() ?? ''
    for (const part of parts) lines.push(JSON.parse(part) as ChildLine)
  })
  const ended = new Promise<NodeJS.Signals | number | null>((resolve) => {
    // `close` comes after the pipes are read to their end, so no line is missed.
    child.once('close', (code, signal) => resolve(signal ?? code))
  })
  return {
    process: child,
    lines,
    ended,
    async stop() {
      child.kill('SIGKILL')
      await ended
    },
  }
}
