/**
 * A broker that only the torture has: every message arrives in the test process over a socket, in one order, and is
 * confirmed. What a killed or stopped relay had written before arrives too, late, as it does at a real broker.
 */
import { connect, createServer, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import type { Broker, ConnectionState, Publisher, PublisherOptions, PublishResult } from '../../src/broker/contract.ts'

export interface Arrival {
  readonly key: string
  readonly n: number
  readonly atMs: number
}

export interface Recorder {
  readonly port: number
  readonly arrivals: Arrival[]
  close(): void
}

/** Listens on a free port of 127.0.0.1. */
export async function startRecorder(): Promise<Recorder> {
  const arrivals: Arrival[] = []
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => sockets.delete(socket))
    const lines = createInterface({ input: socket })
    // A killed sender resets its connection, and the interface says so too.
    lines.on('error', () => {})
    lines.on('line', (line) => {
      const [tag = '', payload = ''] = line.split('\t')
      const { key, n } = JSON.parse(payload) as { key: string; n: number }
      arrivals.push({ key, n, atMs: performance.now() })
      socket.write(`${tag}\n`)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('the recorder does not listen')
  return {
    port: address.port,
    arrivals,
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}

/** The relay's side. */
export function recorderBroker(port: number): Broker {
  return { name: 'recorder', openPublisher: (options) => new RecorderPublisher(port, options) }
}

interface Unconfirmed {
  readonly settled: (result: PublishResult) => void
  readonly deadlineMs: number
}

class RecorderPublisher implements Publisher {
  readonly #options: PublisherOptions
  readonly #unconfirmed = new Map<string, Unconfirmed>()
  readonly #socket: Socket
  readonly #deadlines: NodeJS.Timeout
  #state: ConnectionState = { kind: 'closed', reason: 'connecting' }
  #tag = 0

  constructor(port: number, options: PublisherOptions) {
    this.#options = options
    this.#socket = connect(port, '127.0.0.1')
    this.#socket.setNoDelay(true)
    this.#socket.on('connect', () => this.#become({ kind: 'open' }))
    this.#socket.on('error', () => {})
    this.#socket.on('close', () => this.#become({ kind: 'closed', reason: 'the recorder has gone' }))
    const lines = createInterface({ input: this.#socket })
    lines.on('error', () => {})
    lines.on('line', (tag) => this.#settle(tag, { kind: 'confirmed' }))
    this.#deadlines = setInterval(() => {
      for (const [tag, { deadlineMs }] of this.#unconfirmed) {
        if (deadlineMs > performance.now()) return
        this.#settle(tag, { kind: 'disconnected', reason: 'no answer in time' })
      }
    }, 20)
  }

  get state(): ConnectionState {
    return this.#state
  }

  publish(message: { readonly payload: string | Uint8Array }, settled: (result: PublishResult) => void): void {
    this.#tag += 1
    this.#unconfirmed.set(String(this.#tag), {
      settled,
      deadlineMs: performance.now() + this.#options.publishTimeoutMs,
    })
    this.#socket.write(`${this.#tag}\t${String(message.payload)}\n`)
  }

  async ready(): Promise<void> {}

  async close(): Promise<void> {
    clearInterval(this.#deadlines)
    this.#socket.destroy()
  }

  #become(state: ConnectionState): void {
    this.#state = state
    this.#options.onState?.(state)
  }

  #settle(tag: string, result: PublishResult): void {
    const unconfirmed = this.#unconfirmed.get(tag)
    this.#unconfirmed.delete(tag)
    unconfirmed?.settled(result)
  }
}
