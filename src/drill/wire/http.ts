/**
 * HTTP/1.1: requests and their answers, read off one connection. A step is a request; it is answered when the head of
 * the final response has come.
 *
 * @module
 */

import type { Codec, Piece, Step } from './codec.ts'

const METHODS = /^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (\S+) HTTP\/1\.[01]\r\n/
const HEAD_BYTES_MAX = 65_536
const SAFE = new Set(['GET', 'HEAD', 'OPTIONS'])

interface Asked {
  readonly step: Step
  readonly method: string
}

export function httpCodec(): Codec {
  const asked: Asked[] = []
  const requests = new Messages()
  const responses = new Messages()
  return {
    *fromClient(bytes) {
      for (const { bytes: part, head } of requests.read(bytes, () => true)) {
        const [, method, target] = METHODS.exec(head ?? '') ?? []
        if (method === undefined || target === undefined) {
          yield { bytes: part }
          continue
        }
        const step: Step = { kind: 'http', label: `${method} ${withoutValues(target)}` }
        asked.push({ step, method })
        yield { bytes: part, asks: step }
      }
    },
    *fromServer(bytes) {
      const hasBody = (head: string): boolean =>
        asked[0]?.method !== 'HEAD' && !/^HTTP\/1\.[01] (1\d\d|204|304)/.test(head)
      for (const { bytes: part, head } of responses.read(bytes, hasBody)) {
        yield answered(part, head)
      }
    },
  }

  function answered(bytes: Buffer, head: string | undefined): Piece {
    const status = /^HTTP\/1\.[01] (\d{3})/.exec(head ?? '')?.[1]
    if (status === undefined || status.startsWith('1')) return { bytes }
    const done = asked.shift()
    if (done === undefined) return { bytes }
    done.step.answer = {
      text: status,
      failed: Number(status) >= 400,
      durable: !SAFE.has(done.method),
      inTransaction: false,
    }
    return { bytes, answers: done.step }
  }
}

/** Ids in a path differ from run to run; a step's name may not. */
function withoutValues(target: string): string {
  const [path = ''] = target.split('?')
  return path.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+\b|[0-9a-f]{16,}/gi, ':id')
}

/** Splits one direction into heads and parts of bodies. */
class Messages {
  #rest: Buffer = Buffer.alloc(0)
  /** Bytes of the body that are still to come; 'chunks' = until the empty chunk, 'end' = until the connection ends. */
  #body: number | 'chunks' | 'end' = 0

  /** Length of the next chunk with its frame, when all of it is there. */
  #chunkBytes(): number | undefined {
    const line = this.#rest.indexOf('\r\n')
    if (line < 0) return undefined
    const size = Number.parseInt(this.#rest.toString('latin1', 0, line), 16)
    if (size === 0) {
      const end = this.#rest.indexOf('\r\n\r\n', line)
      if (end < 0) return undefined
      this.#body = 0
      return end + 4
    }
    const whole = line + 2 + size + 2
    return this.#rest.length >= whole ? whole : undefined
  }

  *read(bytes: Buffer, hasBody: (head: string) => boolean): Generator<{ bytes: Buffer; head?: string }> {
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes])
    while (this.#rest.length > 0) {
      if (this.#body === 0) {
        const end = this.#rest.indexOf('\r\n\r\n')
        if (end < 0) {
          if (this.#rest.length <= HEAD_BYTES_MAX) return
          this.#body = 'end'
          continue
        }
        const head = this.#rest.toString('latin1', 0, end + 4)
        this.#body = hasBody(head) ? bodyOf(head) : 0
        yield { bytes: this.#take(end + 4), head }
      } else if (this.#body === 'chunks') {
        const size = this.#chunkBytes()
        if (size === undefined) return
        yield { bytes: this.#take(size) }
      } else {
        const size: number = this.#body === 'end' ? this.#rest.length : Math.min(this.#body, this.#rest.length)
        if (this.#body !== 'end') this.#body -= size
        yield { bytes: this.#take(size) }
      }
    }
  }

  #take(size: number): Buffer {
    const part = this.#rest.subarray(0, size)
    this.#rest = this.#rest.subarray(size)
    return part
  }
}

function bodyOf(head: string): number | 'chunks' | 'end' {
  if (/\r\ntransfer-encoding:[^\r]*chunked/i.test(head)) return 'chunks'
  const length = /\r\ncontent-length:\s*(\d+)/i.exec(head)?.[1]
  if (length !== undefined) return Number(length)
  return head.startsWith('HTTP/') || /\r\nupgrade:/i.test(head) ? 'end' : 0
}
