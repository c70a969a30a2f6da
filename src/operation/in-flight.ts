/**
 * In flight: callers of one process that wait for the same operation share a promise, not a connection.
 *
 * The map only saves polling. Whatever it says, the store decides (I14): a waiter that finds nothing tries the gate.
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import type { Attempt, OperationRecord } from '../store/operation.ts'

/** Most callers of this process that wait for operations in progress. */
export const WAITERS_MAX = 10_000

/** A first attempt of this process. */
export class Running {
  /** Fingerprint of what it works on. */
  readonly payload: Uint8Array
  #waited: Promise<OperationRecord | undefined> | undefined
  #report: ((record: OperationRecord | undefined) => void) | undefined
  #over = false
  #record: OperationRecord | undefined

  constructor(payload: Uint8Array) {
    this.payload = payload
  }

  /** Resolves with the record it stored or met; never rejects. Made when somebody waits, which is rare. */
  get ended(): Promise<OperationRecord | undefined> {
    this.#waited ??= new Promise((resolve) => {
      if (this.#over) resolve(this.#record)
      else this.#report = resolve
    })
    return this.#waited
  }

  end(record: OperationRecord | undefined): void {
    this.#over = true
    this.#record = record
    this.#report?.(record)
  }
}

export class InFlight {
  readonly #running: Map<string, Running> = new Map()
  #waiters = 0

  /** The running first attempt of this process, if any. */
  get(id: string): Running | undefined {
    return this.#running.get(id)
  }

  /** Registers this caller as the first, unless there is one already; returns how to report its end. */
  enter({ id, fingerprint }: Attempt): ((record: OperationRecord | undefined) => void) | undefined {
    if (this.#running.has(id)) return undefined
    const running = new Running(fingerprint.value)
    this.#running.set(id, running)
    return (record) => {
      this.#running.delete(id)
      running.end(record)
    }
  }

  /** Counts a waiter; call the result when it stops waiting. */
  wait(): () => void {
    if (this.#waiters >= WAITERS_MAX) {
      throw new OnceError('TOO_BUSY', `${WAITERS_MAX} callers already wait for operations in progress`)
    }
    this.#waiters += 1
    return () => {
      this.#waiters -= 1
    }
  }
}
