/**
 * AMQP 0-9-1: publishes, their confirms and acknowledgements, read off one connection.
 *
 * A publish is a step with its header and body; on a channel in confirm mode it is answered by the confirm, else it is
 * done when it has arrived. Opening connections, declaring and heartbeats are no steps.
 *
 * @module
 */

import type { Codec, Piece, Step } from './codec.ts'

const METHOD = 1
const HEADER = 2
const FRAME_END = 0xce
const id = (major: number, minor: number): number => major * 1_000 + minor
const CONNECTION_OPEN = id(10, 40)
const CHANNEL_CLOSE = id(20, 40)
const CONFIRM_SELECT = id(85, 10)
const CONSUME = id(60, 20)
const PUBLISH = id(60, 40)
const DELIVER = id(60, 60)
const GET_OK = id(60, 71)
const ACK = id(60, 80)
const REJECT = id(60, 90)
const NACK = id(60, 120)
const TX_COMMIT = id(90, 20)
/** Headers, bodies and heartbeats. */
const NO_METHOD = 0

interface Channel {
  /** Next delivery tag of a publish; undefined = not in confirm mode. */
  nextTag?: number | undefined
  readonly published: Map<number, Step>
  readonly delivered: Set<number>
  /** Consumers that acknowledge nothing. */
  readonly silent: Set<string>
}

/** @param vhost - Where connections of this run lead, whatever virtual host the client names. */
export function amqpCodec(vhost: string): Codec {
  let toServer: Buffer = Buffer.alloc(0)
  let toClient: Buffer = Buffer.alloc(0)
  let greeted = false
  /** A publish whose header or body has not come yet. */
  let publishing: { readonly step: Step; readonly parts: Buffer[]; readonly channel: number; left?: number } | undefined
  const channels = new Map<number, Channel>()
  const channelOf = (number: number): Channel => {
    const channel = channels.get(number) ?? { published: new Map(), delivered: new Set(), silent: new Set() }
    channels.set(number, channel)
    return channel
  }

  function* clientFrame(frame: Buffer): Generator<Piece> {
    const number = frame.readUInt16BE(1)
    const channel = channelOf(number)
    if (publishing !== undefined && publishing.channel === number && frame[0] !== METHOD) {
      publishing.parts.push(frame)
      const payload = frame.length - 8
      publishing.left = frame[0] === HEADER ? Number(frame.readBigUInt64BE(11)) : (publishing.left ?? 0) - payload
      if (publishing.left > 0) return
      const { step, parts } = publishing
      publishing = undefined
      yield { bytes: Buffer.concat(parts), asks: step, oneWay: channel.nextTag === undefined }
      return
    }
    const method = methodOf(frame)
    switch (method) {
      case CONNECTION_OPEN:
        yield { bytes: openFrame(vhost) }
        return
      case CONFIRM_SELECT:
        channel.nextTag = 1
        break
      case CONSUME: {
        const [, afterQueue] = shortString(frame, 13)
        const [consumer, afterTag] = shortString(frame, afterQueue)
        if (((frame[afterTag] ?? 0) & 2) !== 0) channel.silent.add(consumer)
        break
      }
      case CHANNEL_CLOSE:
        channel.delivered.clear()
        break
      case PUBLISH: {
        const [exchange, afterExchange] = shortString(frame, 13)
        const [routingKey] = shortString(frame, afterExchange)
        const step: Step = { kind: 'amqp', label: `publish ${exchange || routingKey}` }
        if (channel.nextTag !== undefined) {
          channel.published.set(channel.nextTag, step)
          channel.nextTag += 1
        }
        publishing = { step, parts: [frame], channel: number }
        return
      }
      case ACK:
      case NACK:
      case REJECT: {
        const tag = Number(frame.readBigUInt64BE(11))
        const multiple = method !== REJECT && ((frame[19] ?? 0) & 1) !== 0
        for (const delivered of channel.delivered) {
          if (delivered === tag || (multiple && (tag === 0 || delivered < tag))) channel.delivered.delete(delivered)
        }
        yield { bytes: frame, asks: { kind: 'amqp', label: method === ACK ? 'ack' : 'nack' }, oneWay: true }
        return
      }
      case TX_COMMIT:
        yield { bytes: frame, asks: { kind: 'amqp', label: 'tx.commit' }, oneWay: true }
        return
      default:
        break
    }
    yield { bytes: frame }
  }

  function* serverFrame(frame: Buffer): Generator<Piece> {
    const channel = channelOf(frame.readUInt16BE(1))
    const method = methodOf(frame)
    if (method === DELIVER) {
      const [consumer, afterTag] = shortString(frame, 11)
      if (!channel.silent.has(consumer)) channel.delivered.add(Number(frame.readBigUInt64BE(afterTag)))
    } else if (method === GET_OK) {
      channel.delivered.add(Number(frame.readBigUInt64BE(11)))
    } else if (method === ACK || method === NACK) {
      const tag = Number(frame.readBigUInt64BE(11))
      const multiple = ((frame[19] ?? 0) & 1) !== 0
      const settled = [...channel.published].filter(([published]) => published === tag || (multiple && published < tag))
      for (const [index, [published, step]] of settled.entries()) {
        channel.published.delete(published)
        const failed = method === NACK
        step.answer = { text: failed ? 'nack' : 'confirm', failed, durable: !failed, inTransaction: false }
        yield { bytes: index === settled.length - 1 ? frame : Buffer.alloc(0), answers: step }
      }
      if (settled.length > 0) return
    }
    yield { bytes: frame }
  }

  return {
    get unsettled() {
      let count = 0
      for (const { delivered } of channels.values()) count += delivered.size
      return count
    },
    *fromClient(bytes) {
      toServer = toServer.length === 0 ? bytes : Buffer.concat([toServer, bytes])
      if (!greeted && toServer.length >= 8) {
        greeted = true
        yield { bytes: toServer.subarray(0, 8) }
        toServer = toServer.subarray(8)
      }
      for (let frame = greeted ? frameOf(toServer) : undefined; frame !== undefined; frame = frameOf(toServer)) {
        toServer = toServer.subarray(frame.length)
        yield* clientFrame(frame)
      }
    },
    *fromServer(bytes) {
      toClient = toClient.length === 0 ? bytes : Buffer.concat([toClient, bytes])
      for (let frame = frameOf(toClient); frame !== undefined; frame = frameOf(toClient)) {
        toClient = toClient.subarray(frame.length)
        yield* serverFrame(frame)
      }
    },
  }
}

/** The first frame, when all of it is there: type, channel, size, payload, end mark. */
function frameOf(bytes: Buffer): Buffer | undefined {
  if (bytes.length < 8) return undefined
  const length = bytes.readUInt32BE(3) + 8
  return bytes.length < length ? undefined : bytes.subarray(0, length)
}

function methodOf(frame: Buffer): number {
  return frame[0] === METHOD ? id(frame.readUInt16BE(7), frame.readUInt16BE(9)) : NO_METHOD
}

/** A string with its length in front, and where the next field begins. */
function shortString(bytes: Buffer, at: number): readonly [string, number] {
  const end = at + 1 + (bytes[at] ?? 0)
  return [bytes.toString('utf8', at + 1, end), end]
}

function openFrame(vhost: string): Buffer {
  const name = Buffer.from(vhost)
  const payload = Buffer.concat([Buffer.from([0, 10, 0, 40, name.length]), name, Buffer.from([0, 0])])
  const head = Buffer.alloc(7)
  head[0] = METHOD
  head.writeUInt32BE(payload.length, 3)
  return Buffer.concat([head, payload, Buffer.from([FRAME_END])])
}
