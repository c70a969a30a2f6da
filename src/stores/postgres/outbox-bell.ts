/**
 * Bell on PostgreSQL: rings in this process at once, and in others by NOTIFY.
 *
 * NOTIFY inside the work's transaction halves the throughput of writers (its commit takes a global lock), so it never
 * goes there: after the commit one NOTIFY for all works of the last few milliseconds leaves in a transaction of its
 * own that does not wait for the disk. Listening holds one connection of the pool. Behind a
 * pooler in transaction mode LISTEN succeeds and nothing ever arrives; a notification to itself finds that out, and
 * the relay is told once and polls.
 *
 * @module
 */

import { randomUUID } from 'node:crypto'
import { LocalBell } from '../../outbox/bell.ts'
import { quoted } from '../../shared/identifier.ts'
import { backoffMs } from '../../shared/waiting.ts'
import type { BellListener, BellState, OutboxBell } from '../../store/outbox.ts'
import { nameOf } from './classify.ts'
import type { PgClient, PgPool } from './handle.ts'
import type { OutboxRunner, OutboxRunSettings, OutboxStatement } from './outbox-run.ts'
import { statementName } from './statement-name.ts'

/** At most one NOTIFY in this time. */
const NOTIFY_EVERY_MS = 5
/** How long a notification to ourselves may take before we are called deaf. */
const ECHO_MS = 2_000
/** How often a silent connection is asked whether it still hears. */
const ECHO_EVERY_MS = 60_000
const RECONNECT = { minMs: 1_000, maxMs: 60_000 }
/** With fewer connections, listening would take one that statements need. */
const POOL_MIN = 3

/** The events of a node-postgres client that listening needs. */
interface NotifiedClient extends PgClient {
  on(event: string, listener: (detail: unknown) => void): unknown
}

export class PostgresBell implements OutboxBell {
  readonly #pool: PgPool
  readonly #runner: OutboxRunner
  readonly #local = new LocalBell()
  readonly #states = new Set<(state: BellState) => void>()
  readonly #channel: string
  readonly #notify: OutboxStatement
  /** Payload of our own notifications, so that we do not wake ourselves twice. */
  readonly #self = randomUUID()
  #timer: NodeJS.Timeout | undefined
  #sending = false
  #again = false
  #lastSentAt = Number.NEGATIVE_INFINITY
  #ear: Ear | undefined

  constructor(pool: PgPool, runner: OutboxRunner, settings: OutboxRunSettings) {
    this.#pool = pool
    this.#runner = runner
    this.#channel = `${settings.schema.replaceAll('"', '').slice(0, 50)}_outbox`
    this.#notify = {
      name: statementName(settings.schema, 'outbox_notify'),
      text:
        `/* effectively-once:outbox.notify */ select pg_catalog.set_config('synchronous_commit', 'off', true), ` +
        `pg_catalog.pg_notify($1::text, $2::text)`,
    }
  }

  ring(): void {
    this.#local.ring()
    if (this.#sending) {
      this.#again = true
      return
    }
    if (this.#timer !== undefined) return
    const waitMs = this.#lastSentAt + NOTIFY_EVERY_MS - performance.now()
    if (waitMs <= 0) {
      void this.#send()
      return
    }
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      void this.#send()
    }, waitMs)
    this.#timer.unref()
  }

  listen(onRing: () => void, onState: (state: BellState) => void = () => {}): BellListener {
    const local = this.#local.listen(onRing)
    this.#states.add(onState)
    this.#ear ??= this.#openEar()
    if (this.#ear.state !== undefined) onState(this.#ear.state)
    return {
      close: async () => {
        this.#states.delete(onState)
        await local.close()
        if (this.#local.listeners > 0) return
        const ear = this.#ear
        this.#ear = undefined
        ear?.close()
      },
    }
  }

  /** Never rejects: who does not hear it polls. */
  async #send(payload: string = this.#self): Promise<void> {
    this.#sending = true
    this.#lastSentAt = performance.now()
    try {
      await this.#runner.run(this.#notify, [this.#channel, payload], 'waking relays')
    } catch {
      // The database has worse to tell to those who wait for it.
    } finally {
      this.#sending = false
      if (this.#again) {
        this.#again = false
        this.ring()
      }
    }
  }

  #openEar(): Ear {
    return new Ear({
      pool: this.#pool,
      channel: this.#channel,
      self: this.#self,
      onNotification: () => this.#local.ring(),
      onState: (state) => {
        for (const told of this.#states) told(state)
      },
      echo: (token) => this.#send(token),
    })
  }
}

interface EarOptions {
  readonly pool: PgPool
  readonly channel: string
  readonly self: string
  readonly onNotification: () => void
  readonly onState: (state: BellState) => void
  /** Sends a notification with this payload. */
  readonly echo: (token: string) => Promise<void>
}

/** One listening connection, made again whenever it is lost or deaf. */
class Ear {
  readonly #options: EarOptions
  #state: BellState | undefined
  #client: NotifiedClient | undefined
  #timer: NodeJS.Timeout | undefined
  #failures = 0
  #closed = false
  #echo: { readonly token: string; readonly heard: () => void } | undefined

  constructor(options: EarOptions) {
    this.#options = options
    void this.#connect()
  }

  /** Undefined while it is not known. */
  get state(): BellState | undefined {
    return this.#state
  }

  close(): void {
    this.#closed = true
    this.#drop()
  }

  async #connect(): Promise<void> {
    try {
      if (poolMax(this.#options.pool) < POOL_MIN) {
        this.#tell({ kind: 'deaf', reason: `listening needs a pool of at least ${POOL_MIN} connections` })
        return
      }
      const client = await this.#options.pool.connect()
      if (this.#closed) return client.release()
      if (!canNotify(client)) {
        client.release()
        this.#tell({ kind: 'deaf', reason: 'this client does not report notifications' })
        return
      }
      this.#client = client
      client.on('notification', (detail) => {
        if (this.#client === client) this.#onNotification(detail)
      })
      const lost = (detail: unknown) => {
        if (this.#client === client) this.#retry(`the listening connection was lost (${nameOf(detail)})`)
      }
      client.on('error', lost)
      client.on('end', lost)
      await client.query({ text: `listen ${quoted(this.#options.channel)}` })
      await this.#checkHearing(client)
    } catch (error) {
      this.#retry(`listening failed (${nameOf(error)})`)
    }
  }

  /** Sends a notification to ourselves and waits for it. */
  async #checkHearing(client: NotifiedClient): Promise<void> {
    const token = randomUUID()
    let timer: NodeJS.Timeout | undefined
    const heard = new Promise<boolean>((resolve) => {
      this.#echo = { token, heard: () => resolve(true) }
      timer = setTimeout(() => resolve(false), ECHO_MS)
      timer.unref()
    })
    await this.#options.echo(token)
    const hears = await heard
    clearTimeout(timer)
    this.#echo = undefined
    if (this.#closed || this.#client !== client) return
    if (!hears) {
      this.#retry('notifications do not arrive (a pooler in transaction mode?); polling instead')
      return
    }
    this.#failures = 0
    this.#tell({ kind: 'hearing' })
    this.#after(ECHO_EVERY_MS, () => this.#checkHearing(client))
  }

  #onNotification(detail: unknown): void {
    const payload = typeof detail === 'object' && detail !== null && 'payload' in detail ? detail.payload : undefined
    if (this.#echo !== undefined && payload === this.#echo.token) this.#echo.heard()
    else if (payload !== this.#options.self) this.#options.onNotification()
  }

  #retry(reason: string): void {
    if (this.#closed) return
    this.#drop()
    this.#tell({ kind: 'deaf', reason })
    this.#failures += 1
    this.#after(backoffMs(this.#failures, RECONNECT), () => this.#connect())
  }

  #after(ms: number, act: () => Promise<void>): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void act(), ms)
    this.#timer.unref()
  }

  /** Destroys the connection: a listening one must not go back to the pool. */
  #drop(): void {
    clearTimeout(this.#timer)
    const client = this.#client
    this.#client = undefined
    client?.release(true)
  }

  /** Each change once. */
  #tell(state: BellState): void {
    if (this.#closed || this.#state?.kind === state.kind) return
    this.#state = state
    this.#options.onState(state)
  }
}

function canNotify(client: PgClient): client is NotifiedClient {
  return 'on' in client && typeof client.on === 'function'
}

function poolMax(pool: PgPool): number {
  const options: unknown = 'options' in pool ? pool.options : undefined
  if (typeof options !== 'object' || options === null || !('max' in options)) return Number.POSITIVE_INFINITY
  return typeof options.max === 'number' ? options.max : Number.POSITIVE_INFINITY
}
