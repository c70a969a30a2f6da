/**
 * Link: one connection of the handler's process, led to its server piece by piece.
 *
 * In front of a step and behind its answer the link asks what to do, and while it waits for that nothing more passes in
 * this direction. A process that dies meanwhile changes nothing about what it has sent before.
 *
 * @module
 */

import type { Socket } from 'node:net'
import type { Codec, Step } from '../wire/codec.ts'

export type Side = 'before' | 'after'

/** What becomes of the bytes at a step: on their way, or the connection is reset instead, or the server refuses. */
export type Decision = 'pass' | 'reset' | { readonly refuse: string }

export type Decide = (step: Step, side: Side) => Decision | Promise<Decision>

export interface Link {
  readonly codec: Codec
  /** Steps that are asked for and not answered. */
  readonly waiting: number
  readonly closed: Promise<void>
  /** The server hears that the client has gone; the client learns of it at its next step. */
  abandon(): void
  /** Resets both sides. */
  reset(): void
}

/** @param onBytes - Called for each packet of either side. */
export function link(client: Socket, server: Socket, codec: Codec, decide: Decide, onBytes: () => void): Link {
  let waiting = 0
  let over = false
  let abandoned = false
  const reset = (): void => {
    over = true
    client.resetAndDestroy()
    // Whatever was sent on before arrives first.
    server.end()
  }
  const write = (to: Socket, bytes: Buffer): Promise<void> =>
    new Promise((resolve) => {
      if (bytes.length === 0 || !to.writable || (abandoned && to === client)) resolve()
      else to.write(bytes, () => resolve())
    })

  const fromClient = async (bytes: Buffer): Promise<void> => {
    for (const piece of codec.fromClient(bytes)) {
      if (over) return
      const { asks } = piece
      if (asks === undefined) {
        await write(server, piece.bytes)
        continue
      }
      waiting += 1
      const decision = await decide(asks, 'before')
      // Whoever writes to a peer that has given it up is told so.
      if (decision === 'reset' || abandoned) return reset()
      const out = typeof decision === 'object' ? codec.refuse?.(asks, decision.refuse) : piece.bytes
      await write(server, out ?? piece.bytes)
      if (piece.oneWay === true) {
        asks.answer = { text: 'sent', failed: false, durable: true, inTransaction: false }
        waiting -= 1
        if ((await decide(asks, 'after')) === 'reset') return reset()
      }
    }
  }
  const fromServer = async (bytes: Buffer): Promise<void> => {
    for (const { bytes: part, answers } of codec.fromServer(bytes)) {
      if (over) return
      if (answers !== undefined) {
        waiting -= 1
        if ((await decide(answers, 'after')) === 'reset') return reset()
      }
      await write(client, part)
    }
  }

  let clientQueue = Promise.resolve()
  let serverQueue = Promise.resolve()
  client.on('data', (bytes: Buffer) => {
    onBytes()
    clientQueue = clientQueue.then(() => fromClient(bytes))
  })
  server.on('data', (bytes: Buffer) => {
    onBytes()
    serverQueue = serverQueue.then(() => fromServer(bytes))
  })
  // An end waits for what came before it.
  const clientGone = (): void => void clientQueue.then(() => server.end())
  const serverGone = (): void => void serverQueue.then(() => abandoned || client.end())
  client
    .on('end', clientGone)
    .on('close', clientGone)
    .on('error', () => {})
  server
    .on('end', serverGone)
    .on('close', serverGone)
    .on('error', () => {})
  return {
    codec,
    get waiting() {
      return over || client.destroyed ? 0 : waiting
    },
    closed: Promise.all([gone(client), gone(server)]).then(() => {}),
    abandon() {
      abandoned = true
      server.end()
    },
    reset,
  }
}

function gone(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    if (socket.destroyed) resolve()
    else socket.once('close', () => resolve())
  })
}
