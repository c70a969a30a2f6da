/**
 * Running one statement on leased operations: a connection for one trip, a bound, and what a lost answer means.
 *
 * Every statement here is a transaction of its own and may be sent again: a write compares what it expects to find. So
 * one that the database rolled back (a deadlock, a serialization failure where the application has raised its default
 * isolation) is sent again, some times.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import { batchPort, sendBatch } from './batch.ts'
import { classify, toOnceError } from './classify.ts'
import type { Connections } from './connections.ts'
import type { PgClient, PgResult, PgStatement } from './handle.ts'
import { type PostgresSettings, withoutName } from './operations.ts'
import { owned } from './own-types.ts'

/** Tries of a statement that the database has rolled back. */
const TRIES_MAX = 3

export class JobRunner<C extends PgClient> {
  readonly #connections: Connections<C>
  readonly #settings: PostgresSettings

  constructor(connections: Connections<C>, settings: PostgresSettings) {
    this.#connections = connections
    this.#settings = settings
  }

  /** A statement whose lost answer is an error. @throws {OnceError} STORE_UNAVAILABLE, REPLICA_REFUSED, SCHEMA_MISSING. */
  async ask(statement: PgStatement, doing: string): Promise<PgResult> {
    try {
      return await this.#send(statement)
    } catch (error) {
      throw toOnceError(error, doing)
    }
  }

  /** A statement whose lost answer leaves open whether it was written. The errors of `ask` otherwise. */
  async write(statement: PgStatement, doing: string): Promise<PgResult | 'unresolved'> {
    try {
      return await this.#send(statement)
    } catch (error) {
      // One of ours: no connection was had, so nothing was sent. A TypeError: a value that cannot be sent.
      if (!(error instanceof OnceError || error instanceof TypeError) && classify(error) === 'connection') {
        return 'unresolved'
      }
      throw toOnceError(error, doing)
    }
  }

  #send(statement: PgStatement, tries = 1): Promise<PgResult> {
    return repeated(this.#settings, statement, tries, (prepared) =>
      this.#connections.use(this.#settings.answerTimeoutMs, (client) => sendOne(client, prepared)),
    )
  }
}

/** Sends a statement again while that is what its error asks for. `send` gets it with a name only where names work. */
export async function repeated(
  settings: PostgresSettings,
  statement: PgStatement,
  tries: number,
  send: (statement: PgStatement) => Promise<PgResult>,
): Promise<PgResult> {
  // As it is sent: another one may have switched it off by the time of the answer.
  const { prepare } = settings
  try {
    return await send(prepare ? statement : nameless(statement))
  } catch (error) {
    const kind = error instanceof OnceError || error instanceof TypeError ? 'other' : classify(error)
    if (kind === 'statement' && prepare) {
      settings.prepare = false
      return await repeated(settings, statement, tries, send)
    }
    if (kind === 'retry' && tries < TRIES_MAX) return await repeated(settings, statement, tries + 1, send)
    throw error
  }
}

/** As a batch of one where its answer is declared as text, which asks the server for less; else as the driver does. */
export function sendOne(client: PgClient, statement: PgStatement): Promise<PgResult> {
  const port = statement.columns === undefined ? null : batchPort(client)
  if (port === null) return client.query(owned(statement))
  return new Promise((resolve, reject) => {
    sendBatch(client, port, [statement], statement.name !== undefined, (error, [result]) => {
      if (error === null && result !== undefined) resolve(result)
      else reject(error ?? new Error('the statement gave no answer'))
    })
  })
}

function nameless(statement: PgStatement): PgStatement {
  const { columns } = statement
  return columns === undefined ? withoutName(statement) : { ...withoutName(statement), columns }
}
