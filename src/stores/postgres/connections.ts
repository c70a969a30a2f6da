/**
 * Connections: how our transactions take and give back clients of the user's pool.
 *
 * At most `limit` of our transactions hold a client at once, so that the pool keeps room for the application's own
 * queries; the others wait in order, without a connection, and no longer than `acquireTimeoutMs`. No path of ours
 * asks for a second client while it holds one (B107).
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import { classify, nameOf } from './classify.ts'
import type { PgClient, PgPool } from './handle.ts'

interface Waiter {
  admit(): void
}

export interface ConnectionLimits {
  /** Most of our transactions at once. */
  readonly limit: number
  /** Longest wait for a client, behind our other transactions and at the pool together, milliseconds. */
  readonly acquireTimeoutMs: number
  /** Most callers waiting for a client. */
  readonly waitersMax: number
}

/** Bounded access to one pool. */
export class Connections<C extends PgClient> {
  readonly #pool: { connect(): Promise<C> }
  readonly #limits: ConnectionLimits
  /** Oldest first. A list: the tables that a set leaves behind when it grows or is tidied keep what was in them alive. */
  readonly #waiting: Waiter[] = []
  #held = 0

  constructor(pool: PgPool, limits: ConnectionLimits) {
    this.#pool = pool as { connect(): Promise<C> }
    this.#limits = limits
  }

  /** Takes a client. TOO_BUSY: our own limit; STORE_UNAVAILABLE: the pool gave none. */
  acquire(): Promise<C> {
    const { limit, acquireTimeoutMs } = this.#limits
    if (this.#held < limit) {
      this.#held += 1
      return this.#connect(acquireTimeoutMs)
    }
    // One bound for both waits: what was spent on the first is gone for the second.
    const since = performance.now()
    return this.#admission().then(() => this.#connect(Math.max(1, acquireTimeoutMs - (performance.now() - since))))
  }

  /** Gives the client back; with `broken` it is destroyed, so that nobody inherits its state (B105). */
  release(client: C, broken?: Error): void {
    try {
      if (broken !== undefined) cutSocket(client)
      client.release(broken)
    } finally {
      this.#leave()
    }
  }

  /**
   * Runs `work` on a client and gives it back. After `boundMs` without an end the client is destroyed and the call
   * fails; any error that leaves the client's state uncertain destroys it too.
   *
   * @param transactional - `work` opens a transaction: any error destroys the client.
   */
  use<T>(boundMs: number, work: (client: C) => Promise<T>, transactional = false): Promise<T> {
    return this.acquire().then(
      (client) =>
        new Promise((resolve, reject) => {
          let given = false
          const give = (broken?: Error) => {
            if (given) return
            given = true
            clearTimeout(timer)
            this.release(client, broken)
          }
          const fail = (error: Error) => {
            const uncertain = transactional || classify(error) === 'connection'
            give(uncertain ? new Error('the statement failed', { cause: error }) : undefined)
            reject(error)
          }
          const timer = setTimeout(() => {
            const error = new Error(`no answer within ${boundMs} ms`)
            give(error)
            reject(error)
          }, boundMs)
          try {
            work(client).then((result) => {
              give()
              resolve(result)
            }, fail)
          } catch (error) {
            fail(error as Error)
          }
        }),
    )
  }

  /** The place is taken; it is left again when the pool gives no client. */
  #connect(boundMs: number): Promise<C> {
    return new Promise((resolve, reject) => {
      let waiting = true
      const fail = (error: OnceError) => {
        if (!waiting) return
        waiting = false
        clearTimeout(timer)
        this.#leave()
        reject(error)
      }
      const timer = setTimeout(() => {
        const { acquireTimeoutMs } = this.#limits
        fail(new OnceError('STORE_UNAVAILABLE', `the pool gave no connection within ${acquireTimeoutMs} ms`))
      }, boundMs)
      const refused = (cause: unknown) => {
        const what = `no database connection could be opened (${nameOf(cause)})`
        fail(new OnceError('STORE_UNAVAILABLE', what, { cause }))
      }
      try {
        this.#pool.connect().then((client) => {
          if (!waiting) {
            client.release()
            return
          }
          waiting = false
          clearTimeout(timer)
          listenForErrors(client)
          resolve(client)
        }, refused)
      } catch (error) {
        refused(error)
      }
    })
  }

  #admission(): Promise<void> {
    const { waitersMax, acquireTimeoutMs, limit } = this.#limits
    if (this.#waiting.length >= waitersMax) {
      return Promise.reject(
        new OnceError('TOO_BUSY', `${waitersMax} callers already wait for a connection (waitersMax)`),
      )
    }
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        admit: () => {
          clearTimeout(timer)
          resolve()
        },
      }
      const timer = setTimeout(() => {
        // All wait equally long, so it is the first or close to it.
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1)
        reject(
          new OnceError(
            'TOO_BUSY',
            `all ${limit} transactions (transactionsMax) were busy for ${acquireTimeoutMs} ms (acquireTimeoutMs)`,
          ),
        )
      }, acquireTimeoutMs)
      this.#waiting.push(waiter)
    })
  }

  #leave(): void {
    const next = this.#waiting.shift()
    if (next === undefined) this.#held -= 1
    else next.admit()
  }
}

/**
 * A client whose answers are awaited ends politely only after they have come (node-postgres in pipeline mode), which
 * may be never, and the server would keep its transaction and our locks as long. So the socket goes first.
 */
function cutSocket(client: object): void {
  const connection = memberOf(client, 'connection')
  const stream = memberOf(connection, 'stream')
  const destroy = memberOf(stream, 'destroy')
  if (typeof destroy === 'function') Reflect.apply(destroy, stream, [])
}

function memberOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (Reflect.get(value, name) as unknown) : undefined
}

const listening = new WeakSet<object>()

/**
 * A client that loses its connection between two of our statements emits `error`, which would end the process when
 * nobody listens. The statement that meets the loss reports it; the event needs no second report. We listen from the
 * first use of a client to its end: to come and go with each use costs more than the rest of taking a client.
 */
function listenForErrors(client: object): void {
  if (listening.has(client)) return
  listening.add(client)
  const on = memberOf(client, 'on')
  if (typeof on === 'function') Reflect.apply(on, client, ['error', ignore])
}

function ignore(): void {}
