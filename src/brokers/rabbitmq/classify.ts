/**
 * What an error of channel or connection means: one table, so that one message's fault is never taken for an outage,
 * nor an outage for a message's fault.
 *
 * @module
 */

import type { AmqpError } from './amqp.ts'

const BASIC_CLASS = 60
const PUBLISH_METHOD = 40
const PRECONDITION_FAILED = 406
const ACCESS_REFUSED = 403
const REASON_LENGTH_MAX = 300

/**
 * Whose fault a lost channel was.
 * - `size`: a message over the broker's max_message_size; those above the limit can never be sent.
 * - `topic`: this connection's user may not publish under that topic; counts against those messages only.
 * - `message`: some message on its way, but the broker does not say which.
 * - `none`: connection, channel or set-up; counts for nobody.
 */
export type Blame =
  | { readonly kind: 'size'; readonly bytesMax: number }
  | { readonly kind: 'topic'; readonly topic: string }
  | { readonly kind: 'message' | 'none' }

/** Reads the broker's words on a closed channel. They are the same from RabbitMQ 3.8 to 4.x. */
export function blameOf(error: AmqpError | undefined): Blame {
  if (error === undefined) return { kind: 'none' }
  const size = /message size \d+ is larger than configured max size (\d+)/.exec(error.message)
  if (size !== null) return { kind: 'size', bytesMax: Number(size[1]) }
  if (error.code === ACCESS_REFUSED) {
    const topic = /access to topic '(.*)' in exchange/.exec(error.message)
    return topic?.[1] === undefined ? { kind: 'none' } : { kind: 'topic', topic: topic[1] }
  }
  const byPublish = error.classId === BASIC_CLASS && error.methodId === PUBLISH_METHOD
  return byPublish && error.code === PRECONDITION_FAILED ? { kind: 'message' } : { kind: 'none' }
}

/** The limit in milliseconds when the broker closed the channel because a delivery was held too long (B69). */
export function consumerTimeoutMs(reason: string): number | undefined {
  const match = /delivery acknowledgement on channel \d+ timed out\. Timeout value used: (\d+) ms/.exec(reason)
  return match === null ? undefined : Number(match[1])
}

/** One line for people. AMQP errors name things and codes, never a payload. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return 'unknown error'
  const code = 'code' in error && typeof error.code === 'string' ? error.code : error.name
  return (error.message === '' ? code : error.message).replace(/\s+/g, ' ').slice(0, REASON_LENGTH_MAX)
}
