/**
 * Broker: RabbitMQ for drills that name queues, with a virtual host for each worker, so that runs do not mix.
 *
 * @module
 */

import { startRabbit } from '../../testing/services/rabbitmq.ts'
import { findRabbit } from '../../testing/services/rabbitmq-install.ts'
import type { Drill } from '../file/checked.ts'
import type { MessageDelivery } from '../file/format.ts'
import type { Address } from '../process/gateway.ts'
import { type Permissions, refuseHost } from './refuse.ts'
import { type Amqp, type AmqpChannel, vendor } from './vendors.ts'

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
  /** Messages that wait to be delivered. */
  ready(queue: string): Promise<number>
  /** Takes everything from a queue; how many different messages it held. */
  drain(queue: string): Promise<number>
  /** Gives it back, emptied. */
  release(): Promise<void>
}

/** @param workers - Virtual hosts to make, when the broker is ours. */
export async function openBroker(
  drill: Drill,
  url: string | undefined,
  workers: number,
  permissions: Permissions,
): Promise<Broker | undefined> {
  if (drill.queues.length === 0) return undefined
  const amqp = await vendor<Amqp>('amqplib', drill.path)
  if (url !== undefined) {
    refuseHost(url, 'the broker', permissions)
    return broker(amqp, drill, url, [decodeURIComponent(new URL(url).pathname.slice(1)) || '/'], {
      how: 'the broker that AMQP_URL names',
      stop: async () => {},
    })
  }
  const found = await findRabbit({ url: false })
  if (found.kind !== 'server') {
    const reason = found.kind === 'none' ? found.reason : ''
    throw new TypeError(`the drill names queues and needs RabbitMQ: ${reason}`)
  }
  const node = await startRabbit({ server: found.server })
  const names = ['/', ...Array.from({ length: workers - 1 }, (_, index) => `drill-${index + 2}`)]
  for (const name of names.slice(1)) {
    await node.ctl('add_vhost', name)
    await node.ctl('set_permissions', '-p', name, 'guest', '.*', '.*', '.*')
  }
  return broker(amqp, drill, node.url, names, { how: 'a private RabbitMQ node', stop: () => node.stop() })
}

async function broker(
  amqp: Amqp,
  drill: Drill,
  url: string,
  names: readonly string[],
  { how, stop }: { how: string; stop: () => Promise<void> },
): Promise<Broker> {
  const urlOf = (vhost: string): string => {
    const led = new URL(url)
    led.pathname = `/${encodeURIComponent(vhost)}`
    return led.href
  }
  const all = await Promise.all(
    names.map(async (name) => {
      const connection = await amqp.connect(urlOf(name))
      connection.on('error', () => {})
      return { name, connection, channel: await connection.createConfirmChannel() }
    }),
  )
  const free = [...all]
  const waiting: ((vhost: (typeof all)[number]) => void)[] = []
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
      const vhost = free.pop() ?? (await new Promise<(typeof all)[number]>((resolve) => waiting.push(resolve)))
      const { channel, name } = vhost
      await fresh(channel)
      return {
        name,
        url: urlOf(name),
        publish: (message) => publish(channel, message),
        ready: async (queue) => (await channel.checkQueue(queue)).messageCount,
        drain: (queue) => drain(channel, queue),
        async release() {
          const next = waiting.shift()
          if (next === undefined) free.push(vhost)
          else next(vhost)
        },
      }
    },
    async close() {
      await Promise.allSettled(all.map(({ connection }) => connection.close()))
      await stop()
    },
  }
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

async function drain(channel: AmqpChannel, queue: string): Promise<number> {
  const different = new Set<string>()
  for (;;) {
    const message = await channel.get(queue, { noAck: true })
    if (message === false) return different.size
    different.add(message.properties.messageId ?? message.content.toString('base64'))
  }
}
