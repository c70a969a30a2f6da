/**
 * Broker: RabbitMQ for drills that name queues, with a virtual host for each worker, so that runs do not mix.
 *
 * @module
 */

import { type RabbitService, startRabbit } from '../../testing/services/rabbitmq.ts'
import { findRabbit } from '../../testing/services/rabbitmq-install.ts'
import type { Drill } from '../file/checked.ts'
import type { MessageDelivery } from '../file/format.ts'
import type { Address } from '../process/gateway.ts'
import { type Permissions, refuseHost } from './refuse.ts'
import { type Amqp, type AmqpChannel, type AmqpConnection, vendor } from './vendors.ts'

export interface Broker {
  readonly address: Address
  readonly how: string
  /** Connection string, as the handler's processes need it. */
  readonly url: string
  /** Takes a virtual host with the drill's queues, empty. Waits when all are taken. */
  take(): Promise<Vhost>
  /** How many runs can go on at once. */
  readonly vhosts: number
  close(): Promise<void>
}

/** What one run does with the broker, without any fault in between. */
export interface Vhost {
  readonly name: string
  readonly url: string
  publish(message: MessageDelivery): Promise<void>
  /** How many were published in this run. */
  readonly published: number
  /** Messages that wait to be delivered. */
  ready(queue: string): Promise<number>
  /** Takes everything from a queue; how many different messages it has held in this run. */
  drain(queue: string): Promise<number>
  /** Gives it back, emptied. */
  release(): Promise<void>
}

/**
 * @param urls - Virtual hosts of one broker that exists; none = a broker of our own.
 * @param workers - Virtual hosts to make, when the broker is ours.
 */
export async function openBroker(
  drill: Drill,
  urls: readonly string[],
  workers: number,
  permissions: Permissions,
): Promise<Broker | undefined> {
  if (drill.queues.length === 0) return undefined
  const amqp = await vendor<Amqp>('amqplib', drill.path)
  const [first] = urls
  if (first !== undefined) {
    refuseHost(first, 'the broker', permissions)
    const names = urls.map((url) => decodeURIComponent(new URL(url).pathname.slice(1)) || '/')
    return broker(amqp, drill, first, names, {
      how: 'the broker that AMQP_URL names',
      others: Promise.resolve(),
      stop: async () => {},
    })
  }
  const found = await findRabbit({ url: false })
  if (found.kind !== 'server') {
    const reason = found.kind === 'none' ? found.reason : ''
    throw new TypeError(`the drill names queues and needs RabbitMQ: ${reason}`)
  }
  const node = await startRabbit({ server: found.server })
  const others = Array.from({ length: workers - 1 }, (_, index) => `drill-${index + 2}`)
  return broker(amqp, drill, node.url, ['/', ...others], {
    how: 'a private RabbitMQ node',
    // Starting the control program takes seconds of a processor, so it is started once, and the first run does not wait.
    others: others.length === 0 ? Promise.resolve() : addVhosts(node, others),
    stop: () => node.stop(),
  })
}

async function addVhosts(node: RabbitService, names: readonly string[]): Promise<void> {
  const terms = names.map(
    (name) =>
      `rabbit_vhost:add(<<"${name}">>, <<"drill">>), ` +
      `rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"${name}">>, <<".*">>, <<".*">>, <<".*">>, <<"drill">>)`,
  )
  await node.ctl('eval', `${terms.join(', ')}.`)
}

async function broker(
  amqp: Amqp,
  drill: Drill,
  url: string,
  names: readonly string[],
  { how, others, stop }: { how: string; others: Promise<void>; stop: () => Promise<void> },
): Promise<Broker> {
  const urlOf = (vhost: string): string => {
    const led = new URL(url)
    led.pathname = `/${encodeURIComponent(vhost)}`
    return led.href
  }
  const open = async (name: string): Promise<OpenVhost> => {
    const connection = await amqp.connect(urlOf(name))
    connection.on('error', () => {})
    return { name, connection, channel: await connection.createConfirmChannel() }
  }
  const [first = '/', ...rest] = names
  const all: OpenVhost[] = [await open(first)]
  const free = [...all]
  const waiting: ((vhost: OpenVhost) => void)[] = []
  const giveBack = (vhost: OpenVhost): void => {
    const next = waiting.shift()
    if (next === undefined) free.push(vhost)
    else next(vhost)
  }
  const opening = others.then(async () => {
    for (const vhost of await Promise.all(rest.map(open))) {
      all.push(vhost)
      giveBack(vhost)
    }
  })
  opening.catch(() => {})
  const fresh = async (channel: AmqpChannel): Promise<void> => {
    for (const queue of drill.queues) {
      await channel.deleteQueue(queue)
      await channel.assertQueue(queue, { durable: true })
    }
  }
  const { hostname, port } = new URL(url)
  return {
    address: { host: hostname.replaceAll(/[[\]]/g, ''), port: Number(port || 5672) },
    how,
    url,
    vhosts: names.length,
    async take() {
      const vhost = free.pop() ?? (await new Promise<OpenVhost>((resolve) => waiting.push(resolve)))
      const { channel, name } = vhost
      await fresh(channel)
      let published = 0
      const drained = new Map<string, Set<string>>()
      return {
        name,
        url: urlOf(name),
        get published() {
          return published
        },
        publish(message) {
          published += 1
          return publish(channel, message)
        },
        ready: async (queue) => (await channel.checkQueue(queue)).messageCount,
        async drain(queue) {
          const different = drained.get(queue) ?? new Set()
          drained.set(queue, different)
          await drain(channel, queue, different)
          return different.size
        },
        async release() {
          giveBack(vhost)
        },
      }
    },
    async close() {
      await opening.catch(() => {})
      await Promise.allSettled(all.map(({ connection }) => connection.close()))
      await stop()
    },
  }
}

interface OpenVhost {
  readonly name: string
  readonly connection: AmqpConnection
  readonly channel: AmqpChannel
}

function publish(channel: AmqpChannel, { queue, body, messageId, headers }: MessageDelivery): Promise<void> {
  const content = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body ?? {}))
  const contentType = typeof body === 'string' ? 'text/plain' : 'application/json'
  return new Promise((resolve, reject) => {
    channel.publish('', queue, content, { persistent: true, messageId, headers, contentType }, (error) => {
      if (error === null || error === undefined) resolve()
      else reject(new Error(`the message could not be published to ${queue}`))
    })
  })
}

async function drain(channel: AmqpChannel, queue: string, into: Set<string>): Promise<void> {
  for (;;) {
    const message = await channel.get(queue, { noAck: true })
    if (message === false) return
    into.add(message.properties.messageId ?? message.content.toString('base64'))
  }
}
