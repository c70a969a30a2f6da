/**
 * Link: one connection with one channel on it, made again with backoff whenever it is lost.
 *
 * There is one loop, so there is never a second attempt beside the first. A channel that dies alone is replaced on
 * the same connection; everything else gets a new connection. Topology and consumers are set up anew each time.
 * What was on its way is the business of publisher and source: they are told once for each channel.
 *
 * @module
 */

import type { ConnectionState } from '../../broker/contract.ts'
import { Gate } from '../../broker/gate.ts'
import { type Backoff, type Bounded, backoffMs, bounded, pause } from '../../shared/waiting.ts'
import { type AmqpChannel, type AmqpConnect, type AmqpConnection, type AmqpError, peerFacts } from './amqp.ts'
import { reasonOf } from './classify.ts'

/** Bound for a graceful close of channel or connection; then the socket is cut. */
const CLOSE_TIMEOUT_MS = 2_000
/** A link that stayed open this long begins its backoff anew. */
const STABLE_MS = 30_000
const CLOSED_BY_USER = 'closed by its user'

export interface LinkOptions<Channel extends AmqpChannel> {
  readonly connect: AmqpConnect
  readonly reconnect: Backoff
  /** Bound for connecting, and for opening and setting up a channel, each. Milliseconds. */
  readonly openTimeoutMs: number
  openChannel(connection: AmqpConnection): Promise<Channel>
  /** Topology, consumers. The link is open when it resolves. */
  setUp(channel: Channel, connection: AmqpConnection): Promise<void>
  /** Called once for every channel that `setUp` was called with, as soon as the channel is gone. */
  onLost(channel: Channel, reason: string, error: AmqpError | undefined): void
  onState(state: ConnectionState): void
}

interface LiveConnection {
  readonly amqp: AmqpConnection
  closed: boolean
  /** The last error it reported. */
  error: AmqpError | undefined
  blocked: string | undefined
}

/** One channel's life, from before `setUp` to its loss. */
interface Session<Channel> {
  readonly channel: Channel
  readonly connection: LiveConnection
  /** `setUp` is done. */
  ready: boolean
  /** Ends the session; later calls do nothing. */
  end(reason: string, error?: AmqpError): void
  readonly ended: Promise<void>
}

export class Link<Channel extends AmqpChannel> {
  readonly #options: LinkOptions<Channel>
  readonly #stopping = new AbortController()
  readonly #gate = new Gate()
  readonly #finished: Promise<void>
  readonly #closings = new Set<Promise<unknown>>()
  #state: ConnectionState = { kind: 'closed', reason: 'connecting' }
  readonly #warnings = new Map<string, string>()
  #session: Session<Channel> | undefined
  #failures = 0

  constructor(options: LinkOptions<Channel>) {
    this.#options = options
    this.#finished = this.#run()
  }

  get state(): ConnectionState {
    return this.#state
  }

  /** Shows a warning while the link is open; a later one of the same kind replaces it. */
  warn(kind: string, warning: string): void {
    this.#warnings.set(kind, warning)
    if (this.#state.kind === 'open') this.#show()
  }

  /** Something useful came through: the next loss is answered without delay. */
  healthy(): void {
    this.#failures = 0
  }

  /** Resolves when the link is open and not blocked. Rejects with the signal's reason, or after `stop`. */
  opened(signal: AbortSignal): Promise<void> {
    return this.#gate.until(() => {
      if (this.#stopping.signal.aborted) throw new Error('it is closed')
      return this.#state.kind === 'open'
    }, signal)
  }

  /** Gives the channel up, for example because it does not answer, and its connection with it. */
  abandon(reason: string): void {
    const session = this.#session
    if (session === undefined) return
    this.#discard(session.connection)
    session.end(reason)
  }

  /** Gives the channel up but keeps the connection. */
  replaceChannel(reason: string): void {
    const session = this.#session
    if (session === undefined) return
    this.#track(quietly(() => session.channel.close()))
    session.end(reason)
  }

  /** Closes channel and connection for good. Bounded. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    const session = this.#session
    if (session !== undefined) {
      // The channel first: its frames leave in order, while the connection's own close would overtake them.
      await quietly(() => session.channel.close())
      session.end(CLOSED_BY_USER)
    }
    await this.#finished
    await Promise.all(this.#closings)
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping
    let connection: LiveConnection | undefined
    while (!signal.aborted) {
      const openedAtMs = performance.now()
      try {
        connection ??= await this.#connect()
        await this.#serve(connection)
        if (performance.now() - openedAtMs > STABLE_MS) this.healthy()
      } catch (error) {
        this.#set({ kind: 'closed', reason: reasonOf(error) })
      }
      if (connection?.closed === true) connection = undefined
      if (!signal.aborted && this.#failures > 0) await pause(backoffMs(this.#failures, this.#options.reconnect), signal)
      this.#failures += 1
    }
    if (connection !== undefined) this.#discard(connection)
    this.#set({ kind: 'closed', reason: CLOSED_BY_USER })
  }

  async #connect(): Promise<LiveConnection> {
    const connecting = this.#options.connect()
    const answer = await this.#bounded(connecting)
    if (answer.kind === 'timeout') {
      connecting.then(
        (late) => this.#track(closeConnection(late)),
        () => {},
      )
      throw new Error(`no connection within ${this.#options.openTimeoutMs} ms`)
    }
    const connection: LiveConnection = { amqp: answer.value, closed: false, error: undefined, blocked: undefined }
    const { amqp } = connection
    amqp.on('error', (error) => {
      connection.error = error
    })
    amqp.on('close', (error) => {
      connection.closed = true
      connection.error = error ?? connection.error
      if (this.#session?.connection === connection) {
        this.#session.end(connection.error === undefined ? 'the connection was closed' : reasonOf(connection.error))
      }
    })
    amqp.on('blocked', (reason) => {
      connection.blocked = reason
      this.#show()
    })
    amqp.on('unblocked', () => {
      connection.blocked = undefined
      this.#show()
    })
    return connection
  }

  /** Opens a channel, sets it up, and resolves when it is lost. Rejects when it cannot be opened. */
  async #serve(connection: LiveConnection): Promise<void> {
    const { openTimeoutMs } = this.#options
    const session = this.#begin(await this.#openChannel(connection), connection)
    try {
      const setUp = await this.#bounded(this.#options.setUp(session.channel, connection.amqp))
      if (setUp.kind === 'timeout') this.abandon(`topology and consumer were not set up within ${openTimeoutMs} ms`)
    } catch (error) {
      if (this.#session === session) this.replaceChannel(reasonOf(error))
    }
    session.ready = true
    if (this.#session === session) this.#show()
    await session.ended
  }

  async #openChannel(connection: LiveConnection): Promise<Channel> {
    try {
      const answer = await this.#bounded(this.#options.openChannel(connection.amqp))
      if (answer.kind === 'done') return answer.value
      throw new Error(`no channel within ${this.#options.openTimeoutMs} ms`)
    } catch (error) {
      this.#discard(connection)
      throw error
    }
  }

  #begin(channel: Channel, connection: LiveConnection): Session<Channel> {
    let error: AmqpError | undefined
    let finish = () => {}
    const ended = new Promise<void>((resolve) => {
      finish = resolve
    })
    const session: Session<Channel> = {
      channel,
      connection,
      ready: false,
      ended,
      end: (reason, cause) => {
        if (this.#session !== session) return
        this.#session = undefined
        this.#set({ kind: 'closed', reason })
        this.#options.onLost(channel, reason, cause)
        finish()
      },
    }
    this.#session = session
    channel.on('error', (cause) => {
      error = cause
    })
    channel.on('close', () => {
      // The connection's own reason is told right after its channels are closed.
      queueMicrotask(() => {
        if (this.#stopping.signal.aborted) session.end(CLOSED_BY_USER)
        else session.end(error === undefined ? 'the channel was closed' : reasonOf(error), error)
      })
    })
    return session
  }

  /** Open, or blocked: what a live session is. */
  #show(): void {
    const session = this.#session
    if (session === undefined || !session.ready) return
    const { blocked } = session.connection
    const warning = this.#warnings.size === 0 ? undefined : [...this.#warnings.values()].join(' ')
    if (blocked === undefined) this.#set({ kind: 'open', warning })
    else this.#set({ kind: 'blocked', reason: `the broker blocks publishers: ${blocked}` })
  }

  /** Waits for `promise` within openTimeoutMs, and no longer than until `stop`. */
  async #bounded<T>(promise: Promise<T>): Promise<Bounded<T>> {
    const { signal } = this.#stopping
    let stop = () => {}
    const stopped = new Promise<Bounded<T>>((resolve) => {
      stop = () => resolve({ kind: 'timeout' })
      if (signal.aborted) stop()
      signal.addEventListener('abort', stop)
    })
    try {
      return await Promise.race([bounded(promise, this.#options.openTimeoutMs), stopped])
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }

  #discard(connection: LiveConnection): void {
    if (connection.closed) return
    connection.closed = true
    this.#track(closeConnection(connection.amqp))
  }

  /** `stop` waits for what is closing in the background. */
  #track(closing: Promise<unknown>): void {
    this.#closings.add(closing)
    void closing.finally(() => this.#closings.delete(closing))
  }

  #set(state: ConnectionState): void {
    const old = this.#state
    this.#state = state
    const same = JSON.stringify(old) === JSON.stringify(state)
    if (!same) this.#options.onState(state)
    this.#gate.wake()
  }
}

/** Waits for a close that may never be answered, and does not care how it ends. */
async function quietly(close: () => Promise<unknown>): Promise<'done' | 'timeout'> {
  try {
    return (await bounded(close(), CLOSE_TIMEOUT_MS)).kind
  } catch {
    return 'done'
  }
}

async function closeConnection(connection: AmqpConnection): Promise<void> {
  if ((await quietly(() => connection.close())) === 'timeout') peerFacts(connection).destroy()
}
