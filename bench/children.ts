/**
 * Children: processes of ./child.ts, started and always ended.
 *
 * @module
 */

import { type ChildProcess, fork } from 'node:child_process'
import { once as event } from 'node:events'
import { fileURLToPath } from 'node:url'

export interface Child {
  /** Ends it in order; resolves with the most memory it has held, MiB. */
  stop(): Promise<number>
  kill(): void
}

const READY_MS = 60_000

export async function startChild(...args: readonly string[]): Promise<Child> {
  const child = fork(fileURLToPath(new URL('child.ts', import.meta.url)), args, {
    execArgv: ['--import', 'tsx'],
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  await said(child, 'ready')
  return {
    async stop() {
      child.send('stop')
      return (await said(child, 'stopped')).peakMiB ?? 0
    },
    kill: () => child.kill('SIGKILL'),
  }
}

interface Said {
  readonly kind: string
  readonly peakMiB?: number
}

async function said(child: ChildProcess, kind: string): Promise<Said> {
  const signal = AbortSignal.timeout(READY_MS)
  const exited = event(child, 'exit', { signal }).then(() => {
    throw new Error(`a child ended before it was ${kind}`)
  })
  const [message]: Said[] = await Promise.race([event(child, 'message', { signal }), exited])
  exited.catch(() => {})
  if (message?.kind !== kind) throw new Error(`a child was not ${kind}`)
  return message
}
