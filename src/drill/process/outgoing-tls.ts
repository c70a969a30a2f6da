/**
 * Outgoing TLS: loaded in the handler's process; a call over TLS goes to the drill's gateway in the clear, and the gateway
 * does the TLS, with the same certificates and the same distrust. So calls over https are seen and cut off as those over
 * http are.
 *
 * What cannot be handed over keeps its own TLS and is not seen: HTTP/2, checks and contexts made by the handler's own code,
 * and TLS inside of another connection (proxies).
 *
 * @module
 */

import { syncBuiltinESMExports } from 'node:module'
import { isIP, Socket } from 'node:net'
import tls from 'node:tls'

/** What the gateway needs to speak TLS in the handler's place. Binary values are base64. */
export type TlsWish = Readonly<Record<string, unknown>>

const HANDED_OVER = [
  'ca',
  'cert',
  'key',
  'pfx',
  'passphrase',
  'servername',
  'rejectUnauthorized',
  'minVersion',
] as const
const NOT_HANDED_OVER = ['socket', 'secureContext', 'checkServerIdentity', 'pskCallback', 'path'] as const

const wishes = new WeakMap<Socket, TlsWish>()

/** What the gateway is asked for with this connection; undefined = no TLS. */
export const wishOf = (socket: Socket): TlsWish | undefined => wishes.get(socket)

export function bringTls(): void {
  const original = tls.connect as (...args: unknown[]) => Socket
  const replaced = (...args: unknown[]): Socket => {
    const { options, callback } = sortedOut(args)
    if (!canBeHandedOver(options)) return original.apply(tls, args)
    const socket = new Socket()
    wishes.set(socket, wishFrom(options))
    Object.assign(socket, LOOKS)
    if (typeof callback === 'function') socket.once('secureConnect', callback as () => void)
    socket.once('connect', () => socket.emit('secureConnect'))
    socket.connect({
      host: hostOf(options),
      port: Number(options['port']),
      ...('lookup' in options ? { lookup: options['lookup'] as never } : {}),
    })
    return socket
  }
  Reflect.set(tls, 'connect', replaced)
  syncBuiltinESMExports()
}

/** The parts of a TLSSocket at which clients look. */
const LOOKS = {
  encrypted: true,
  authorized: true,
  authorizationError: null,
  alpnProtocol: 'http/1.1',
  getPeerCertificate: () => ({}),
  getCipher: () => ({ name: 'drill', standardName: 'drill', version: 'TLSv1.3' }),
  getProtocol: () => 'TLSv1.3',
  getSession: () => undefined,
  isSessionReused: () => false,
  setServername: () => {},
}

type Options = Readonly<Record<string, unknown>>

function sortedOut(args: readonly unknown[]): { readonly options: Options; readonly callback: unknown } {
  const callback = args.findLast((arg) => typeof arg === 'function')
  const objects = args.filter((arg): arg is Options => typeof arg === 'object' && arg !== null)
  const [port, host] = args
  const named = typeof port === 'object' ? {} : { port, ...(typeof host === 'string' ? { host } : {}) }
  return { options: Object.assign({}, named, ...objects) as Options, callback }
}

function canBeHandedOver(options: Options): boolean {
  const { ALPNProtocols: protocols } = options
  const http1 = !Array.isArray(protocols) || protocols.length === 0 || protocols.includes('http/1.1')
  return http1 && NOT_HANDED_OVER.every((name) => options[name] === undefined || options[name] === null)
}

const hostOf = ({ host }: Options): string => (typeof host === 'string' ? host : 'localhost')

function wishFrom(options: Options): TlsWish {
  const host = hostOf(options)
  const wish: Record<string, unknown> = {
    rejectUnauthorized: process.env['NODE_TLS_REJECT_UNAUTHORIZED'] !== '0',
    ...(isIP(host) === 0 ? { servername: host } : {}),
  }
  for (const name of HANDED_OVER) {
    const value = options[name]
    // An agent says '' for a host that is an address.
    if (value !== undefined && value !== null && value !== '') wish[name] = packed(value)
  }
  return wish
}

function packed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(packed)
  if (value instanceof Uint8Array) return { base64: Buffer.from(value).toString('base64') }
  return value
}

/** The options as the gateway hands them to `tls.connect`. */
export function unpacked(wish: TlsWish): Record<string, unknown> {
  const open = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(open)
    if (typeof value === 'object' && value !== null && 'base64' in value) {
      return Buffer.from(String(value.base64), 'base64')
    }
    return value
  }
  return Object.fromEntries(Object.entries(wish).map(([name, value]) => [name, open(value)]))
}
