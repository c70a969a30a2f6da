/**
 * Running one outbox statement: a connection for one trip, a bound, and our error for the driver's.
 *
 * Own connections beside those of the guard, so that a relay can renew its lease while every transaction slot is taken.
 *
 * @module
 */

import { classify, toOnceError } from './classify.ts'
import { Connections } from './connections.ts'
import type { PgClient, PgPool, PgResult } from './handle.ts'
import { owned } from './own-types.ts'

/** A statement without its values. */
export interface OutboxStatement {
  readonly name: string
  readonly text: string
}

/** What the outbox needs to know about the store it is part of. */
export interface OutboxRunSettings {
  /** Quoted identifier. */
  readonly schema: string
  /** Longest wait for an answer, milliseconds. */
  readonly answerTimeoutMs: number
  /** Prepared statements by name; switched off for good when a pooler turns out not to know them. */
  prepare: boolean
}

/** Statements of ours at once: lanes of one relay, wake-ups, health. */
const STATEMENTS_MAX = 16
const ACQUIRE_TIMEOUT_MS = 5_000
const WAITERS_MAX = 1_000

export class OutboxRunner {
  readonly connections: Connections<PgClient>
  readonly #settings: OutboxRunSettings

  constructor(pool: PgPool, settings: OutboxRunSettings) {
    this.#settings = settings
    this.connections = new Connections<PgClient>(pool, {
      limit: STATEMENTS_MAX,
      acquireTimeoutMs: ACQUIRE_TIMEOUT_MS,
      waitersMax: WAITERS_MAX,
    })
  }

  /** One statement in its own transaction. @throws {OnceError} STORE_UNAVAILABLE, REPLICA_REFUSED, SCHEMA_MISSING. */
  async run({ name, text }: OutboxStatement, values: unknown[], doing: string): Promise<PgResult> {
    const { prepare, answerTimeoutMs } = this.#settings
    try {
      return await this.connections.use(answerTimeoutMs, (client) =>
        client.query(owned(prepare ? { name, text, values } : { text, values })),
      )
    } catch (error) {
      if (prepare && classify(error) === 'statement') {
        this.#settings.prepare = false
        return this.run({ name, text }, values, doing)
      }
      throw toOnceError(error, doing)
    }
  }
}
