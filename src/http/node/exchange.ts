/**
 * Exchange on node: what the adapters of frameworks on node's own server have in common.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Answer, Exchange, HandlerContext } from '../exchange.ts'
import type { Guard } from '../guard.ts'
import { failureProblem } from '../problem.ts'
import type { WholeResponse } from '../response.ts'
import { type ParsedRequest, readBody } from './body.ts'
import { HeldResponse, sendWhole } from './held-response.ts'

/** One request on node's server, with what the framework adds. */
export interface NodeExchange<Req> {
  /** The framework's request, for hooks. */
  readonly request: Req
  readonly raw: IncomingMessage
  readonly response: ServerResponse
  /** Path and query as received; frameworks rewrite `url`. */
  readonly target: string
  readonly template: string | undefined
  /** Where the framework keeps a parsed body. */
  readonly parsed: ParsedRequest
}

/** What an adapter does at the turns of one request. */
export interface NodeTurns<Tx> {
  /** Starts the handler on the held response; does not throw. */
  start(context: HandlerContext<Tx>, held: HeldResponse): void
  /** Runs the handler as if nothing were there. */
  unguarded(): void
  /** Takes an error of a hook; nothing was started. */
  failed(error: unknown): void
  /** Sends an answer where the handler did not run. Default: on the response itself. */
  send?(answer: WholeResponse): void
}

/** Guards one request. */
export function guardNode<Tx, Req>(guard: Guard<Tx, Req>, exchange: NodeExchange<Req>, turns: NodeTurns<Tx>): void {
  guarded(guard, exchange, turns).then(
    (isGuarded) => {
      if (!isGuarded) turns.unguarded()
    },
    (error: unknown) => turns.failed(error),
  )
}

async function guarded<Tx, Req>(
  guard: Guard<Tx, Req>,
  exchange: NodeExchange<Req>,
  turns: NodeTurns<Tx>,
): Promise<boolean> {
  const { raw, response } = exchange
  const { responseBytesMax: bytesMax, passUnstorable, problems, onError } = guard.policy
  let held: HeldResponse | undefined
  const facts: Exchange<Tx, Req> = {
    request: exchange.request,
    method: raw.method ?? '',
    target: exchange.target,
    headers: raw.headers,
    keyLines: keyLines(raw.rawHeaders),
    template: exchange.template,
    body: (bodyBytesMax) => readBody(raw, bodyBytesMax, exchange.parsed),
    run: (context) => {
      held = new HeldResponse(response, { bytesMax, passUnstorable })
      turns.start(context, held)
      return held.produced
    },
  }
  let answer: Answer
  try {
    answer = await guard.handle(facts)
  } catch (error) {
    if (held === undefined) throw error
    onError(error, exchange.request)
    held.replace(failureProblem(problems, 'The request was not carried out.'))
    return true
  }
  switch (answer.kind) {
    case 'unguarded':
      return false
    case 'gone':
      return true
    case 'handler':
      held?.release()
      return true
    case 'instead':
      if (held !== undefined) held.replace(answer.response)
      else if (turns.send === undefined) sendWhole(response, answer.response)
      else turns.send(answer.response)
      return true
  }
}

/** The field lines of the key, one by one: `headers` has them joined. */
export function keyLines(rawHeaders: readonly string[]): string[] {
  const lines: string[] = []
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.toLowerCase() === 'idempotency-key') lines.push(rawHeaders[at + 1] ?? '')
  }
  return lines
}
