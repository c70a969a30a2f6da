/**
 * Source: one queue, one consumer, manual acknowledgement on the channel that delivered and on no other.
 *
 * A delivery belongs to the channel it came on. When that channel is gone, its deliveries are lost to us: they are
 * reported once, settling them does nothing, and the broker delivers them again. A delivery tag of an old channel
 * sent on a new one would settle another message.
 *
 * @module
 */

import type { ConnectionState, Delivery, Source, Subscription, SubscriptionOptions } from '../../broker/contract.ts'
import { integerOption } from '../../shared/options.ts'
import { bounded, pause } from '../../shared/waiting.ts'
import { type AmqpChannel, type AmqpConnection, type AmqpMessage, type AmqpTag, peerFacts } from './amqp.ts'
import { consumerTimeoutMs, reasonOf } from './classify.ts'
import { countWarning, type DeadLetters, startWarning } from './delivery-limit.ts'
import { Link } from './link.ts'
import { decode } from './message.ts'
import type { ConnectOptions } from './options.ts'
import { assertTopology } from './topology.ts'

/** Bound for the broker's answer to cancelling or starting a consumer, milliseconds. */
const CONSUMER_TIMEOUT_MS = 5_000
/** AMQP carries the prefetch in 16 bits. */
const PREFETCH_MAX = 65_535
/**
 * A quorum queue's client inside RabbitMQ keeps acknowledgements back while 32 of them are not applied, and forgets
 * those when the channel closes (seen with 3.10: 66 of 100 came back). So close waits a moment when there were many.
 */
const FRAMES_AT_ONCE_MAX = 24
const CLOSE_QUIET_MS = 250

export interface SourceSettings {
  readonly queue: string
  readonly deadLetters: DeadLetters
  readonly connect: ConnectOptions
}

export class RabbitSource implements Source {
  readonly name: string
  readonly #settings: SourceSettings

  constructor(settings: SourceSettings) {
    this.name = settings.queue
    this.#settings = settings
  }

  async subscribe(options: SubscriptionOptions, signal: AbortSignal): Promise<Subscription> {
    integerOption('prefetch', options.prefetch, { min: 1, max: PREFETCH_MAX, default: 1 })
    signal.throwIfAborted()
    const subscription = new RabbitSubscription(this.#settings, options)
    try {
      await subscription.consuming(signal)
      return subscription
    } catch (error) {
      await subscription.close()
      throw error
    }
  }
}

/** The deliveries of one channel. */
interface Epoch {
  readonly channel: AmqpChannel
  /** Tags of the unsettled deliveries, in the order of arrival; those of another channel are not in here. */
  readonly unsettled: Map<Delivery, number>
  /** Tag of the consumer; undefined while there is none. */
  consumerTag: string | undefined
  /** Settling frames sent so far. */
  frames: number
  lost: boolean
}

class RabbitSubscription implements Subscription {
  readonly #settings: SourceSettings
  readonly #options: SubscriptionOptions
  readonly #link: Link<AmqpChannel>
  #epoch: Epoch | undefined
  #flow: 'running' | 'paused' | 'stopped' = 'running'
  /** Starts and cancels of the consumer, one after the other. */
  #turn: Promise<void> = Promise.resolve()

  constructor(settings: SourceSettings, options: SubscriptionOptions) {
    this.#settings = settings
    this.#options = options
    const { connect } = settings
    this.#link = new Link<AmqpChannel>({
      connect: connect.connect,
      reconnect: connect.reconnect,
      openTimeoutMs: connect.openTimeoutMs,
      openChannel: (connection) => connection.createChannel(),
      setUp: (channel, connection) => this.#setUp(channel, connection),
      onLost: (channel, reason) => this.#onLost(channel, reason),
      onState: (state) => options.onState?.(state),
    })
  }

  get state(): ConnectionState {
    return this.#link.state
  }

  consuming(signal: AbortSignal): Promise<void> {
    return this.#link.opened(signal)
  }

  ack(deliveries: readonly Delivery[]): number {
    return this.#settle(deliveries, (channel, tag, multiple) => channel.ack(tag, multiple))
  }

  /** nack, not reject: RabbitMQ 4.3 and up does not count it as a failed delivery. */
  release(deliveries: readonly Delivery[]): number {
    return this.#settle(deliveries, (channel, tag, multiple) => channel.nack(tag, multiple, true))
  }

  pause(): Promise<void> {
    if (this.#flow === 'running') this.#flow = 'paused'
    return this.#adjustAsked()
  }

  resume(): Promise<void> {
    if (this.#flow === 'paused') this.#flow = 'running'
    return this.#adjustAsked()
  }

  stop(): Promise<void> {
    this.#flow = 'stopped'
    return this.#adjustAsked()
  }

  async close(): Promise<void> {
    await this.stop()
    const epoch = this.#epoch
    if (epoch !== undefined && !epoch.lost && epoch.frames > FRAMES_AT_ONCE_MAX) await pause(CLOSE_QUIET_MS)
    await this.#link.stop()
  }

  async #setUp(channel: AmqpChannel, connection: AmqpConnection): Promise<void> {
    const { queue, deadLetters, connect } = this.#settings
    const epoch: Epoch = {
      channel,
      unsettled: new Map(),
      consumerTag: undefined,
      frames: 0,
      lost: false,
    }
    this.#epoch = epoch
    await assertTopology(channel, connect.topology)
    await channel.prefetch(this.#options.prefetch)
    await this.#adjust()
    const warning = startWarning(queue, deadLetters, peerFacts(connection).version)
    if (warning !== undefined) this.#link.warn('limit', warning)
  }

  /** A failure shows as the loss of the channel; the next one starts as the flow then says. */
  async #adjustAsked(): Promise<void> {
    const epoch = this.#epoch
    try {
      await this.#adjust()
    } catch (error) {
      if (epoch !== undefined && epoch === this.#epoch && !epoch.lost) this.#link.replaceChannel(reasonOf(error))
    }
  }

  /** Makes the consumer be there or not, as the flow says. */
  #adjust(): Promise<void> {
    const turn = this.#turn.then(() => this.#adjustNow())
    this.#turn = turn.catch(() => {})
    return turn
  }

  async #adjustNow(): Promise<void> {
    const epoch = this.#epoch
    if (epoch === undefined || epoch.lost) return
    const wanted = this.#flow === 'running'
    if (wanted === (epoch.consumerTag !== undefined)) return
    const { channel } = epoch
    const answer = await bounded(
      epoch.consumerTag === undefined ? this.#startConsumer(epoch) : channel.cancel(epoch.consumerTag),
      CONSUMER_TIMEOUT_MS,
    )
    if (!wanted) epoch.consumerTag = undefined
    if (answer.kind === 'timeout') this.#link.abandon(`no answer about the consumer within ${CONSUMER_TIMEOUT_MS} ms`)
  }

  async #startConsumer(epoch: Epoch): Promise<void> {
    const onMessage = (message: AmqpMessage | null) => this.#onMessage(epoch, message)
    const { consumerTag } = await epoch.channel.consume(this.#settings.queue, onMessage, { noAck: false })
    epoch.consumerTag = consumerTag
  }

  #onMessage(epoch: Epoch, message: AmqpMessage | null): void {
    if (epoch.lost) return
    const { queue, deadLetters } = this.#settings
    if (message === null) {
      // The queue was deleted or moved, or (RabbitMQ 4.3 and up) a delivery was held too long.
      epoch.consumerTag = undefined
      this.#link.replaceChannel(`the broker cancelled the consumer of queue "${queue}"`)
      return
    }
    const tag = message.fields.deliveryTag
    if (tag === undefined) return
    this.#link.healthy()
    const delivery = decode(message, queue)
    epoch.unsettled.set(delivery, tag)
    const warning = countWarning(queue, deadLetters, delivery.deliveryCount)
    if (warning !== undefined) this.#link.warn('deliveries', warning)
    try {
      this.#options.onDelivery(delivery)
    } catch (error) {
      // Inside the client this would close the channel and loop: it is the caller's fault, so it is shown as one.
      process.nextTick(() => {
        throw error
      })
    }
  }

  #onLost(channel: AmqpChannel, reason: string): void {
    const epoch = this.#epoch
    if (epoch === undefined || epoch.channel !== channel) return
    epoch.lost = true
    const timeoutMs = consumerTimeoutMs(reason)
    if (timeoutMs !== undefined) {
      this.#link.warn(
        'timeout',
        `the broker closed the channel because a delivery was not settled within its consumer_timeout of ` +
          `${timeoutMs} ms; work that takes longer is delivered again beside itself`,
      )
    }
    const lost = [...epoch.unsettled.keys()]
    epoch.unsettled.clear()
    if (lost.length > 0) this.#options.onLost?.(lost)
  }

  /**
   * Takes the deliveries out of the window and tells the broker with as few frames as possible: all tags below the
   * oldest unsettled one in one frame (`multiple`), which also covers tags settled before, and the others each.
   */
  #settle(deliveries: readonly Delivery[], send: SendSettle): number {
    const epoch = this.#epoch
    if (epoch === undefined || epoch.lost) return 0
    const tags: number[] = []
    for (const delivery of deliveries) {
      const tag = epoch.unsettled.get(delivery)
      if (tag === undefined) continue
      epoch.unsettled.delete(delivery)
      tags.push(tag)
    }
    const [oldest = Number.POSITIVE_INFINITY] = epoch.unsettled.values()
    let upTo = 0
    try {
      for (const tag of tags) {
        if (tag < oldest) upTo = Math.max(upTo, tag)
        else this.#send(epoch, tag, false, send)
      }
      if (upTo > 0) this.#send(epoch, upTo, true, send)
    } catch {
      // The channel is closed and its loss is about to be told: nothing of this reached the broker for sure.
      return 0
    }
    return tags.length
  }

  #send(epoch: Epoch, tag: number, multiple: boolean, send: SendSettle): void {
    send(epoch.channel, { fields: { deliveryTag: tag } }, multiple)
    epoch.frames += 1
  }
}

type SendSettle = (channel: AmqpChannel, tag: AmqpTag, multiple: boolean) => void
