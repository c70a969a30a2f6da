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
  readonly id: string
  /** Fingerprint of what it works on. */
  readonly payload: Uint8Array
  /** The next one whose id starts alike. */
  next: Running | undefined
  #waited: Promise<OperationRecord | undefined> | undefined
  #report: ((record: OperationRecord | undefined) => void) | undefined
  #over = false
  #record: OperationRecord | undefined

  constructor({ id, fingerprint }: Attempt) {
    this.id = id
    this.payload = fingerprint.value
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

/** Digits of an id that choose its place, and places. Ids are hashes, so they spread. */
const DIGITS = 3
const PLACES = 16 ** DIGITS

/**
 * By id, in places of our own instead of a Map: whenever a Map is tidied, the table that it leaves behind keeps what was
 * in it alive until the next full collection, and here everything comes and goes.
 */
export class InFlight {
  readonly #places: (Running | undefined)[] = Array.from({ length: PLACES })
  #waiters = 0

  /** The running first attempt of this process, if any. */
  get(id: string): Running | undefined {
    let running = this.#places[placeOf(id)]
    while (running !== undefined && running.id !== id) running = running.next
    return running
  }

  /** Registers this caller as the first, unless there is one already; returns how to report its end. */
  enter(attempt: Attempt): ((record: OperationRecord | undefined) => void) | undefined {
    if (this.get(attempt.id) !== undefined) return undefined
    const running = new Running(attempt)
    const place = placeOf(attempt.id)
    running.next = this.#places[place]
    this.#places[place] = running
    return (record) => {
      this.#leave(running)
      running.end(record)
    }
  }

  #leave(running: Running): void {
    const place = placeOf(running.id)
    let before = this.#places[place]
    if (before === running) this.#places[place] = running.next
    else {
      while (before !== undefined && before.next !== running) before = before.next
      if (before !== undefined) before.next = running.next
    }
    running.next = undefined
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

function placeOf(id: string): number {
  return Number.parseInt(id.slice(0, DIGITS), 16)
}
