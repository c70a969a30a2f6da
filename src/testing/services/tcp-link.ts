/**
 * One connection through the TCP proxy: a client, the way on to the server, and what is done to the bytes between.
 *
 * @module
 */

import type { Socket } from 'node:net'

export interface TcpLink {
  /** Resolves when both sides are gone. */
  readonly closed: Promise<void>
  /** What the client sent lately, lower case, for patterns that lie across packets. */
  readonly tail: string
  /** Passes bytes on to the server; `sent` is called when they have left. */
  deliver(bytes: Buffer, sent?: () => void): void
  /** From now on the server's answers are dropped; `first` is called at the first one. */
  dropAnswers(first: () => void): void
  /** Keeps these bytes and all later ones of the client back; the server does not hear of the client's end either. */
  keepBack(bytes: Buffer): void
  /** Delivers what was kept back, then goes on as before. */
  letGo(): void
  /** Nothing passes any more and neither side hears of the other's end. */
  silence(): void
  /** Resets the client's side only; the server's side ends in good order. */
  resetClient(): void
  /** Resets both sides. */
  reset(): void
}

/** Characters that `tail` keeps; a text pattern cannot be longer. */
export const TAIL_CHARS = 64

/** Joins the two sockets. `onPacket` sees each packet of the client first and returns true when it has dealt with it. */
export function tcpLink(client: Socket, server: Socket, onPacket: (link: TcpLink, packet: Buffer) => boolean): TcpLink {
  let tail = ''
  let kept: Buffer[] | undefined
  let clientEnded = false
  let silent = false
  let onDropped: (() => void) | undefined

  const pass = (from: Socket, to: Socket, bytes: Buffer, sent?: () => void): void => {
    if (!to.writable) return
    if (!to.write(bytes, sent)) {
      from.pause()
      to.once('drain', () => from.resume())
    }
  }
  const link: TcpLink = {
    closed: Promise.all([gone(client), gone(server)]).then(() => {}),
    get tail() {
      return tail
    },
    deliver: (bytes, sent) => pass(client, server, bytes, sent),
    dropAnswers(first) {
      onDropped = () => {
        onDropped = () => {}
        first()
      }
    },
    keepBack(bytes) {
      kept = [bytes]
    },
    letGo() {
      const bytes = Buffer.concat(kept ?? [])
      kept = undefined
      pass(client, server, bytes)
      if (clientEnded) server.end()
    },
    silence() {
      silent = true
    },
    resetClient: () => void client.resetAndDestroy(),
    reset() {
      client.resetAndDestroy()
      server.resetAndDestroy()
    },
  }

  client.on('data', (packet: Buffer) => {
    if (silent) return
    if (kept !== undefined) {
      kept.push(packet)
      return
    }
    if (!onPacket(link, packet)) link.deliver(packet)
    tail = (tail + packet.toString('latin1').toLowerCase()).slice(-TAIL_CHARS)
  })
  server.on('data', (packet: Buffer) => {
    if (silent) return
    if (onDropped === undefined) pass(server, client, packet)
    else onDropped()
  })
  const clientIsGone = (): void => {
    clientEnded = true
    if (!silent && kept === undefined) server.end()
  }
  const serverIsGone = (): void => {
    if (!silent && onDropped === undefined) client.end()
  }
  client.on('end', clientIsGone).on('close', clientIsGone).on('error', ignore)
  server.on('end', serverIsGone).on('close', serverIsGone).on('error', ignore)
  return link
}

function gone(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()))
}

const ignore = (): void => {}
