/**
 * Engine: what every flow of one `createOnce` shares.
 *
 * @module
 */

import { AsyncLocalStorage } from 'node:async_hooks'
import type { FingerprintSecrets } from '../fingerprint/stored.ts'
import type { OutboxLimits } from '../outbox/message.ts'
import { OnceError } from '../shared/errors.ts'
import type { Store } from '../store/store.ts'
import type { InFlight } from './in-flight.ts'

export interface Engine<Tx> {
  readonly store: Store<Tx>
  readonly secrets: FingerprintSecrets | undefined
  /** Largest encoded outcome, bytes. */
  readonly outcomeBytesMax: number
  readonly outboxLimits: OutboxLimits
  readonly inFlight: InFlight
}

const engines = new WeakMap<object, Engine<unknown>>()

/** Remembers the engine behind an object that the application holds. */
export function lendEngine<Tx>(once: object, engine: Engine<Tx>): void {
  engines.set(once, engine)
}

/**
 * The engine behind what `createOnce` made.
 *
 * @throws {TypeError} for anything else.
 */
export function engineOf<Tx>(where: string, once: object): Engine<Tx> {
  const engine = typeof once === 'object' && once !== null ? engines.get(once) : undefined
  if (engine === undefined) throw new TypeError(`${where} takes the object that createOnce made`)
  return engine as Engine<Tx>
}

/** The work that runs in this async context; `open` ends with it. */
interface RunningWork {
  open: boolean
  /** The operation whose work it is; undefined for a message. */
  readonly id: string | undefined
}

const running = new AsyncLocalStorage<RunningWork>()

/**
 * Refuses an operation started inside the work of another one: it would wait for a second connection while the first
 * is held, and commit on its own. (B107)
 */
export function refuseNesting(): void {
  if (running.getStore()?.open === true) {
    throw new OnceError('NESTED_OPERATION', 'an operation was started inside the work of another one')
  }
}

/**
 * Refuses a claim, inside the work of an operation, of that same operation: its outcome would be stored twice, and the
 * second time would undo the first and everything with it. (B107)
 */
export function refuseOwnClaim(id: string): void {
  const work = running.getStore()
  if (work?.open === true && work.id === id) {
    throw new OnceError(
      'NESTED_OPERATION',
      'the work of an operation claims that operation; return its outcome instead',
    )
  }
}

/**
 * Runs a work so that operations started inside it are refused until it has ended. It answers by callbacks: its callers
 * make promises of their own, and each one is felt on the hot path.
 *
 * @param id - Of the operation, when it is one.
 */
export function startWork<T>(
  work: () => Promise<T> | T,
  succeed: (value: T) => void,
  failed: (error: Error) => void,
  id?: string,
): void {
  const own: RunningWork = { open: true, id }
  const fail = (error: unknown) => {
    own.open = false
    failed(error as Error)
  }
  try {
    Promise.resolve(running.run(own, work)).then((value) => {
      own.open = false
      succeed(value)
    }, fail)
  } catch (error) {
    fail(error)
  }
}
