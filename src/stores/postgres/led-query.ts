/**
 * Led query: a statement of the user with statements of ours in front of it, under ONE Sync.
 *
 * When one of ours fails, the server skips everything up to the Sync, and that includes the user's statement: it is
 * never executed, not even outside a transaction. There is one answer to wait for instead of three.
 *
 * To the driver it is its own query with a longer message: the class extends the driver's, writes our part where the
 * driver starts to write its own, and keeps the answers to our part. Only statements with values are led: the driver
 * sends them with the extended protocol, where the simple one would skip its own end too.
 *
 * A tool that wraps the driver's `query` (tracing) may hand on a copy of what it is given, and a copy has no lead: the
 * statement would run alone, outside of any transaction. So the values are put in when the driver takes the query
 * itself. A copy is refused by the server for its missing parameters, and the caller hears that nothing was led.
 *
 * @module
 */

import { Answers, type BatchEnd, type BatchPort, type CommandComplete, type DataRow, onWire } from './batch.ts'
import { sqlState } from './classify.ts'
import type { PgClient, PgStatement } from './handle.ts'
import { encodeBatch, encodeLed, isPlainValue, type WireStatement } from './wire.ts'

/** What we use of the driver's query. */
interface DriverQuery {
  name?: string | undefined
  text?: unknown
  values?: unknown
  /** Rows for each answer: such a query sends no Sync of its own. */
  readonly rows?: unknown
  /** Of the parameters, which the server finds out by itself. */
  readonly types?: unknown
  readonly binary?: unknown
  readonly portal?: unknown
  callback?: ((error: Error | null, result: unknown) => void) | undefined
  /** The driver reads it from what it is given to send. */
  query_timeout?: unknown
  submit(connection: DriverConnection): unknown
  prepare(connection: DriverConnection): void
  handleDataRow(message: DataRow): void
  handleCommandComplete(message: CommandComplete, connection: DriverConnection): void
  handleError(error: Error, connection: DriverConnection): void
}

/** Where the driver keeps what is prepared, or was sent to be, on a connection. */
interface DriverConnection {
  readonly parsedStatements?: Record<string, unknown>
  readonly submittedNamedStatements?: Record<string, unknown>
}

type DriverQueryClass = new (...args: readonly unknown[]) => DriverQuery
type LedQueryClass = new (args: readonly unknown[]) => DriverQuery & LedMembers

interface LedMembers {
  /** Whether the driver has taken this query, and not a copy of it. */
  readonly taken: boolean
  lead(lead: Lead): void
}

/** Statements of ours that go in front. */
export interface Lead {
  readonly port: BatchPort
  readonly statements: readonly PgStatement[]
  readonly prepare: boolean
  /** Told once how ours ended; before the user's statement is told. */
  readonly end: BatchEnd
}

/**
 * Sends the statement that the user gave to `query` (`args`) with the lead in front. Returns undefined, and has sent
 * nothing, when this statement or this driver cannot be led; else what `query` of the driver returns.
 *
 * @param alone - Told instead of an answer when nothing was led after all; answers in the style of `args`.
 */
export function sendLed(
  client: PgClient,
  lead: Lead,
  args: readonly unknown[],
  alone: () => unknown,
): { readonly answer: unknown } | undefined {
  const LedQuery = ledQueryClass(lead.port.Query)
  const [statement] = args
  if (LedQuery === null || statement === undefined || statement === null || isSubmittable(statement)) return undefined
  const run = Reflect.get(client, 'query') as object
  if (copying.has(run)) return undefined
  const query = new LedQuery(args)
  if (!isLeadable(query, client)) return undefined
  query.lead(lead)
  if (typeof statement === 'object' && 'query_timeout' in statement) query.query_timeout = statement.query_timeout
  const send = () => (client as unknown as { query(query: object): void }).query(query)
  const { callback } = query
  const wasCopied = (error: Error | null): boolean => {
    if (query.taken) return false
    if (error instanceof Error && sqlState(error) === undefined) {
      lead.end(error, [])
      return false
    }
    copying.add(run)
    return true
  }
  if (typeof callback === 'function') {
    query.callback = (error, result) => {
      if (wasCopied(error)) alone()
      else callback(error, result)
    }
    send()
    return { answer: undefined }
  }
  const answer = new Promise((resolve, reject) => {
    query.callback = (error, result) => {
      if (error === null || error === undefined) {
        resolve(result)
        return
      }
      if (wasCopied(error)) {
        resolve(alone())
        return
      }
      // As the driver does: the stack leads to the caller, not to the socket.
      Error.captureStackTrace(error)
      reject(error)
    }
    send()
  })
  return { answer }
}

/** Functions `query` that were seen to hand on copies. */
const copying = new WeakSet<object>()

/** What the driver would refuse is left to it, and so is what it sends without an end. */
function isLeadable(query: DriverQuery, client: PgClient): boolean {
  const { text, values, rows, name, callback } = query
  if (typeof text !== 'string' || !Array.isArray(values) || values.length === 0 || Boolean(rows)) return false
  if (callback !== undefined && callback !== null && typeof callback !== 'function') return false
  return name === undefined || isFree((client as unknown as { connection: DriverConnection }).connection, name, text)
}

/** A query object of the user's own, such as a cursor. */
export function isSubmittable(statement: unknown): boolean {
  return typeof statement === 'object' && statement !== null && 'submit' in statement
}

const classes = new WeakMap<object, LedQueryClass | null>()

function ledQueryClass(driverQuery: object): LedQueryClass | null {
  let made = classes.get(driverQuery)
  if (made === undefined) {
    made = isDriverQueryClass(driverQuery) ? extend(driverQuery) : null
    classes.set(driverQuery, made)
  }
  return made
}

const METHODS = ['prepare', 'submit', 'handleDataRow', 'handleCommandComplete', 'handleError']

function isDriverQueryClass(value: object): value is DriverQueryClass {
  if (typeof value !== 'function') return false
  const prototype: unknown = value.prototype
  return METHODS.every((name) => typeof Reflect.get(prototype as object, name) === 'function')
}

function extend(Base: DriverQueryClass): LedQueryClass {
  return class LedQuery extends Base {
    taken = false
    #lead: Lead | undefined
    #answers: Answers | undefined
    #values: unknown
    #name: string | undefined
    #writing = false
    #known = false

    constructor(args: readonly unknown[]) {
      super(...args)
    }

    lead(lead: Lead): void {
      this.#lead = lead
      this.#values = this.values
      this.values = undefined
    }

    override submit(connection: DriverConnection): unknown {
      this.taken = true
      this.values = this.#values
      return super.submit(connection)
    }

    override prepare(connection: DriverConnection): void {
      const lead = this.#lead
      if (lead === undefined) {
        super.prepare(connection)
        return
      }
      const wire = onWire(lead.port, lead.statements, lead.prepare)
      this.#answers = new Answers(lead.port, lead.statements, wire)
      this.#known = this.name !== undefined && isKnown(connection, this.name)
      const own = this.#onWire()
      if (own === undefined) {
        lead.port.stream.write(encodeBatch(wire, false))
        this.#writing = true
        super.prepare(connection)
        this.#writing = false
      } else {
        lead.port.stream.write(encodeLed(wire, own))
      }
      // The driver would take the answer to a Parse of ours for the user's, which may be skipped or fail.
      this.#name = this.name
      this.name = undefined
    }

    /**
     * The user's statement for our own encoder, where it sends exactly what the driver would: in one piece with the lead
     * it costs less. What the driver writes down when it prepares a name is left to the driver.
     */
    #onWire(): WireStatement | undefined {
      const { name, text, values, types, binary, portal } = this
      if (Boolean(binary) || (portal !== '' && portal !== undefined)) return undefined
      if (!Array.isArray(values) || !values.every(isPlainValue)) return undefined
      if (name !== undefined && name !== '') return this.#known ? { parse: undefined, name, values } : undefined
      return types === undefined && typeof text === 'string' ? { parse: text, name: '', values } : undefined
    }

    override handleDataRow(message: DataRow): void {
      if (this.#lead === undefined) super.handleDataRow(message)
      else this.#answers?.row(message)
    }

    override handleCommandComplete(message: CommandComplete, connection: DriverConnection): void {
      if (this.#lead === undefined) {
        super.handleCommandComplete(message, connection)
        return
      }
      this.#answers?.completed(message)
      if (this.#answers?.complete === true) this.#ended(null)
    }

    override handleError(error: Error, connection: DriverConnection): void {
      // While it is being written: a value of the user that cannot be sent. Ours are on their way all the same.
      if (this.#lead !== undefined && !this.#writing) {
        // The user's was skipped.
        if (this.#name !== undefined && !this.#known) forget(connection, this.#name)
        this.#ended(error)
      }
      super.handleError(error, connection)
    }

    #ended(error: Error | null): void {
      const lead = this.#lead
      this.#lead = undefined
      this.name = this.#name ?? this.name
      lead?.end(error, this.#answers?.results ?? [])
    }
  }
}

/** Whether the name is not another statement's. */
function isFree({ parsedStatements, submittedNamedStatements }: DriverConnection, name: string, text: string): boolean {
  const known = parsedStatements?.[name] ?? submittedNamedStatements?.[name]
  return known === undefined || known === text
}

function isKnown({ parsedStatements, submittedNamedStatements }: DriverConnection, name: string): boolean {
  return parsedStatements?.[name] !== undefined || submittedNamedStatements?.[name] !== undefined
}

function forget({ parsedStatements, submittedNamedStatements }: DriverConnection, name: string): void {
  if (parsedStatements !== undefined) delete parsedStatements[name]
  if (submittedNamedStatements !== undefined) delete submittedNamedStatements[name]
}
