/**
 * Steps: what a process tells PostgreSQL, RabbitMQ and providers over HTTP, statement by statement, read off its own
 * sockets; and its death, or its stop, in front of any one of them.
 *
 * To the outside a process is what it has sent, so the ways in which it can die are the beginnings of what it sends.
 * A death in front of a step lets everything before it leave, also when it would have left in the same packet, and
 * nothing of the step itself. Which steps there are is read from a run, so a new statement is a new death.
 */
import { writeSync } from 'node:fs'
import { Socket } from 'node:net'

/** The n-th step of this name. */
export interface StepName {
  readonly step: string
  readonly nth: number
}

/** Where a process dies: in front of a step, or with `after` behind its packet, before any answer can be read. */
export interface DeathAt extends StepName {
  readonly after?: boolean
}

/** What may leave from a step on: everything, nothing, or its packet and nothing behind it. */
type Leave = 'on' | 'nothing' | 'last'

/** What came first on a connection says which protocol it speaks. */
interface Reader {
  /** How much of `bytes` may leave before the process dies; undefined = all, and it lives. */
  read(bytes: Buffer, leave: (step: string) => Leave): number | undefined
}

/**
 * Follows everything this process sends from now on, and returns the list that it writes it in. With KILL_AT (a
 * {@link DeathAt} as JSON) the process dies there by SIGKILL; with STOP_AT it is stopped there by SIGSTOP, and sends
 * what it was about to send when it goes on; with TRACE=1 every step is written to stdout too, as
 * `step NAME`.
 */
export function followSteps(env: NodeJS.ProcessEnv): readonly StepName[] {
  const signal = env['KILL_AT'] === undefined ? 'SIGSTOP' : 'SIGKILL'
  const killAt = deathAt(env['KILL_AT'] ?? env['STOP_AT'])
  const tracing = env['TRACE'] === '1'
  const steps: StepName[] = []
  const counts = new Map<string, number>()
  const leave = (step: string): Leave => {
    const nth = (counts.get(step) ?? 0) + 1
    counts.set(step, nth)
    steps.push({ step, nth })
    // Synchronous, so that a death does not swallow it.
    if (tracing) writeSync(1, `step ${step}\n`)
    if (killAt?.step !== step || killAt.nth !== nth) return 'on'
    return killAt.after === true ? 'last' : 'nothing'
  }
  const readers = new WeakMap<Socket, Reader>()
  const die = (): void => void process.kill(process.pid, signal)
  const write = Reflect.get(Socket.prototype, '_write') as SocketWrite
  const follow: SocketWrite = function follow(this: Socket, data, encoding, done) {
    // Pipes to the parent are sockets too.
    if (this.remoteAddress === undefined) return Reflect.apply(write, this, [data, encoding, done])
    const bytes = typeof data === 'string' ? Buffer.from(data, encoding) : data
    let reader = readers.get(this)
    if (reader === undefined) {
      reader = readerOf(bytes)
      readers.set(this, reader)
    }
    const cut = reader.read(bytes, leave)
    if (cut === undefined) return Reflect.apply(write, this, [bytes, 'buffer', done])
    const goOn = (): void => {
      die()
      if (signal === 'SIGKILL') return
      if (cut === bytes.length) done()
      else Reflect.apply(write, this, [bytes.subarray(cut), 'buffer', done])
    }
    if (cut === 0) return goOn()
    Reflect.apply(write, this, [bytes.subarray(0, cut), 'buffer', goOn])
  }
  Reflect.set(Socket.prototype, '_write', follow)
  Reflect.set(Socket.prototype, '_writev', function follow(this: Socket, chunks, done) {
    const bytes = chunks.map(({ chunk, encoding }) =>
      typeof chunk === 'string' ? Buffer.from(chunk, encoding as BufferEncoding) : chunk,
    )
    Reflect.apply(Reflect.get(this, '_write') as SocketWrite, this, [Buffer.concat(bytes), 'utf8', done])
  } satisfies SocketWritev)
  return steps
}

function deathAt(text: string | undefined): DeathAt | undefined {
  return text === undefined ? undefined : (JSON.parse(text) as DeathAt)
}

function readerOf(bytes: Buffer): Reader {
  const start = bytes.subarray(0, 5).toString('latin1')
  if (start.startsWith('AMQP')) return amqpReader()
  return HTTP_START.test(start) ? httpReader() : postgresReader()
}

type Done = (error?: Error | null) => void
type SocketWrite = (this: Socket, data: Buffer | string, encoding: BufferEncoding, done: Done) => void
type SocketWritev = (
  this: Socket,
  chunks: readonly { readonly chunk: Buffer | string; readonly encoding: string }[],
  done: Done,
) => void

/** A statement is a Query or an Execute; what prepares an Execute belongs to it. */
function postgresReader(): Reader {
  let started = false
  let rest: Buffer = Buffer.alloc(0)
  const texts = new Map<string, string>()
  const portals = new Map<string, string>()
  return {
    read(bytes, leave) {
      const kept = rest.length
      const all = kept === 0 ? bytes : Buffer.concat([rest, bytes])
      let at = 0
      let stepAt = 0
      for (;;) {
        const header = started ? 5 : 4
        if (all.length - at < header) break
        const length = all.readInt32BE(at + header - 4) + header - 4
        if (all.length - at < length) break
        const body = all.subarray(at + header, at + length)
        const type = started ? String.fromCharCode(all[at] ?? 0) : 'startup'
        const step = stepOf(type, body)
        const may = step === undefined ? 'on' : leave(step)
        if (may === 'nothing') return Math.max(0, stepAt - kept)
        started = true
        at += length
        if (may === 'last') return bytes.length
        if (step !== undefined || type === 'S') stepAt = at
      }
      rest = all.subarray(at)
      return undefined
    },
  }

  function stepOf(type: string, body: Buffer): string | undefined {
    const [first = '', second = ''] = body.toString('utf8').split('\0', 2)
    switch (type) {
      case 'Q':
        return statementName(first)
      case 'P':
        texts.set(first, second)
        return undefined
      case 'B':
        portals.set(first, texts.get(second) ?? second)
        return undefined
      case 'E':
        return statementName(portals.get(first) ?? first)
      default:
        return undefined
    }
  }
}

/** Our statements carry their names; of others the first words. */
function statementName(text: string): string {
  const names = [...text.matchAll(/effectively-once:([\w.]+)/g)].map((match) => match[1])
  const words = text.trim().split(/[\s(]+/, 3)
  return names.length > 0 ? names.join('+') : words.join(' ').replace(/;.*/, '').toLowerCase()
}

const BASIC = 60
const BASIC_METHODS: Readonly<Record<number, string>> = {
  10: 'qos',
  20: 'consume',
  30: 'cancel',
  40: 'publish',
  80: 'ack',
  90: 'reject',
  120: 'nack',
}

/** A step is a method about messages; opening the connection, declaring queues and heartbeats are none. */
function amqpReader(): Reader {
  let rest: Buffer = Buffer.alloc(0)
  let greeted = false
  return {
    read(bytes, leave) {
      const kept = rest.length
      const all = kept === 0 ? bytes : Buffer.concat([rest, bytes])
      let at = 0
      if (!greeted && all.length >= 8) {
        greeted = true
        at = 8
      }
      // A frame: type, channel, size, payload, end mark.
      while (greeted && all.length - at >= 7) {
        const length = all.readUInt32BE(at + 3) + 8
        if (all.length - at < length) break
        if (all[at] === 1 && all.readUInt16BE(at + 7) === BASIC) {
          const method = all.readUInt16BE(at + 9)
          const may = leave(`basic.${BASIC_METHODS[method] ?? method}`)
          if (may === 'nothing') return Math.max(0, at - kept)
          if (may === 'last') return bytes.length
        }
        at += length
      }
      rest = all.subarray(at)
      return undefined
    },
  }
}

const HTTP_START = /^(GET|POST) /

/** A step is a request, which leaves in one packet. */
function httpReader(): Reader {
  return {
    read(bytes, leave) {
      const method = HTTP_START.exec(bytes.subarray(0, 5).toString('latin1'))?.[1]
      if (method === undefined) return undefined
      const may = leave(`http.${method.toLowerCase()}`)
      if (may === 'nothing') return 0
      return may === 'last' ? bytes.length : undefined
    },
  }
}
