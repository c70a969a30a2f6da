/**
 * Renewals: leases are renewed on a connection that no other work can take.
 *
 * A pool whose connections are all at work must not cost anybody a lease, so the connection is taken at the first
 * renewal, outside the limit on our transactions, and kept. It is replaced when it dies, and given back when no renewal
 * came for as long as a lease lasts, or when the application ends its pool, which waits for it. A small pool keeps its
 * connections for work: there an ordinary one is used each time.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import { OnceError } from '../../shared/errors.ts'
import { bounded } from '../../shared/waiting.ts'
import type { RenewAnswer } from '../../store/job.ts'
import { classify, toOnceError } from './classify.ts'
import { Connections } from './connections.ts'
import type { PgClient, PgPool, PgResult, PgStatement } from './handle.ts'
import { repeated, sendOne } from './job-run.ts'
import { positionsOf } from './job-sql.ts'
import type { JobStatements, Renewal } from './job-statements.ts'
import type { PostgresSettings } from './operations.ts'

/** Most leases of one statement. */
const LEASES_MAX = 1_000
/** Longest time without a renewal for which the connection is kept, milliseconds. */
const IDLE_MS = 60_000
/** How often is looked whether it is still wanted, milliseconds. */
const LOOK_MS = 500
/** A pool with fewer connections lends none for long. */
const POOL_MIN = 3
const CALLERS_MAX = 10_000
const DOING = 'renewing leases'

export class JobRenewals {
  readonly #pool: PgPool
  readonly #connections: Connections<PgClient>
  readonly #settings: PostgresSettings
  readonly #sql: JobStatements
  readonly #pinned: boolean
  #client: PgClient | undefined
  #lastMs = 0
  #keptMs = 0
  #timer: NodeJS.Timeout | undefined
  /** One statement at a time: they share the connection. */
  #last: Promise<unknown> = Promise.resolve()

  constructor(pool: PgPool, poolMax: number, settings: PostgresSettings, sql: JobStatements) {
    this.#pool = pool
    this.#settings = settings
    this.#sql = sql
    this.#pinned = poolMax >= POOL_MIN
    this.#connections = new Connections(pool, {
      limit: 1,
      acquireTimeoutMs: settings.answerTimeoutMs,
      waitersMax: CALLERS_MAX,
    })
  }

  /** With no lease the connection is given back. */
  async renew(leases: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    // By id: rows are visited in the same order by everybody.
    this.#keptMs = Math.min(
      IDLE_MS,
      leases.reduce((most, { leaseMs }) => Math.max(most, leaseMs), 0),
    )
    const sorted = [...leases].sort((one, other) => (one.lease.id < other.lease.id ? -1 : 1))
    const answers = new Map<Renewal, RenewAnswer>()
    for (let start = 0; start < sorted.length; start += LEASES_MAX) {
      const chunk = sorted.slice(start, start + LEASES_MAX)
      const renewed = await this.#positions(this.#sql.renew(chunk))
      const others = chunk.filter((_, index) => !renewed.has(index + 1))
      for (const renewal of chunk) answers.set(renewal, 'renewed')
      if (others.length === 0) continue
      const held = await this.#positions(this.#sql.held(others))
      for (const [index, renewal] of others.entries()) answers.set(renewal, held.has(index + 1) ? 'locked' : 'lost')
    }
    if (leases.length === 0) await this.#queued(async () => this.#give())
    return leases.map((renewal) => answers.get(renewal) ?? 'lost')
  }

  async #positions(statement: PgStatement): Promise<ReadonlySet<number>> {
    try {
      const { rows } = await this.#queued(() => repeated(this.#settings, statement, 1, (sent) => this.#send(sent)))
      return positionsOf(rows[0]?.['done'])
    } catch (error) {
      throw toOnceError(error, DOING)
    }
  }

  #queued<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work)
    this.#last = result.catch(() => {})
    return result
  }

  async #send(statement: PgStatement): Promise<PgResult> {
    const { answerTimeoutMs } = this.#settings
    if (!this.#pinned) return await this.#connections.use(answerTimeoutMs, (client) => sendOne(client, statement))
    const kept = this.#client !== undefined
    try {
      return await this.#sendPinned(statement)
    } catch (error) {
      // It may have died while nobody used it; a fresh one tells whether the database is there.
      const lost = !(error instanceof OnceError || error instanceof TypeError) && classify(error) === 'connection'
      if (kept && lost) return await this.#sendPinned(statement)
      throw error
    }
  }

  async #sendPinned(statement: PgStatement): Promise<PgResult> {
    const { answerTimeoutMs } = this.#settings
    this.#client ??= await this.#connections.acquire()
    this.#keep()
    try {
      const answer = await bounded(sendOne(this.#client, statement), answerTimeoutMs)
      if (answer.kind === 'done') return answer.value
    } catch (error) {
      if (classify(error) === 'connection') this.#give(error as Error)
      throw error
    }
    const late = new OnceError('STORE_UNAVAILABLE', `${DOING}: no answer within ${answerTimeoutMs} ms`)
    this.#give(late)
    throw late
  }

  #keep(): void {
    this.#lastMs = performance.now()
    this.#timer ??= setInterval(() => this.#look(), LOOK_MS).unref()
  }

  #look(): void {
    const idle = performance.now() - this.#lastMs > this.#keptMs
    if (idle || Reflect.get(this.#pool, 'ending') === true) void this.#queued(async () => this.#give())
  }

  #give(broken?: Error): void {
    const client = this.#client
    if (client === undefined) return
    this.#client = undefined
    clearInterval(this.#timer)
    this.#timer = undefined
    this.#connections.release(client, broken)
  }
}
