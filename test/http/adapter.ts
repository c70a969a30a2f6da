/**
 * What the scenario table needs of a framework: a real server whose handlers are written in neutral words, and answered
 * in the way that is natural in that framework.
 */

import type { HandlerContext } from '../../src/http/exchange.ts'
import type { RouteOptions } from '../../src/http/options.ts'
import type { StatusOptions } from '../../src/http/status.ts'
import type { Once } from '../../src/index.ts'

/** An answer in neutral words. */
export interface Reply {
  readonly status: number
  readonly headers?: readonly (readonly [string, string])[]
  readonly body?: string | Uint8Array
  /**
   * `whole` (default); `stream`: as a stream of chunks; `broken`: as one that fails in the middle; `twice`: answered a
   * second time with another body.
   */
  readonly as?: 'whole' | 'stream' | 'broken' | 'twice'
}

/** What a handler gets. */
export interface Call<Tx> {
  readonly once: HandlerContext<Tx>
  /** The body as the handler of this framework reads it. */
  readonly body: () => Promise<string>
}

/** Hooks get a framework's request; in scenarios only this much of it. */
export interface ScenarioRequest {
  readonly tenant: string | undefined
}

export type ScenarioOptions = Omit<RouteOptions<ScenarioRequest>, 'scope'>

export interface Route<Tx> {
  readonly method?: 'GET' | 'POST' | 'PUT'
  /** With `:name` for parameters. */
  readonly path: string
  readonly options?: ScenarioOptions
  /** Answers, throws, or never settles. */
  readonly handler: (call: Call<Tx>) => Promise<Reply>
}

export interface Served {
  readonly port: number
  /** Ends the server and every connection to it. */
  close(): Promise<void>
}

export interface Adapter {
  readonly name: string
  /** What the framework cannot do by its nature; undefined = it can. */
  lacks?(need: string): string | undefined
  /** Serves routes, and the status resource below `/operations`. The tenant is the header `x-tenant`. */
  serve<Tx>(once: Once<Tx>, routes: readonly Route<Tx>[], status?: ScenarioStatus): Promise<Served>
}

export type ScenarioStatus = Omit<StatusOptions<ScenarioRequest>, 'scope'>

/** The options of a route for a framework's own request. */
export function optionsFor<Req>(
  { options = {} }: Route<never> | { readonly options?: ScenarioOptions | ScenarioStatus },
  tenantOf: (request: Req) => string | undefined,
): RouteOptions<Req> {
  const seen = (request: Req): ScenarioRequest => ({ tenant: tenantOf(request) })
  const { fingerprint, reconstruct, authorizeReplay, onError, ...rest } = options as ScenarioOptions
  return {
    ...rest,
    // Without a tenant the request is refused: the type says string, the request may not.
    scope: (request) => tenantOf(request) as string,
    ...(fingerprint && { fingerprint: (request: Req, body) => fingerprint(seen(request), body) }),
    ...(reconstruct && { reconstruct: (meta, request: Req) => reconstruct(meta, seen(request)) }),
    ...(authorizeReplay && { authorizeReplay: (request: Req, meta) => authorizeReplay(seen(request), meta) }),
    onError: onError === undefined ? () => {} : (error, request: Req) => onError(error, seen(request)),
  }
}
