/**
 * One sender for an operation at a time, among tabs and processes that share a storage.
 *
 * It saves requests, it is not what makes them safe: two senders use the same key and the same bytes. So a turn that
 * is lost in the middle, or two at once for a moment, cost a request and nothing else.
 *
 * Web Locks end with their page, however it ends. Where there are none, a turn has an end that is set before each step
 * and lies behind it; whoever dies is in the way until then, and no longer.
 *
 * @module
 */

import type { Clock } from './clock.ts'
import { newKey } from './key.ts'
import type { OperationStorage } from './storage.ts'

export interface HeldTurn {
  /** Keeps the turn at least until then, milliseconds since 1970. */
  extend(untilAt: number): Promise<void>
  release(): Promise<void>
}

export interface TurnOptions {
  readonly storage: OperationStorage
  readonly clock: Clock
  /** `wait` for whoever has it, up to `deadlineAt`; `try` only sees whether it is in living hands. */
  readonly patience: 'wait' | 'try'
  readonly deadlineAt: number
  /** How long a first step may take. */
  readonly stepMs: number
  readonly signal: AbortSignal | undefined
}

/** Steps end a little after their time. */
const SLACK_MS = 5_000
const POLL_MS = 250

/** undefined when somebody else has the turn. */
export function obtainTurn(id: string, options: TurnOptions): Promise<HeldTurn | undefined> {
  const locks = options.storage.sharedBy === 'origin' ? webLocks() : undefined
  return locks === undefined ? byStorage(id, options) : byWebLock(locks, id, options)
}

/** The part of `navigator.locks` that is used. */
interface WebLocks {
  request(
    name: string,
    options: { readonly ifAvailable?: boolean; readonly signal?: AbortSignal },
    held: (lock: unknown) => Promise<void>,
  ): Promise<void>
}

function webLocks(): WebLocks | undefined {
  const { navigator } = globalThis as { readonly navigator?: { readonly locks?: WebLocks } }
  return navigator?.locks
}

function byWebLock(locks: WebLocks, id: string, options: TurnOptions): Promise<HeldTurn | undefined> {
  const name = `effectively-once:${options.storage.name}:${id}`
  const { patience, clock, deadlineAt, signal } = options
  return new Promise((resolve, reject) => {
    const waiting = new AbortController()
    const stop = (): void => waiting.abort()
    const held = (lock: unknown): Promise<void> => {
      stop()
      signal?.removeEventListener('abort', stop)
      if (lock === null) {
        resolve(undefined)
        return Promise.resolve()
      }
      return new Promise((release) => {
        resolve({
          extend: () => Promise.resolve(),
          release: () => {
            release()
            return Promise.resolve()
          },
        })
      })
    }
    if (patience === 'wait') {
      signal?.addEventListener('abort', stop, { once: true })
      if (signal?.aborted === true) stop()
      void clock.sleep(Math.max(0, deadlineAt - clock.now()), waiting.signal).then(stop)
    }
    const how = patience === 'try' ? { ifAvailable: true } : { signal: waiting.signal }
    locks.request(name, how, held).catch((error: unknown) => {
      signal?.removeEventListener('abort', stop)
      if (waiting.signal.aborted) resolve(undefined)
      else reject(error instanceof Error ? error : new Error(String(error)))
    })
  })
}

async function byStorage(id: string, options: TurnOptions): Promise<HeldTurn | undefined> {
  const { storage, clock, patience, deadlineAt, stepMs, signal } = options
  const owner = newKey()
  const take = (untilAt: number) => storage.takeTurn(id, { owner, untilAt: Math.ceil(untilAt + SLACK_MS) }, clock.now())
  let first: string | undefined
  for (;;) {
    const other = await take(clock.now() + stepMs)
    if (other === undefined) break
    const now = clock.now()
    // A page that died left its turn behind; one that lives takes another or prolongs it.
    if (patience === 'try') {
      const mayBeDead = storage.sharedBy === 'origin' && first === undefined && other.untilAt < deadlineAt
      if (!mayBeDead || signal?.aborted === true) return undefined
      first = other.owner
      await clock.sleep(other.untilAt - now, signal)
      continue
    }
    if (now >= deadlineAt || signal?.aborted === true) return undefined
    await clock.sleep(Math.max(1, Math.min(POLL_MS, other.untilAt - now, deadlineAt - now)), signal)
  }
  return {
    // Without it another sender may come in between, which is harmless.
    extend: (untilAt) =>
      take(untilAt + stepMs).then(
        () => undefined,
        () => undefined,
      ),
    release: () => storage.endTurn(id, owner).catch(() => undefined),
  }
}
