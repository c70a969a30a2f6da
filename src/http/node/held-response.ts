/**
 * Held response: a `ServerResponse` on which a handler answers as always, while nothing of it leaves the process.
 *
 * Frameworks hand out the real object and answer in many ways (`end`, `pipe`, `sendFile`, error handlers), and all of
 * them end in the few methods that are replaced here. So one file serves them all. The first complete answer counts;
 * whatever comes later is dropped without an error, because an error would make a framework cut the connection.
 *
 * A caller that hangs up does not end the work: as long as the answer is held, the response shows no sign of it.
 *
 * What is laid on a response is the same function for all of them, is never taken off again, and asks what the response
 * is held by: functions and getters of its own, or a deleted member, would give every response a hidden class of its own,
 * and make all code of node and the framework that touches it slow.
 *
 * @module
 */

import { type ServerResponse, STATUS_CODES } from 'node:http'
import {
  groupedHeaders,
  type HeaderList,
  type Produced,
  sharedHeaders,
  type UnstorableReason,
  type WholeResponse,
} from '../response.ts'

const HEADER_WRITERS = ['setHeader', 'appendHeader', 'removeHeader', 'setHeaders'] as const

/** What a response is held by. */
const HELD = Symbol('held')

type Callback = (error?: Error | null) => void

/**
 * - `holding`: the handler is answering.
 * - `ended`: its answer is complete and waits for the commit.
 * - `open`: released; what the handler does goes out.
 * - `dropped`: something else is sent; what the handler does is dropped.
 */
type Phase = 'holding' | 'ended' | 'open' | 'dropped'

export interface HoldOptions {
  /** Largest body that is held, bytes. */
  readonly bytesMax: number
  /** Whether an answer that cannot be kept may go out all the same. */
  readonly passUnstorable: boolean
}

export class HeldResponse {
  /**
   * The handler's answer once it is complete, or known to be one that cannot be kept. Rejects when the handler, or the
   * framework for it, has cut it off: then there will be none.
   */
  readonly produced: Promise<Produced>
  readonly #response: ServerResponse
  readonly #options: HoldOptions
  readonly #native: Native
  /** What lay on the response before the handler started: headers of outer layers. */
  readonly #outer: readonly (readonly [string, number | string | string[]])[]
  #tell: (produced: Produced) => void = () => {}
  #giveUp: (error: Error) => void = () => {}
  #phase: Phase = 'holding'
  #headed = false
  #told = false
  #chunks: Buffer[] = []
  #size = 0
  #status = 200
  #ended = false
  #needDrain = false
  #frozen = false
  #trailers: Parameters<ServerResponse['addTrailers']>[0][] = []
  /** The caller hung up while the answer was held. */
  #hungUp = false
  /** The server has closed an idle connection: a held answer looks idle. */
  #timedOut = false
  /** Cut off by the handler after a part of it was told. */
  #cut = false
  #socket: ServerResponse['socket'] = null

  constructor(response: ServerResponse, options: HoldOptions) {
    this.#response = response
    this.#options = options
    this.produced = new Promise((resolve, reject) => {
      this.#tell = resolve
      this.#giveUp = reject
    })
    // Whoever waits for it may have stopped waiting.
    this.produced.catch(() => {})
    this.#native = nativeOf(response)
    this.#outer = headerEntries(response)
    this.#hold()
    if (response.destroyed) this.#hideHangUp()
  }

  /** Sends the handler's own answer, or the part of it that is there and then the rest as it comes. */
  release(): void {
    if (this.#phase === 'dropped' || this.#phase === 'open') return
    this.#open('open')
    const response = this.#response
    if (this.#headed) response.statusCode = this.#status
    if (!this.#ended) {
      for (const chunk of this.#chunks) Reflect.apply(this.#native.write, response, [chunk])
      if (this.#needDrain) queueMicrotask(() => response.emit('drain'))
      if (this.#cut) response.destroy()
    } else {
      for (const trailers of this.#trailers) Reflect.apply(this.#native.addTrailers, response, [trailers])
      this.#send(Buffer.concat(this.#chunks))
    }
    this.#chunks = []
    this.#showHangUp()
  }

  /** Sends something else; whatever the handler has done or will do is dropped. */
  replace({ status, headers, body }: WholeResponse): void {
    if (this.#phase === 'dropped' || this.#phase === 'open') return
    this.#chunks = []
    this.#open('dropped')
    const response = this.#response
    this.#resetHeaders()
    writeHeaders(response, headers)
    response.statusCode = status
    response.statusMessage = STATUS_CODES[status] ?? ''
    this.#send(Buffer.from(body))
    this.#showHangUp()
  }

  /** Answers in place of a handler that failed before its answer was complete. */
  fail(answer: WholeResponse): void {
    const response = this.#response
    if (this.#phase === 'holding' && !this.#told) {
      this.#chunks = []
      this.#size = 0
      this.#resetHeaders()
      this.#headed = false
      writeHeaders(response, answer.headers)
      response.statusCode = answer.status
      response.end(answer.body)
    } else if (!this.#ended && this.#phase !== 'dropped') {
      // A part of it may be on its way: cut off is the only way left to say that it is not complete.
      response.destroy()
    }
  }

  #resetHeaders(): void {
    const response = this.#response
    const shared = sharedHeaders(headerList(response))
    for (const name of response.getHeaderNames()) response.removeHeader(name)
    for (const [name, value] of this.#outer) response.setHeader(name, value)
    writeHeaders(response, shared)
  }

  #hold(): void {
    const response = this.#response
    Object.defineProperty(response, HELD, { configurable: true, enumerable: false, value: this, writable: true })
    Object.assign(response, HeldResponse.#methods)
    Object.defineProperties(response, HeldResponse.#shadows)
  }

  /** Laid over the methods of every held response. */
  static readonly #methods = {
    writeHead(this: ServerResponse, ...args: unknown[]): ServerResponse {
      return heldBy(this).#writeHead(args)
    },
    write(this: ServerResponse, ...args: unknown[]): boolean {
      return heldBy(this).#write(args)
    },
    end(this: ServerResponse, ...args: unknown[]): ServerResponse {
      return heldBy(this).#end(args)
    },
    flushHeaders(this: ServerResponse): void {
      heldBy(this).#flushHeaders()
    },
    addTrailers(this: ServerResponse, trailers: Parameters<ServerResponse['addTrailers']>[0]): void {
      heldBy(this).#addTrailers(trailers)
    },
    // Interim answers would leave before the commit.
    writeContinue(callback?: () => void): void {
      callback?.()
    },
    writeProcessing(callback?: () => void): void {
      callback?.()
    },
    writeEarlyHints(_hints: unknown, callback?: () => void): void {
      callback?.()
    },
    destroy(this: ServerResponse, error?: Error): ServerResponse {
      return heldBy(this).#destroy(error)
    },
    emit(this: ServerResponse, event: string, ...args: unknown[]): boolean {
      const held = heldBy(this)
      if (event === 'close' && held.#isHolding) return held.#closed()
      if (event === 'timeout') held.#timedOut = true
      return Reflect.apply(held.#native.emit, this, [event, ...args]) as boolean
    },
  }

  /** While it is held, the response tells what the handler has done. */
  static readonly #shadows: PropertyDescriptorMap = {
    headersSent: {
      configurable: true,
      get(this: ServerResponse): unknown {
        const held = heldBy(this)
        return held.#isHolding ? held.#headed : nativeMember(this, 'headersSent')
      },
    },
    writableEnded: {
      configurable: true,
      get(this: ServerResponse): unknown {
        const held = heldBy(this)
        return held.#isHolding ? held.#ended : nativeMember(this, 'writableEnded')
      },
    },
  }

  /** Laid over the writers of headers once a late answer must not throw. */
  static readonly #headerWriters: Readonly<Record<string, (this: ServerResponse, ...args: unknown[]) => unknown>> =
    Object.fromEntries(
      HEADER_WRITERS.map((name) => [
        name,
        function (this: ServerResponse, ...args: unknown[]): unknown {
          if (heldBy(this).#frozen) return this
          return Reflect.apply(nativeMember(this, name) as Method, this, args)
        },
      ]),
    )

  get #isHolding(): boolean {
    return this.#phase === 'holding' || this.#phase === 'ended'
  }

  /** From now on what reaches the response goes to the socket, except the handler's own doings when they are dropped. */
  #open(phase: 'open' | 'dropped'): void {
    this.#phase = phase
    this.#frozen = false
    if (this.#hungUp && this.#response.socket === null) this.#setSocket(this.#socket)
  }

  #send(body: Buffer): void {
    Reflect.apply(this.#native.end, this.#response, body.byteLength === 0 ? [] : [body])
    // After its end a late answer of the handler must not throw into a framework that would then cut the connection.
    // An outer layer may delay the end, and add its headers then.
    if (this.#response.headersSent) this.#freezeHeaders()
  }

  #freezeHeaders(): void {
    this.#frozen = true
    const { setHeader } = HeldResponse.#headerWriters
    if (this.#response.setHeader !== setHeader) Object.assign(this.#response, HeldResponse.#headerWriters)
  }

  #writeHead(args: unknown[]): ServerResponse {
    const response = this.#response
    if (this.#phase === 'open') return Reflect.apply(this.#native.writeHead, response, args) as ServerResponse
    if (this.#phase === 'dropped') {
      // Node's own way of writing what `replace` has set, also when an outer layer delays the end.
      return args.length === 1 && !response.headersSent
        ? (Reflect.apply(this.#native.writeHead, response, args) as ServerResponse)
        : response
    }
    if (this.#phase === 'ended' || this.#headed) return response
    const [status, ...rest] = args as [unknown, ...unknown[]]
    // Error handlers start from the status that is set.
    response.statusCode = 500
    response.statusCode = finalStatus(status)
    if (typeof rest[0] === 'string') response.statusMessage = rest.shift() as string
    addHeaders(response, rest[0])
    this.#headed = true
    // As in node: what is set on the response later is not the answer's.
    this.#status = response.statusCode
    if (isEventStream(response)) this.#unstorable('event-stream')
    else if (response.hasHeader('trailer')) this.#unstorable('trailers')
    return response
  }

  #head(): void {
    if (this.#headed) return
    // Through the property: layers between us and the handler wait for this call to add their headers.
    this.#response.writeHead(this.#response.statusCode)
    this.#headed = true
  }

  #flushHeaders(): void {
    if (this.#phase === 'holding') this.#head()
  }

  #write(args: unknown[]): boolean {
    if (this.#phase === 'open') return Reflect.apply(this.#native.write, this.#response, args) as boolean
    const { chunk, callback } = bodyArguments(args)
    if (callback !== undefined) queueMicrotask(() => callback(null))
    if (this.#phase !== 'holding') return true
    this.#head()
    if (chunk !== undefined) this.#take(chunk)
    // Once the answer is told, what follows waits for the commit.
    this.#needDrain = this.#told && this.#phase === 'holding'
    return !this.#needDrain
  }

  #end(args: unknown[]): ServerResponse {
    const response = this.#response
    if (this.#phase === 'open') return Reflect.apply(this.#native.end, response, args) as ServerResponse
    const { chunk, callback } = bodyArguments(args)
    if (callback !== undefined) response.once('finish', callback)
    if (this.#phase !== 'holding') return response
    this.#head()
    if (chunk !== undefined) this.#take(chunk)
    if (this.#phase !== 'holding') return response
    this.#ended = true
    this.#phase = 'ended'
    this.#freezeHeaders()
    const body = this.#told ? Buffer.alloc(0) : Buffer.concat(this.#chunks)
    this.#report({ kind: 'whole', response: { status: this.#status, headers: headerList(response), body } })
    return response
  }

  #addTrailers(trailers: Parameters<ServerResponse['addTrailers']>[0]): void {
    if (this.#phase === 'open') {
      Reflect.apply(this.#native.addTrailers, this.#response, [trailers])
    } else if (this.#phase === 'holding') {
      this.#head()
      this.#trailers.push(trailers)
      this.#unstorable('trailers')
    }
  }

  #take(chunk: Buffer): void {
    this.#chunks.push(chunk)
    this.#size += chunk.byteLength
    if (this.#size > this.#options.bytesMax) this.#unstorable('too-big')
  }

  #unstorable(reason: UnstorableReason): void {
    const status = this.#status
    this.#report({ kind: 'unstorable', status, headers: headerList(this.#response), reason })
    // A released status goes out whatever its form; only what would be stored is refused.
    if (!this.#options.passUnstorable && status < 400) this.#chunks = []
  }

  #report(produced: Produced): void {
    if (this.#told) return
    this.#told = true
    this.#tell(produced)
  }

  /** What a broken pipe and many error handlers do: nothing of the answer has left, so it can be another one. */
  #destroy(error: Error | undefined): ServerResponse {
    const response = this.#response
    if (this.#phase === 'open') return Reflect.apply(this.#native.destroy, response, [error]) as ServerResponse
    if (this.#phase === 'holding') {
      if (this.#told) this.#cut = true
      else this.#abandon(error ?? new Error('the handler has cut its answer off'))
    }
    return response
  }

  #abandon(error: Error): void {
    this.#told = true
    this.#giveUp(error)
  }

  #closed(): boolean {
    const socket = Object.hasOwn(this.#response, 'socket') ? this.#response.socket : null
    // Neither the caller nor a time-out has closed the connection, so what answers has, in the middle of its answer.
    const byUs = socket !== null && !socket.readableEnded && (socket.errored ?? null) === null && !this.#timedOut
    if (byUs && this.#phase === 'holding' && this.#headed && !this.#told) {
      this.#abandon(new Error('the connection was cut before the answer was complete'))
    }
    return this.#hideHangUp()
  }

  /** Undoes what node does before it tells of a closed connection. */
  #hideHangUp(): boolean {
    const response = this.#response as ServerResponse & { _closed?: boolean }
    this.#hungUp = true
    // A response of HTTP/2 shows no sign of it but the event, and drops by itself what is sent later.
    if (!Object.hasOwn(response, 'socket')) return false
    response.destroyed = false
    response._closed = false
    this.#socket = response.socket
    this.#setSocket(null)
    return false
  }

  #showHangUp(): void {
    if (!this.#hungUp) return
    const response = this.#response as ServerResponse & { _closed?: boolean }
    if (Object.hasOwn(response, 'socket')) {
      response.destroyed = true
      response._closed = true
    }
    Reflect.apply(this.#native.emit, response, ['close'])
  }

  #setSocket(socket: ServerResponse['socket']): void {
    ;(this.#response as { socket: ServerResponse['socket'] }).socket = socket
  }
}

type Method = (...args: never[]) => unknown

/** The methods as they were, of node or of outer layers; called on the response. */
interface Native {
  readonly write: Method
  readonly end: Method
  readonly writeHead: Method
  readonly emit: Method
  readonly addTrailers: Method
  readonly destroy: Method
}

function nativeOf(response: ServerResponse): Native {
  const method = (name: keyof Native) => Reflect.get(response, name) as Method
  return {
    write: method('write'),
    end: method('end'),
    writeHead: method('writeHead'),
    emit: method('emit'),
    addTrailers: method('addTrailers'),
    destroy: method('destroy'),
  }
}

/** Sends a whole answer on a response that nobody has touched; headers of outer layers stay. */
export function sendWhole(response: ServerResponse, { status, headers, body }: WholeResponse): void {
  if (response.headersSent || response.writableEnded) return
  writeHeaders(response, headers)
  response.statusCode = status
  if (body.byteLength === 0) response.end()
  else response.end(body)
}

function writeHeaders(response: ServerResponse, headers: HeaderList): void {
  for (const [name, value] of groupedHeaders(headers)) response.setHeader(name, value)
}

function headerEntries(response: ServerResponse): (readonly [string, number | string | string[]])[] {
  return Object.entries(response.getHeaders()).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, value] as const],
  )
}

function headerList(response: ServerResponse): HeaderList {
  return headerEntries(response).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((one) => [name, one] as const) : [[name, String(value)] as const],
  )
}

function isEventStream(response: ServerResponse): boolean {
  return String(response.getHeader('content-type') ?? '')
    .toLowerCase()
    .startsWith('text/event-stream')
}

/** Headers as `writeHead` takes them: an object, a flat list, or a list of pairs. */
function addHeaders(response: ServerResponse, headers: unknown): void {
  if (typeof headers !== 'object' || headers === null) return
  if (!Array.isArray(headers)) {
    for (const [name, value] of Object.entries(headers)) {
      if (value !== undefined) response.setHeader(name, value as string)
    }
    return
  }
  const list: unknown[] = headers
  const pairs = Array.isArray(list[0])
    ? (list as [string, string][])
    : Array.from(
        { length: Math.floor(list.length / 2) },
        (_, at) => [list[2 * at], list[2 * at + 1]] as [string, string],
      )
  const seen = new Set<string>()
  for (const [name, value] of pairs) {
    if (seen.has(name.toLowerCase())) response.appendHeader(name, value)
    else response.setHeader(name, value)
    seen.add(name.toLowerCase())
  }
}

/** `write` and `end` take (chunk?, encoding?, callback?). */
function bodyArguments(args: readonly unknown[]): { chunk: Buffer | undefined; callback: Callback | undefined } {
  const callback = args.find((arg) => typeof arg === 'function') as Callback | undefined
  const [chunk, encoding] = args
  if (chunk === undefined || chunk === null || typeof chunk === 'function') return { chunk: undefined, callback }
  if (typeof chunk === 'string') {
    return { chunk: Buffer.from(chunk, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'), callback }
  }
  if (!(chunk instanceof Uint8Array)) {
    throw new TypeError('the body of a response takes a string, a Buffer or a Uint8Array')
  }
  // A copy: the writer may use its buffer again once `write` has returned.
  return { chunk: Buffer.from(chunk), callback }
}

/**
 * As node reads it, which takes `'404'` too, and refused as early: after the commit it would be too late. An interim
 * status never ends an answer.
 */
function finalStatus(status: unknown): number {
  const code = Math.trunc(Number(status))
  if (code >= 200 && code <= 999) return code
  throw new RangeError(`an answer cannot have the status ${String(status)}`)
}

/** What a response would have of its own without what is laid over it. */
function nativeMember(response: ServerResponse, name: string): unknown {
  return Reflect.get(Object.getPrototypeOf(response) as object, name, response)
}

function heldBy(response: ServerResponse): HeldResponse {
  return (response as ServerResponse & { readonly [HELD]: HeldResponse })[HELD]
}
