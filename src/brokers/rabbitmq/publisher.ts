/**
 * Publisher with confirms: every message ends as exactly one result, whatever happens to the channel.
 *
 * Confirms are matched by delivery tag, returns by message id: a return carries no tag, comes before the confirm of
 * its message, and others may come in between. We keep our own window of what is unconfirmed instead of the
 * client's callbacks, because not every release of amqplib calls them when the channel dies (B49).
 *
 * @module
 */

import type {
  ConnectionState,
  OutgoingMessage,
  Publisher,
  PublisherOptions,
  PublishResult,
} from '../../broker/contract.ts'
import { integerOption } from '../../shared/options.ts'
import type { AmqpConfirm, AmqpConfirmChannel, AmqpConnection, AmqpError, AmqpReturn } from './amqp.ts'
import { peerFacts } from './amqp.ts'
import { blameOf, reasonOf } from './classify.ts'
import { Link } from './link.ts'
import { encode, type WireLimits } from './message.ts'
import type { ConnectOptions } from './options.ts'
import { assertTopology } from './topology.ts'

/** A message that is accepted. */
interface Accepted {
  readonly settled: (result: PublishResult) => void
  readonly deadlineMs: number
}

/** One that is not written yet. */
interface Waiting extends Accepted {
  readonly message: OutgoingMessage
}

/** One that is written, without its content: thousands of them are alive at once. */
interface Entry extends Accepted {
  readonly id: string
  readonly topic: string
  readonly bytes: number
  /** Why the broker gave it back; its confirm follows. */
  returned: string | undefined
}

const CONFIRMED: PublishResult = { kind: 'confirmed' }
const FRAME_BYTES_DEFAULT = 131_072

export class RabbitPublisher implements Publisher {
  readonly #exchange: string
  readonly #options: PublisherOptions
  readonly #connectOptions: ConnectOptions
  readonly #link: Link<AmqpConfirmChannel>
  /** Sent and not confirmed, by delivery tag, in the order of sending. */
  readonly #window = new Map<number, Entry>()
  /** Accepted and not yet written, because the write buffer is full. All are younger than those in the window. */
  #waiting: Waiting[] = []
  #channel: AmqpConfirmChannel | undefined
  #lastTag = 0
  #writable = true
  #limits: WireLimits = { payloadBytesMax: Number.POSITIVE_INFINITY, frameBytesMax: FRAME_BYTES_DEFAULT }
  /** Messages still to be sent one at a time, to find the one that the broker closes the channel for. */
  #suspects = 0
  #timer: NodeJS.Timeout | undefined
  #closing: Promise<void> | undefined
  #emptied: (() => void) | undefined

  constructor(exchange: string, connectOptions: ConnectOptions, options: PublisherOptions) {
    integerOption('publishTimeoutMs', options.publishTimeoutMs, { min: 1, max: 3_600_000, default: 10_000 })
    this.#exchange = exchange
    this.#options = options
    this.#connectOptions = connectOptions
    this.#link = new Link<AmqpConfirmChannel>({
      connect: connectOptions.connect,
      reconnect: connectOptions.reconnect,
      openTimeoutMs: connectOptions.openTimeoutMs,
      openChannel: (connection) => connection.createConfirmChannel(),
      setUp: (channel, connection) => this.#setUp(channel, connection),
      onLost: (channel, reason, error) => this.#onLost(channel, reason, error),
      onState: (state) => this.#onState(state),
    })
  }

  get state(): ConnectionState {
    return this.#link.state
  }

  publish(message: OutgoingMessage, settled: (result: PublishResult) => void): void {
    const { state } = this.#link
    if (state.kind !== 'open' || this.#closing !== undefined) {
      soon(settled, { kind: 'disconnected', reason: state.kind === 'open' ? 'closed by its user' : state.reason })
      return
    }
    const deadlineMs = performance.now() + this.#options.publishTimeoutMs
    if (this.#waiting.length === 0 && this.#mayWrite) this.#write(message, settled, deadlineMs)
    else this.#waiting.push({ message, settled, deadlineMs })
    if (this.#timer === undefined) this.#watchDeadline()
  }

  ready(signal: AbortSignal): Promise<void> {
    return this.#link.opened(signal)
  }

  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #close(): Promise<void> {
    if (this.#window.size + this.#waiting.length > 0) {
      await new Promise<void>((resolve) => {
        this.#emptied = resolve
      })
    }
    await this.#link.stop()
    clearTimeout(this.#timer)
  }

  async #setUp(channel: AmqpConfirmChannel, connection: AmqpConnection): Promise<void> {
    const { topology } = this.#connectOptions
    await assertTopology(channel, topology)
    const declared = topology.some((item) => item.kind === 'exchange' && item.name === this.#exchange)
    // Publishing to a missing exchange closes the channel at the first message: find out now.
    if (!declared && this.#exchange !== '') await channel.checkExchange(this.#exchange)
    this.#limits = { ...this.#limits, frameBytesMax: peerFacts(connection).frameMax ?? FRAME_BYTES_DEFAULT }
    channel.on('ack', (confirm) => this.#onConfirm(channel, confirm, CONFIRMED))
    channel.on('nack', (confirm) => this.#onConfirm(channel, confirm, { kind: 'refused', reason: NACKED }))
    channel.on('return', (message) => this.#onReturn(channel, message))
    channel.on('drain', () => {
      if (channel !== this.#channel) return
      this.#writable = true
      this.#flush()
    })
    this.#channel = channel
    this.#lastTag = 0
    this.#writable = true
  }

  get #mayWrite(): boolean {
    return this.#writable && (this.#suspects === 0 || this.#window.size === 0)
  }

  #write(message: OutgoingMessage, settled: Accepted['settled'], deadlineMs: number): void {
    const { id, topic } = message
    const encoded = encode(message, this.#limits)
    if ('invalid' in encoded) {
      soon(settled, { kind: 'invalid', reason: encoded.invalid })
      this.#whenEmpty()
      return
    }
    const { content, options } = encoded
    try {
      if (this.#channel === undefined) throw new Error('the channel is gone')
      this.#writable = this.#channel.publish(this.#exchange, topic, content, options)
      this.#lastTag += 1
      this.#window.set(this.#lastTag, { settled, deadlineMs, id, topic, bytes: content.length, returned: undefined })
    } catch (error) {
      // A closed channel throws too; the rest are values that AMQP cannot carry.
      const gone = this.#channel === undefined || (error instanceof Error && error.name === 'IllegalOperationError')
      soon(settled, { kind: gone ? 'disconnected' : 'invalid', reason: reasonOf(error) })
      this.#whenEmpty()
    }
  }

  #flush(): void {
    while (this.#mayWrite) {
      const next = this.#waiting.shift()
      if (next === undefined) return
      this.#write(next.message, next.settled, next.deadlineMs)
    }
  }

  #onConfirm(channel: AmqpConfirmChannel, confirm: AmqpConfirm, result: PublishResult): void {
    if (channel !== this.#channel) return
    this.#link.healthy()
    if (confirm.multiple) {
      for (const tag of this.#window.keys()) {
        if (tag > confirm.deliveryTag) break
        this.#finish(tag, result)
      }
    } else {
      this.#finish(confirm.deliveryTag, result)
    }
    if (this.#waiting.length > 0) this.#flush()
  }

  #finish(tag: number, result: PublishResult): void {
    const entry = this.#window.get(tag)
    if (entry === undefined) return
    this.#window.delete(tag)
    if (this.#suspects > 0) this.#suspects -= 1
    const { returned } = entry
    call(
      entry.settled,
      returned === undefined || result !== CONFIRMED ? result : { kind: 'returned', reason: returned },
    )
    this.#whenEmpty()
  }

  /** The same id may be on its way twice; returns come in the order of publishing, so the oldest is meant. */
  #onReturn(channel: AmqpConfirmChannel, message: AmqpReturn): void {
    if (channel !== this.#channel) return
    const id = message.properties.messageId
    for (const entry of this.#window.values()) {
      if (entry.returned !== undefined || entry.id !== id) continue
      entry.returned = returnReason(message.fields)
      return
    }
  }

  #onState(state: ConnectionState): void {
    // What is not written yet will not be while the broker blocks; what is written may still be confirmed.
    if (state.kind === 'blocked') {
      const waiting = this.#waiting
      this.#waiting = []
      this.#settleAll(waiting, { kind: 'disconnected', reason: state.reason })
    }
    this.#options.onState?.(state)
  }

  #onLost(channel: AmqpConfirmChannel, reason: string, error: AmqpError | undefined): void {
    if (channel !== this.#channel) return
    this.#channel = undefined
    const sent = [...this.#window.values()]
    const waiting = this.#waiting
    this.#window.clear()
    this.#waiting = []
    const faults = this.#blame(sent, reason, error)
    for (const entry of sent) {
      this.#settleAll([entry], faults.get(entry) ?? { kind: 'disconnected', reason })
    }
    this.#settleAll(waiting, { kind: 'disconnected', reason })
  }

  /** The messages that the broker closed the channel for, as far as it can be known. */
  #blame(sent: readonly Entry[], reason: string, error: AmqpError | undefined): Map<Entry, PublishResult> {
    const faults = new Map<Entry, PublishResult>()
    const put = (entry: Entry, kind: 'invalid' | 'refused') => faults.set(entry, { kind, reason })
    const blame = blameOf(error)
    if (blame.kind === 'size') {
      this.#limits = { ...this.#limits, payloadBytesMax: blame.bytesMax }
      for (const entry of sent) if (entry.bytes > blame.bytesMax) put(entry, 'invalid')
    } else if (blame.kind === 'topic') {
      for (const entry of sent) if (entry.topic === blame.topic) put(entry, 'refused')
    }
    if (blame.kind === 'none' || faults.size > 0) return faults
    // Some message is at fault and we do not know which: alone on the channel it cannot hide.
    const [only] = sent
    if (only === undefined || sent.length > 1) {
      this.#suspects = sent.length
    } else {
      put(only, 'invalid')
      this.#suspects = Math.max(0, this.#suspects - 1)
    }
    return faults
  }

  #settleAll(entries: readonly Accepted[], result: PublishResult): void {
    for (const entry of entries) call(entry.settled, result)
    this.#whenEmpty()
  }

  #whenEmpty(): void {
    if (this.#emptied !== undefined && this.#window.size + this.#waiting.length === 0) this.#emptied()
  }

  get #oldest(): Accepted | undefined {
    for (const entry of this.#window.values()) return entry
    return this.#waiting[0]
  }

  /** One timer for the oldest message; it is looked at again when it fires. */
  #watchDeadline(): void {
    if (this.#timer !== undefined) return
    const oldest = this.#oldest
    if (oldest === undefined) return
    const waitMs = Math.max(1, Math.ceil(oldest.deadlineMs - performance.now()))
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#onDeadline()
      this.#watchDeadline()
    }, waitMs)
    this.#timer.unref()
  }

  #onDeadline(): void {
    const now = performance.now()
    const oldest = this.#oldest
    if (oldest === undefined || oldest.deadlineMs > now) return
    const reason = `no confirm within ${this.#options.publishTimeoutMs} ms`
    if (this.#link.state.kind === 'blocked') {
      // A new connection would be blocked as well. Confirms that come after all find nobody waiting.
      for (const [tag, entry] of this.#window) {
        if (entry.deadlineMs > now) break
        this.#window.delete(tag)
        this.#settleAll([entry], { kind: 'disconnected', reason: `${reason}; ${this.#link.state.reason}` })
      }
    } else {
      this.#link.abandon(reason)
    }
  }
}

const NACKED = 'nacked by the broker: a queue is full or could not store it'

function returnReason(fields: object): string {
  const text: unknown = Reflect.get(fields, 'replyText')
  return `unroutable: ${typeof text === 'string' ? text.slice(0, 100) : 'returned by the broker'}`
}

function soon(settled: (result: PublishResult) => void, result: PublishResult): void {
  queueMicrotask(() => settled(result))
}

/** A callback that throws must not keep the results of other messages from their callers, nor break the client. */
function call(settled: (result: PublishResult) => void, result: PublishResult): void {
  try {
    settled(result)
  } catch (error) {
    process.nextTick(() => {
      throw error
    })
  }
}
