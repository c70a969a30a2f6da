/**
 * A private headless Chromium (Debian's package), driven by its DevTools protocol over a pipe. Its profile is a folder
 * that outlives it, so that a browser can be killed and started again where it was.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'

export interface Chromium {
  /** Opens a tab and waits until the page has loaded. */
  open(url: string): Promise<Page>
  /** SIGKILL to the browser with all its processes. */
  kill(): Promise<void>
}

export interface Page {
  /** Runs an expression in the page and returns its value, awaited, as JSON can tell it. */
  evaluate(expression: string): Promise<unknown>
  /** Starts an expression and does not wait for it. */
  start(expression: string): Promise<void>
  /** Kills the process behind the page, as a crash does. */
  crash(): Promise<void>
  close(): Promise<void>
}

const BINARY = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) =>
  existsSync(path),
)
const ANSWER_MS = 25_000

/** Why Chromium cannot be started here, or undefined when it can. */
export const chromiumMissing: string | undefined =
  BINARY === undefined ? 'chromium is not installed (Debian: apt-get install chromium)' : undefined
if (chromiumMissing !== undefined) console.warn(`\n*** SKIPPED: tests that need Chromium. ${chromiumMissing} ***\n`)

interface Message {
  readonly id?: number
  readonly method?: string
  readonly sessionId?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly result?: Readonly<Record<string, unknown>>
  readonly error?: { readonly message: string }
}

/** @param profile - Folder with the browser's storages. */
export async function startChromium(profile: string): Promise<Chromium> {
  if (BINARY === undefined) throw new Error(chromiumMissing)
  const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run']
  const child = spawn(BINARY, [...flags, '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank'], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'],
    // A group of its own, so that its helpers can be killed with it.
    detached: true,
  })
  const protocol = connect(child)
  return {
    async open(url) {
      const { targetId } = await protocol.call('Target.createTarget', { url: 'about:blank' })
      const { sessionId } = await protocol.call('Target.attachToTarget', { targetId, flatten: true })
      const session = String(sessionId)
      await protocol.call('Page.enable', {}, session)
      const loaded = protocol.event('Page.loadEventFired', session)
      await protocol.call('Page.navigate', { url }, session)
      await loaded
      return pageOf(protocol, session, String(targetId))
    },
    async kill() {
      if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return
      const gone = once(child, 'exit')
      process.kill(-child.pid, 'SIGKILL')
      await gone
    },
  }
}

function pageOf(protocol: Protocol, session: string, targetId: string): Page {
  return {
    async evaluate(expression) {
      const options = { expression, awaitPromise: true, returnByValue: true, userGesture: true }
      const { result, exceptionDetails } = await protocol.call('Runtime.evaluate', options, session)
      if (exceptionDetails !== undefined) throw new Error(`in the page: ${JSON.stringify(exceptionDetails)}`)
      return (result as { readonly value?: unknown }).value
    },
    async start(expression) {
      await protocol.call('Runtime.evaluate', { expression: `void (${expression})` }, session)
    },
    async crash() {
      const crashed = protocol.event('Inspector.targetCrashed', session)
      protocol.call('Page.crash', {}, session).catch(() => undefined)
      await crashed
      await protocol.call('Target.closeTarget', { targetId })
    },
    async close() {
      await protocol.call('Target.closeTarget', { targetId })
    },
  }
}

interface Protocol {
  call(method: string, params: object, sessionId?: string): Promise<Readonly<Record<string, unknown>>>
  event(method: string, sessionId: string): Promise<void>
}

/** Messages are JSON with a zero byte behind each. */
function connect(child: ChildProcess): Protocol {
  const output = child.stdio[3] as Writable
  const input = child.stdio[4] as Readable
  const answers = new Map<number, (message: Message) => void>()
  const events = new Set<(message: Message) => void>()
  let last = 0
  let rest = Buffer.alloc(0)
  input.on('data', (chunk: Buffer) => {
    rest = Buffer.concat([rest, chunk])
    for (let end = rest.indexOf(0); end >= 0; end = rest.indexOf(0)) {
      const message = JSON.parse(rest.subarray(0, end).toString()) as Message
      rest = rest.subarray(end + 1)
      if (message.id === undefined) for (const see of events) see(message)
      else answers.get(message.id)?.(message)
    }
  })
  // A killed browser breaks the pipe; whoever waits is told by its exit.
  output.on('error', () => undefined)
  input.on('error', () => undefined)

  const bounded = <T>(
    what: string,
    begin: (resolve: (value: T) => void, reject: (error: Error) => void) => () => void,
  ) =>
    new Promise<T>((resolve, reject) => {
      const exited = (): void => fail(new Error(`chromium ended during ${what}`))
      const timer = setTimeout(() => fail(new Error(`chromium did not answer ${what} in ${ANSWER_MS} ms`)), ANSWER_MS)
      const finish = (): void => {
        clearTimeout(timer)
        child.off('exit', exited)
        end()
      }
      const fail = (error: Error): void => {
        finish()
        reject(error)
      }
      child.once('exit', exited)
      const end = begin((value) => {
        finish()
        resolve(value)
      }, fail)
    })

  return {
    call: (method, params, sessionId) =>
      bounded(method, (resolve, reject) => {
        const id = (last += 1)
        answers.set(id, ({ result, error }) => {
          if (error === undefined) resolve(result ?? {})
          else reject(new Error(`${method}: ${error.message}`))
        })
        output.write(`${JSON.stringify({ id, method, params, ...(sessionId === undefined ? {} : { sessionId }) })}\0`)
        return () => answers.delete(id)
      }),
    event: (method, sessionId) =>
      bounded<void>(method, (resolve) => {
        const see = (message: Message): void => {
          if (message.method === method && message.sessionId === sessionId) resolve()
        }
        events.add(see)
        return () => events.delete(see)
      }),
  }
}
