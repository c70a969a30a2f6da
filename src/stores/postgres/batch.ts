/**
 * Batch: several of our statements as one message to the server, with one answer.
 *
 * A driver ends every statement with a Sync of its own, and each Sync has an answer of its own: a system call on the
 * server, a packet, a wake-up of this process. A batch has one Sync. The server stops at the first error and skips the
 * rest, so a COMMIT at the end is never reached behind a failed statement; the transaction is then open and failed.
 *
 * To the driver a batch is a query object of the user ("submittable", as a cursor is). A client that does not take
 * one gets the same statements as one simple-query string (./inline.ts). A statement of the user can travel behind
 * ours under the same Sync: ./led-query.ts.
 *
 * @module
 */

import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { encodeBatch, encodeQuery, type WireStatement } from './wire.ts'

/** Told once: the answers in order, or the first error (null = none). */
export type BatchEnd = (error: Error | null, results: readonly PgResult[]) => void

/** What batches need of one client. */
export interface BatchPort {
  readonly stream: Stream
  /** Text by name of what the server has prepared on this connection. */
  readonly prepared: Map<string, string>
  readonly Batch: new (port: BatchPort, statements: readonly PgStatement[], prepare: boolean, end: BatchEnd) => object
  /** The driver's class of queries. */
  readonly Query: object
}

interface Stream {
  cork(): void
  uncork(): void
  write(bytes: Uint8Array): boolean
  readonly writable: boolean
}

const ports = new WeakMap<object, BatchPort | null>()

/** How batches are written for this client; null when it is not made of what we know. */
export function batchPort(client: object): BatchPort | null {
  let port = ports.get(client)
  if (port === undefined) {
    port = findPort(client)
    ports.set(client, port)
  }
  return port
}

/**
 * Sends `statements` in one message. With `prepare`, statements that have a name are prepared at their first use on a
 * connection. Throws a TypeError, before anything is sent, for a value that cannot be sent.
 */
export function sendBatch(
  client: PgClient,
  port: BatchPort,
  statements: readonly PgStatement[],
  prepare: boolean,
  end: BatchEnd,
): void {
  const batch = new port.Batch(port, statements, prepare, end)
  ;(client as unknown as { query(batch: object): void }).query(batch)
}

function findPort(client: object): BatchPort | null {
  if (!('connection' in client) || typeof client.connection !== 'object' || client.connection === null) return null
  if (!('stream' in client.connection)) return null
  const { stream } = client.connection
  if (!isStream(stream)) return null
  const Query: unknown = 'Query' in client.constructor ? client.constructor.Query : undefined
  if (typeof Query !== 'function' || typeof Query.prototype !== 'object' || Query.prototype === null) return null
  return { stream, prepared: new Map(), Batch: batchClass(Query.prototype as object), Query }
}

function isStream(value: unknown): value is Stream {
  if (typeof value !== 'object' || value === null || !('writable' in value)) return false
  return ['cork', 'uncork', 'write'].every((name) => typeof Reflect.get(value, name) === 'function')
}

const classes = new WeakMap<object, BatchPort['Batch']>()

/**
 * The class of batches for one version of the driver. A pipelining client takes query objects of its own class only, so
 * ours stands in line behind it; its constructor, which makes a whole result, is not run.
 */
function batchClass(driverQuery: object): BatchPort['Batch'] {
  let made = classes.get(driverQuery)
  if (made !== undefined) return made
  made = class Batch {
    /** The driver may put its own in front, to bound the wait. */
    callback: (error: Error | null) => void
    readonly #port: BatchPort
    readonly #message: Buffer
    readonly #answers: Answers
    #end: BatchEnd | undefined

    constructor(port: BatchPort, statements: readonly PgStatement[], prepare: boolean, end: BatchEnd) {
      this.#port = port
      const wire = onWire(port, statements, prepare)
      const [only, ...others] = wire
      const plain = only !== undefined && others.length === 0 && only.name === '' && only.values.length === 0
      this.#message = plain ? encodeQuery(only.parse ?? '') : encodeBatch(wire)
      this.#answers = new Answers(port, statements, wire)
      this.#end = end
      this.callback = (error) => this.#settle(error)
    }

    submit(): null {
      if (this.#port.stream.writable) this.#port.stream.write(this.#message)
      return null
    }

    handleRowDescription(): void {}

    handleDataRow(message: DataRow): void {
      this.#answers.row(message)
    }

    handleCommandComplete(message: CommandComplete): void {
      this.#answers.completed(message)
    }

    handleError(error: Error): void {
      this.callback(error)
    }

    handleReadyForQuery(): void {
      this.callback(null)
    }

    handlePortalSuspended(): void {}

    handleEmptyQuery(): void {}

    #settle(error: Error | null): void {
      const end = this.#end
      this.#end = undefined
      end?.(error, this.#answers.results)
    }
  }
  Object.setPrototypeOf(made.prototype, driverQuery)
  classes.set(driverQuery, made)
  return made
}

/** Messages of the driver's protocol parser. */
export interface DataRow {
  readonly fields: readonly (string | null)[]
}
export interface CommandComplete {
  readonly text: string
}

const NO_VALUES: readonly unknown[] = []

/** The statements as they are encoded for one connection: parsed only where it does not know them. */
export function onWire(port: BatchPort, statements: readonly PgStatement[], prepare: boolean): WireStatement[] {
  return statements.map(({ name: given, text, values = NO_VALUES }) => {
    const name = prepare && given !== undefined ? given : ''
    return { name, parse: name !== '' && port.prepared.get(name) === text ? undefined : text, values }
  })
}

/** Answers to statements of ours, in the order in which they come in. */
export class Answers {
  readonly results: PgResult[] = []
  readonly #port: BatchPort
  readonly #statements: readonly PgStatement[]
  readonly #wire: readonly WireStatement[]
  #rows: Record<string, unknown>[] = []

  constructor(port: BatchPort, statements: readonly PgStatement[], wire: readonly WireStatement[]) {
    this.#port = port
    this.#statements = statements
    this.#wire = wire
  }

  /** Whether every statement was answered. */
  get complete(): boolean {
    return this.results.length === this.#statements.length
  }

  row(message: DataRow): void {
    const columns = this.#statements[this.results.length]?.columns ?? []
    const row: Record<string, unknown> = {}
    for (let index = 0; index < columns.length; index++) row[columns[index] as string] = message.fields[index]
    this.#rows.push(row)
  }

  completed(message: CommandComplete): void {
    const wire = this.#wire[this.results.length]
    if (wire !== undefined && wire.name !== '' && wire.parse !== undefined) {
      this.#port.prepared.set(wire.name, wire.parse)
    }
    this.results.push({ command: commandOf(message.text), rowCount: countOf(message.text), rows: this.#rows })
    this.#rows = []
  }
}

/** Tags are like `COMMIT`, `SELECT 1`, `INSERT 0 1`, `CREATE TABLE`. */
function commandOf(tag: string): string {
  const space = tag.indexOf(' ')
  return space === -1 ? tag : tag.slice(0, space)
}

function countOf(tag: string): number | null {
  const space = tag.lastIndexOf(' ')
  const count = space === -1 ? Number.NaN : Number(tag.slice(space + 1))
  return Number.isNaN(count) ? null : count
}
