/**
 * Outgoing: loaded first in the handler's process; brings its connections to the drill's gateway, so that calls with
 * fetch, http or any other client can be seen and cut off, and refuses those that leave the machine.
 *
 * It changes where `Socket.connect` leads, which every client of Node.js uses. What is named in `hosts` is let through.
 *
 * @module
 */

import { Socket } from 'node:net'
import { TLSSocket } from 'node:tls'
import { bringTls, type TlsWish, wishOf } from './outgoing-tls.ts'

/** Options that the drill gives the process in DRILL_OUTGOING, as JSON. */
export interface OutgoingOptions {
  /** Ports of the gateway. */
  readonly wirePort: number
  readonly outgoingPort: number
  /** Hosts outside of this machine that the drill's user allows by name. */
  readonly hosts: readonly string[]
}

interface ConnectOptions {
  readonly port?: number | string
  readonly host?: string
  readonly path?: string | null
}

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|)$/i

/** @param tell - Says to the drill from which port a connection comes and where it wanted to go. */
export function bringOutgoing(
  { wirePort, outgoingPort, hosts }: OutgoingOptions,
  tell: (message: {
    readonly kind: 'outgoing'
    readonly localPort: number
    readonly host: string
    readonly port: number
    readonly tls?: TlsWish | undefined
  }) => void,
): void {
  bringTls()
  const original = Reflect.get(Socket.prototype, 'connect') as (...args: unknown[]) => Socket
  Reflect.set(Socket.prototype, 'connect', function connectThroughDrill(this: Socket, ...args: unknown[]) {
    // net.connect() hands its arguments over as one array that is already sorted out.
    const [sorted] = args
    const isSorted = Array.isArray(sorted)
    const [options, callback] = isSorted ? (sorted as [ConnectOptions, unknown]) : sortedOut(args)
    // Agents of node:http say null.
    const path = options.path ?? undefined
    const host = options.host ?? 'localhost'
    const port = Number(options.port)
    if (path !== undefined && !/\.s\.PGSQL\.\d+$/.test(path)) return original.apply(this, args)
    if (path !== undefined || (!LOOPBACK.test(host) && !hosts.includes(host))) return refused(this, path ?? host)
    if (!LOOPBACK.test(host) && this instanceof TLSSocket) return original.apply(this, args)
    if (LOOPBACK.test(host) && (port === wirePort || this instanceof TLSSocket)) return original.apply(this, args)
    this.prependOnceListener('connect', () => {
      if (this.localPort !== undefined)
        tell({ kind: 'outgoing', localPort: this.localPort, host, port, tls: wishOf(this) })
    })
    const led = { ...options, host: '127.0.0.1', port: outgoingPort }
    if (!isSorted) return original.call(this, led, callback)
    return original.call(this, Object.assign([led, callback], marks(sorted)))
  })
}

function sortedOut(args: readonly unknown[]): [ConnectOptions, unknown] {
  const callback = args.findLast((arg) => typeof arg === 'function')
  const [first, second] = args
  if (typeof first === 'object' && first !== null) return [first, callback]
  if (typeof first === 'string' && !/^\d+$/.test(first)) return [{ path: first }, callback]
  return [{ port: Number(first), ...(typeof second === 'string' ? { host: second } : {}) }, callback]
}

/** The mark by which Socket.connect knows arguments that are sorted out. */
function marks(sorted: unknown[]): Record<symbol, unknown> {
  return Object.fromEntries(Object.getOwnPropertySymbols(sorted).map((mark) => [mark, Reflect.get(sorted, mark)]))
}

function refused(socket: Socket, where: string): Socket {
  const error = new Error(
    `the drill refuses a connection to ${where}: it is not on this machine; name the host in \`hosts\` (--allow-host) to allow it`,
  )
  process.nextTick(() => socket.destroy(Object.assign(error, { code: 'DRILL_REFUSED' })))
  return socket
}
