/**
 * Deliver: one attempt to have the handler do its work, and what the sender learns from it.
 *
 * @module
 */

import { request } from 'node:http'
import { isJob, isRequest } from '../file/checked.ts'
import type { Delivery, RequestDelivery } from '../file/format.ts'
import type { HandlerProcess } from '../process/handler-process.ts'

/** What a sender knows after one attempt. */
export type Attempt =
  /** Told that it is done; nobody will send it again. */
  | { readonly kind: 'done'; readonly answer: string }
  /** Told for good that it will not be done. */
  | { readonly kind: 'refused'; readonly answer: string }
  /** No answer, or one that asks to come again; `afterMs` when it says when. */
  | {
      readonly kind: 'again'
      readonly reason: string
      readonly afterMs?: number | undefined
      /**
       * The answer, when it is a 409 that does not say when to come again: somebody may be working on the same, or this is
       * what the handler has decided. Which of both, repeats have to show.
       */
      readonly conflict?: string | undefined
    }

const NO_ANSWER: Attempt = { kind: 'again', reason: 'no answer' }

/** Statuses after which a client sends the same request again. */
const AGAIN = new Set([408, 409, 423, 425, 429])

/** Never rejects. @param givenUp - Aborts when no answer is waited for any more. */
export async function attempt(process: HandlerProcess, delivery: Delivery, givenUp: AbortSignal): Promise<Attempt> {
  if (givenUp.aborted) return NO_ANSWER
  if (isRequest(delivery)) return send(process.port, delivery, givenUp)
  if (!isJob(delivery)) throw new TypeError('messages are delivered by the broker')
  const late = new Promise<Attempt>((resolve) => {
    givenUp.addEventListener('abort', () => resolve(NO_ANSWER), { once: true })
  })
  const worked = process.job(delivery.job).then(
    (): Attempt => ({ kind: 'done', answer: 'done' }),
    (error: Error): Attempt => ({ kind: 'again', reason: firstLine(error.message) }),
  )
  return Promise.race([worked, late])
}

function send(
  port: number,
  { path, method = 'POST', headers = {}, body }: RequestDelivery,
  givenUp: AbortSignal,
): Promise<Attempt> {
  const lost = (error: Error): Attempt =>
    givenUp.aborted ? NO_ANSWER : { kind: 'again', reason: firstLine(error.message) }
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body)
  const bytes = text === undefined ? undefined : Buffer.from(text)
  return new Promise((resolve) => {
    const outgoing = request(
      {
        host: '127.0.0.1',
        port,
        path,
        method,
        agent: false,
        headers: {
          ...(bytes === undefined ? {} : { 'content-length': String(bytes.length) }),
          ...(typeof body === 'string' || body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        signal: givenUp,
      },
      (response) => {
        const parts: Buffer[] = []
        response.on('data', (part: Buffer) => parts.push(part))
        response.on('error', (error) => resolve(lost(error)))
        response.on('end', () => {
          const status = response.statusCode ?? 0
          const answer = `${status} ${Buffer.concat(parts).toString()}`
          resolve(meaning(status, answer, response.headers['retry-after']))
        })
      },
    )
    outgoing.on('error', (error) => resolve(lost(error)))
    outgoing.end(bytes)
  })
}

function meaning(status: number, answer: string, retryAfter: string | undefined): Attempt {
  if (status < 400) return { kind: 'done', answer }
  if (status < 500 && !AGAIN.has(status)) return { kind: 'refused', answer }
  const seconds = Number(retryAfter)
  return {
    kind: 'again',
    reason: answer.slice(0, 120),
    afterMs: retryAfter === undefined || !Number.isFinite(seconds) ? undefined : seconds * 1_000,
    conflict: status === 409 && retryAfter === undefined ? answer : undefined,
  }
}

const firstLine = (text: string): string => text.split('\n', 1)[0] ?? ''
