/**
 * PostgreSQL: statements and their answers, read off one connection (protocol 3.0).
 *
 * A step is a Query or an Execute. What prepares an Execute (Parse, Bind, Describe) belongs to it, so that nothing of a
 * step has left in front of it, also when several are pipelined. An answer ends where the client knows that the step is
 * over: at ReadyForQuery, or at CommandComplete when more steps are behind it under the same Sync.
 *
 * @module
 */

import type { Codec, Piece, Step } from './codec.ts'
import { lasts, ownName, statementLabel } from './statement.ts'

const SSL_REQUEST = 80_877_103
const GSS_REQUEST = 80_877_104
const CANCEL_REQUEST = 80_877_102

/** What the server still owes, in order. */
interface Owed {
  readonly kind: 'query' | 'execute' | 'sync'
  readonly step?: Step | undefined
  readonly text: string
  readonly tags: string[]
  failed?: string | undefined
  /** Messages of the server that the client must not see: it did not ask this. */
  readonly hide?: string | undefined
}

/**
 * @param database - Where connections of this run lead, whatever database the client names.
 */
export function postgresCodec(database: string): Codec {
  let toServer: Buffer = Buffer.alloc(0)
  let toClient: Buffer = Buffer.alloc(0)
  let started = false
  let dropping = false
  let status = 'I'
  let group: Buffer[] = []
  let held: Buffer[] = []
  const texts = new Map<string, string>()
  const portals = new Map<string, string>()
  const owed: Owed[] = []

  const send = (message: Buffer): Buffer => {
    const bytes = Buffer.concat([...group, message])
    group = []
    return bytes
  }
  const owe = (kind: Owed['kind'], text = '', step?: Step, hide?: string): void => {
    owed.push({ kind, text, step, tags: [], hide })
  }
  const stepOf = (text: string): Step => ({ kind: 'sql', label: statementLabel(text), calledItself: ownName(text) })

  function* clientMessage(type: string, message: Buffer, body: Buffer): Generator<Piece> {
    if (dropping) {
      // An error skips what is behind it up to the Sync; the refusal was a Query and has ended its group itself.
      if (type === 'S') dropping = false
      return
    }
    const [first = '', second = ''] = body.toString('utf8').split('\0', 2)
    switch (type) {
      case 'P':
        texts.set(first, second)
        group.push(message)
        return
      case 'B':
        portals.set(first, texts.get(second) ?? '')
        group.push(message)
        return
      case 'D':
      case 'C':
        group.push(message)
        return
      case 'Q': {
        const step = stepOf(first)
        const bytes = send(message)
        owe('query', first, step)
        yield { bytes, asks: step }
        return
      }
      case 'E': {
        const text = portals.get(first) ?? ''
        const step = stepOf(text)
        const bytes = send(message)
        owe('execute', text, step)
        yield { bytes, asks: step }
        return
      }
      case 'S':
        owe('sync')
        yield { bytes: send(message) }
        return
      default:
        yield { bytes: send(message) }
    }
  }

  /** The server's answer to the oldest step is complete. In front of its Sync, nothing of it lasts yet. */
  function finish({ step, text, failed, tags }: Owed, synced: boolean): Piece | undefined {
    const bytes = Buffer.concat(held)
    held = []
    if (step === undefined) return bytes.length === 0 ? undefined : { bytes }
    const inTransaction = !synced || status !== 'I'
    const durable = failed === undefined && !inTransaction && tags.some((tag) => lasts(tag, text))
    step.answer = { text: failed ?? tags.join(', '), failed: failed !== undefined, durable, inTransaction }
    return { bytes, answers: step }
  }

  function* serverMessage(type: string, message: Buffer, body: Buffer): Generator<Piece> {
    const [head] = owed
    if (head?.hide?.includes(type) !== true) held.push(message)
    if (type === 'E' && head !== undefined) head.failed = errorCode(body)
    if (type === 'C') head?.tags.push(body.toString('utf8', 0, body.length - 1))
    if (type === 'Z') status = String.fromCharCode(body[0] ?? 73)
    if (head === undefined) {
      yield { bytes: Buffer.concat(held) }
      held = []
      return
    }
    if (type === 'Z') {
      // Everything up to the Query or the Sync that this answers.
      for (;;) {
        const entry = owed.shift()
        if (entry === undefined) break
        if (head.failed !== undefined && entry !== head && entry.step !== undefined) entry.failed = 'skipped'
        const piece = finish(entry, true)
        if (piece !== undefined) yield piece
        if (entry.kind !== 'execute') break
      }
    } else if (head.kind === 'execute' && (type === 'C' || type === 'I' || type === 's') && owed[1]?.kind !== 'sync') {
      owed.shift()
      const piece = finish(head, false)
      if (piece !== undefined) yield piece
    } else if (type === 'G' || type === 'W' || type === 'H') {
      yield { bytes: Buffer.concat(held) }
      held = []
    } else if (head.kind === 'sync' && type !== 'E') {
      yield { bytes: Buffer.concat(held) }
      held = []
    }
  }

  return {
    *fromClient(bytes) {
      toServer = toServer.length === 0 ? bytes : Buffer.concat([toServer, bytes])
      for (;;) {
        const header = started ? 5 : 4
        if (toServer.length < header) break
        const length = toServer.readInt32BE(header - 4) + header - 4
        if (toServer.length < length) break
        const message = toServer.subarray(0, length)
        toServer = toServer.subarray(length)
        if (started) {
          yield* clientMessage(String.fromCharCode(message[0] ?? 0), message, message.subarray(5))
        } else {
          const code = message.readInt32BE(4)
          started = code !== SSL_REQUEST && code !== GSS_REQUEST
          yield { bytes: !started || code === CANCEL_REQUEST ? message : startup(message, database) }
        }
      }
    },
    *fromServer(bytes) {
      // One byte answers a wish for encryption.
      if (!started) {
        yield { bytes }
        return
      }
      toClient = toClient.length === 0 ? bytes : Buffer.concat([toClient, bytes])
      while (toClient.length >= 5) {
        const length = toClient.readInt32BE(1) + 1
        if (toClient.length < length) break
        const message = toClient.subarray(0, length)
        toClient = toClient.subarray(length)
        yield* serverMessage(String.fromCharCode(message[0] ?? 0), message, message.subarray(5))
      }
    },
    refuse(step, sqlState) {
      const entry = owed.findLast((owing) => owing.step === step)
      if (entry !== undefined) owed.splice(owed.indexOf(entry), 1)
      dropping = entry?.kind === 'execute'
      const raise = query(
        `do $$ begin raise exception using errcode = '${sqlState}', message = '${REASONS[sqlState] ?? 'refused'}'; end $$`,
      )
      if (step.label !== 'COMMIT') {
        owe('query', '', step)
        return raise
      }
      // A COMMIT that fails leaves no transaction behind.
      owed.push(
        { kind: 'query', text: '', tags: [], hide: 'Z' },
        { kind: 'query', text: '', tags: [], hide: 'C', step, failed: sqlState },
      )
      return Buffer.concat([raise, query('rollback')])
    },
  }
}

const REASONS: Readonly<Record<string, string>> = {
  '40001': 'could not serialize access due to concurrent update',
  '40P01': 'deadlock detected',
}

function query(text: string): Buffer {
  const body = Buffer.from(`${text}\0`)
  const head = Buffer.alloc(5)
  head.write('Q')
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

/** The same start-up message, led to another database. */
function startup(message: Buffer, database: string): Buffer {
  const words = message.toString('utf8', 8).split('\0')
  const at = words.findIndex((word, index) => index % 2 === 0 && word === 'database')
  if (at >= 0) words[at + 1] = database
  else words.unshift('database', database)
  const body = Buffer.from(words.join('\0'))
  const head = Buffer.alloc(8)
  head.writeInt32BE(body.length + 8)
  message.copy(head, 4, 4, 8)
  return Buffer.concat([head, body])
}

/** SQLSTATE of an ErrorResponse. */
function errorCode(body: Buffer): string {
  const field = body
    .toString('utf8')
    .split('\0')
    .find((text) => text.startsWith('C'))
  return field?.slice(1) ?? 'error'
}
