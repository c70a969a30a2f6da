/**
 * Gateway: everything that one process of the handler says to the outside goes through here.
 *
 * It has two doors. Database and broker are reached by the addresses that the process is given when it starts, before it
 * is known for which run; where they lead is decided when a run takes the process. Every other connection is brought
 * here by the process itself (./outgoing.ts), which tells from which port it comes and where it wanted to go.
 *
 * @module
 */

import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { bounded } from '../../shared/waiting.ts'
import { hasLiveKey } from '../place/refuse.ts'
import { amqpCodec } from '../wire/amqp.ts'
import type { Codec } from '../wire/codec.ts'
import { httpCodec } from '../wire/http.ts'
import { postgresCodec } from '../wire/postgres.ts'
import { type Decide, type Link, link } from './link.ts'
import { type TlsWish, unpacked } from './outgoing-tls.ts'

export interface Address {
  readonly host: string
  readonly port: number
}

/** Where the process itself wanted to go, and whether with TLS. */
export interface Target extends Address {
  readonly tls?: TlsWish | undefined
}

/** Where the connections of one run lead. */
export interface Route {
  readonly postgres: Address
  readonly database: string
  readonly amqp?: Address | undefined
  readonly vhost: string
}

export interface Gateway {
  /** Port that stands for the database and the broker: their protocols begin differently. */
  readonly port: number
  /** Port to which the process brings its other connections. */
  readonly outgoingPort: number
  /** Asked at every step from now on. */
  decide: Decide
  /** Since when nothing has passed, by performance.now(). */
  readonly quietSince: number
  /** Steps that are under way. */
  readonly waiting: number
  /** Messages handed to the process and not acknowledged. */
  readonly unsettled: number
  /** Whether the process was about to send a live key of a provider. It went nowhere. */
  readonly sentLiveKey: boolean
  /** Acknowledgements that have reached the broker. */
  readonly acknowledged: number
  lead(route: Route): void
  /** The process has opened a connection from this port of its own and wanted to reach `target`. */
  expect(localPort: number, target: Target): void
  /** The broker loses the process: it delivers again what was not acknowledged. */
  abandonBroker(): void
  close(): Promise<void>
}

const CLOSE_MS = 2_000
/** Longest wait for the process to say where an outgoing connection wants to go. */
const TARGET_MS = 5_000

export async function openGateway(): Promise<Gateway> {
  const links = new Set<Link>()
  const brokerLinks = new Set<Link>()
  const targets = new Map<number, (target: Target) => void>()
  const known = new Map<number, Target>()
  let route: Route | undefined
  let quietSince = performance.now()
  let current: Decide = () => 'pass'
  let acknowledged = 0
  let sentLiveKey = false
  const decide: Decide = (step, side) => {
    if (side === 'after' && step.kind === 'amqp' && step.label !== 'tx.commit' && step.answer?.text === 'sent') {
      if (!step.label.startsWith('publish')) acknowledged += 1
    }
    return current(step, side)
  }
  const onBytes = (): void => {
    quietSince = performance.now()
  }

  const join = (client: Socket, { host, port, tls }: Target, codec: Codec, first?: Buffer): Link => {
    const server =
      tls === undefined
        ? connect({ host, port, allowHalfOpen: true })
        : connectTls({ ...unpacked(tls), host, port, ALPNProtocols: ['http/1.1'] })
    const joined = link(client, server, codec, decide, onBytes)
    links.add(joined)
    void joined.closed.then(() => {
      links.delete(joined)
      brokerLinks.delete(joined)
    })
    if (first !== undefined) client.emit('data', first)
    return joined
  }

  const withoutLiveKeys = (codec: Codec): Codec => ({
    ...codec,
    *fromClient(bytes) {
      sentLiveKey ||= hasLiveKey(bytes.toString('latin1'))
      if (!sentLiveKey) yield* codec.fromClient(bytes)
    },
  })

  const wire = await listening((client) => {
    client.on('error', () => {})
    client.once('data', (first: Buffer) => {
      if (route === undefined) return client.destroy()
      const isBroker = first.toString('latin1', 0, 4) === 'AMQP'
      if (!isBroker) return join(client, route.postgres, postgresCodec(route.database), first)
      if (route.amqp === undefined) return client.destroy()
      return brokerLinks.add(join(client, route.amqp, amqpCodec(route.vhost), first))
    })
  })
  const outgoing = await listening((client) => {
    client.on('error', () => {})
    const { remotePort = 0 } = client
    const target = new Promise<Target>((resolve) => {
      const told = known.get(remotePort)
      if (told === undefined) targets.set(remotePort, resolve)
      else resolve(told)
    })
    client.pause()
    void bounded(target, TARGET_MS).then((result) => {
      known.delete(remotePort)
      targets.delete(remotePort)
      if (result.kind === 'timeout') return client.destroy()
      join(client, result.value, withoutLiveKeys(httpCodec()))
      return client.resume()
    })
  })

  return {
    port: portOf(wire),
    outgoingPort: portOf(outgoing),
    get decide() {
      return current
    },
    set decide(next) {
      current = next
    },
    get quietSince() {
      return quietSince
    },
    get waiting() {
      return [...links].reduce((sum, { waiting }) => sum + waiting, 0)
    },
    get unsettled() {
      return [...brokerLinks].reduce((sum, { codec }) => sum + (codec.unsettled ?? 0), 0)
    },
    get sentLiveKey() {
      return sentLiveKey
    },
    get acknowledged() {
      return acknowledged
    },
    lead(to) {
      route = to
    },
    expect(localPort, target) {
      const waiting = targets.get(localPort)
      if (waiting === undefined) known.set(localPort, target)
      else waiting(target)
    },
    abandonBroker() {
      for (const joined of brokerLinks) joined.abandon()
      brokerLinks.clear()
    },
    async close() {
      for (const server of [wire, outgoing]) server.close()
      for (const joined of links) joined.reset()
      await Promise.all([...links].map(({ closed }) => bounded(closed, CLOSE_MS)))
    },
  }
}

async function listening(onConnection: (client: Socket) => void): Promise<Server> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, onConnection)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server
}

const portOf = (server: Server): number => (server.address() as AddressInfo).port
