/**
 * TCP proxy: sits between a client and its database or broker and makes the network fail at a chosen byte.
 *
 * Faults are armed with a pattern that is looked for in what the client sends, so that a test meets the window it
 * names (the COMMIT, a confirm's publish) instead of hoping for it, and each armed fault tells when it was met.
 * Nothing is decrypted: use it on connections without TLS.
 *
 * @module
 */

import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { bounded } from '../../shared/waiting.ts'
import { TAIL_CHARS, type TcpLink, tcpLink } from './tcp-link.ts'

/**
 * What the client must send: text (matched without regard to case, also across packets) or a function that gets each
 * packet.
 */
export type ClientBytes = string | ((packet: Buffer) => boolean)

/** A fault that waits for its bytes. */
export interface ArmedFault {
  /** Resolves when it was met on the first connection; for `swallow` when the server's answer came and was dropped. */
  readonly met: Promise<void>
  /** On how many connections it was met. */
  readonly count: number
  /** Takes it away; connections that have met it stay as they are. */
  disarm(): void
}

/** A fault that keeps bytes back until it is told to let them go. */
export interface HeldBytes extends ArmedFault {
  /** Delivers what was kept back, also when the client has gone by now. */
  release(): void
}

export interface TcpProxy {
  readonly port: number
  /** Connections open at this moment. */
  readonly open: number
  /** The same connection string, led through the proxy. */
  through(url: string): string
  /** Disarms every fault and listens again after {@link TcpProxy.refuse}. Connections that met a fault stay lost. */
  pass(): Promise<void>
  /**
   * The client's bytes arrive, the server does its work, and its answers from then on are dropped on that connection.
   * With `cut` (default true) the client's side is reset once the first answer was dropped; with false the client
   * waits for ever.
   */
  swallow(after: ClientBytes, options?: { readonly cut?: boolean | undefined }): ArmedFault
  /**
   * Keeps back the matching packet and everything the client sends after it until `release()`. When the client
   * goes meanwhile, the server does not hear of it before the bytes were delivered.
   */
  hold(from: ClientBytes): HeldBytes
  /** Resets the connection at the matching packet: before it reaches the server, or with `deliver` just after. */
  cutAt(at: ClientBytes, options?: { readonly deliver?: boolean | undefined }): ArmedFault
  /** Resets every open connection now, on both sides. */
  cut(): void
  /** Every open connection falls silent in both directions and neither side hears that the other has gone. */
  silence(): void
  /** Refuses new connections until `pass()`; open ones stay. */
  refuse(): void
  close(): Promise<void>
}

export interface TcpProxyOptions {
  readonly target: { readonly port: number; readonly host?: string | undefined }
}

/** Longest wait for connections to be gone when a proxy is closed, milliseconds. */
const CLOSE_BOUND_MS = 2_000

/** Starts a proxy on a free port of 127.0.0.1. */
export async function tcpProxy(options: TcpProxyOptions): Promise<TcpProxy> {
  const { port: targetPort, host = '127.0.0.1' } = options.target
  const links = new Set<TcpLink>()
  const rules = new Set<Rule>()
  const server = createServer({ allowHalfOpen: true }, (client) => {
    const link = tcpLink(client, connect({ port: targetPort, host, allowHalfOpen: true }), (from, packet) => {
      for (const rule of rules) {
        if (!rule.matches(from.tail, packet)) continue
        rule.act(from, packet)
        return true
      }
      return false
    })
    links.add(link)
    void link.closed.then(() => links.delete(link))
  })
  const listen = async (port: number): Promise<void> => {
    server.listen(port, '127.0.0.1')
    await once(server, 'listening')
  }
  await listen(0)
  const { port } = server.address() as AddressInfo

  const arm = (bytes: ClientBytes, act: (link: TcpLink, packet: Buffer, met: () => void) => void): ArmedFault => {
    const matches = matcher(bytes)
    let count = 0
    let resolve: () => void = () => {}
    const met = new Promise<void>((done) => {
      resolve = done
    })
    const onMet = (): void => {
      count += 1
      resolve()
    }
    const rule: Rule = { matches, act: (link, packet) => act(link, packet, onMet) }
    rules.add(rule)
    return {
      met,
      get count() {
        return count
      },
      disarm: () => void rules.delete(rule),
    }
  }

  return {
    port,
    get open() {
      return links.size
    },
    through(url) {
      const led = new URL(url)
      led.hostname = '127.0.0.1'
      led.port = String(port)
      return led.href
    },
    async pass() {
      rules.clear()
      if (!server.listening) await listen(port)
    },
    swallow(after, { cut = true } = {}) {
      return arm(after, (link, packet, met) => {
        link.dropAnswers(() => {
          if (cut) link.resetClient()
          met()
        })
        link.deliver(packet)
      })
    },
    hold(from) {
      const holding = new Set<TcpLink>()
      const fault = arm(from, (link, packet, met) => {
        link.keepBack(packet)
        holding.add(link)
        met()
      })
      const release = (): void => {
        fault.disarm()
        for (const link of holding) link.letGo()
        holding.clear()
      }
      return Object.defineProperties({ release }, Object.getOwnPropertyDescriptors(fault)) as HeldBytes
    },
    cutAt(at, { deliver = false } = {}) {
      return arm(at, (link, packet, met) => {
        if (deliver) {
          // A reset towards the server could overtake the packet; its side ends in good order instead.
          link.deliver(packet, () => {
            link.resetClient()
            met()
          })
        } else {
          link.reset()
          met()
        }
      })
    },
    cut() {
      for (const link of links) link.reset()
    },
    silence() {
      for (const link of links) link.silence()
    },
    refuse() {
      // Open connections keep close() waiting; listening ends at once.
      if (server.listening) server.close()
    },
    async close() {
      rules.clear()
      if (server.listening) server.close()
      for (const link of links) link.reset()
      // A socket that was half closed when it was reset may never say that it is closed.
      await Promise.all([...links].map((link) => bounded(link.closed, CLOSE_BOUND_MS)))
    },
  }
}

interface Rule {
  matches(tail: string, packet: Buffer): boolean
  act(link: TcpLink, packet: Buffer): void
}

function matcher(bytes: ClientBytes): Rule['matches'] {
  if (typeof bytes === 'function') return (_tail, packet) => bytes(packet)
  if (bytes === '' || bytes.length > TAIL_CHARS) {
    throw new TypeError(`the text to wait for takes 1 to ${TAIL_CHARS} characters`)
  }
  const text = bytes.toLowerCase()
  // At least one byte of the match lies in the new packet.
  const before = text.length - 1
  return (tail, packet) =>
    (tail.slice(Math.max(0, tail.length - before)) + packet.toString('latin1').toLowerCase()).includes(text)
}
