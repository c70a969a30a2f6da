/**
 * Format: what a drill file exports by default. A drill needs the handler and the count; everything else has a default.
 *
 * `start` runs in a process of its own that will be killed, paused and cut off. Everything else runs in the drill, beside
 * it, so it may keep ledgers and count.
 *
 * @module
 */

import type { IncomingMessage, Server, ServerResponse } from 'node:http'

/**
 * Where the handler's process finds its world. The same strings are in the environment: DATABASE_URL and AMQP_URL from the
 * start of the process, PROVIDER_URL when `start` is called.
 */
export interface DrillWorld {
  /** A throw-away database of this run, led through the drill's proxy. */
  readonly databaseUrl: string
  /** The broker, led through the proxy. Empty when the drill names no `queues`. */
  readonly amqpUrl: string
  /** Address of the outside provider. Empty when the drill names no `provider`. */
  readonly providerUrl: string
}

/** What the drill's own functions get: the run's database and provider without any fault in between. */
export interface DrillPlace<P extends DrillProvider = DrillProvider> {
  readonly databaseUrl: string
  readonly amqpUrl: string
  /** Runs one statement and returns its rows. */
  query(text: string, values?: readonly unknown[]): Promise<readonly Record<string, unknown>[]>
  /** The run's provider; reading it throws a TypeError when the drill names none. */
  readonly provider: P
}

/**
 * A service outside of the database, faked on loopback; `fakeProvider()` is one. It outlives the handler's process, so
 * its ledger says what has really happened.
 */
export interface DrillProvider {
  /** `http://127.0.0.1:PORT`. */
  readonly url: string
  stop(): Promise<void>
}

/** A request to the handler's server. Sent again, unchanged, until its answer is final. */
export interface RequestDelivery {
  readonly path: string
  /** Default POST. */
  readonly method?: string | undefined
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** Text is sent as it is, anything else as JSON. */
  readonly body?: unknown
}

/** A message in a RabbitMQ queue. Published once; the broker delivers it again until it is acknowledged. */
export interface MessageDelivery {
  /** Name of the queue; it is created when `queues` does not name it. */
  readonly queue: string
  /** Text is sent as it is, anything else as JSON. */
  readonly body?: unknown
  readonly messageId?: string | undefined
  readonly headers?: Readonly<Record<string, unknown>> | undefined
}

/** A job: an argument for the function that `start` returns. Called again until it resolves. */
export interface JobDelivery {
  /** Anything that JSON can hold. */
  readonly job: unknown
}

export type Delivery = RequestDelivery | MessageDelivery | JobDelivery

/**
 * What `start` gives back. For requests: a listener (an Express app is one) or a server, listening or not. For jobs: the
 * function. For messages: nothing is needed.
 */
export type Started =
  | ((request: IncomingMessage, response: ServerResponse) => unknown)
  | Server
  | ((job: never) => unknown)
  | undefined
  | void

/**
 * How often the effect happened: SQL whose first value is the number, a function, or a queue whose different messages
 * are counted (by message id, else by body).
 */
export type Count<P extends DrillProvider = DrillProvider> =
  | string
  | ((place: DrillPlace<P>) => number | Promise<number>)
  | { readonly queue: string }

/** The default export of a drill file. */
export interface DrillFile<P extends DrillProvider = DrillProvider> {
  /** What reports call it. Default: the file's name. */
  readonly name?: string | undefined
  /** Makes the tables: SQL or a function. Runs once; every run gets a copy of the database as it is then. */
  readonly setUp?: string | ((place: Omit<DrillPlace, 'provider'>) => unknown) | undefined
  /** Durable queues that are there, and empty, when a run begins. */
  readonly queues?: readonly string[] | undefined
  /** Starts the outside provider of one run. */
  readonly provider?: (() => P | Promise<P>) | undefined
  /** Starts the handler, in a process of its own. */
  readonly start: (world: DrillWorld) => Started | Promise<Started>
  /** What is delivered, each with one effect. Default: the job `{}`. */
  readonly deliver?: Delivery | readonly Delivery[] | undefined
  /** What must have happened once for each delivery: one count, or several by name. */
  readonly effects: Count<P> | Readonly<Record<string, Count<P>>>
  /** Effects that are promised, for each count. Default: the number of deliveries. */
  readonly expect?: number | undefined
  /**
   * Lets time pass until whatever keeps repeats apart has been forgotten, as your retention does: SQL or a function.
   * Then the same is delivered again. Default: not tried.
   */
  readonly expire?: string | ((place: DrillPlace<P>) => unknown) | undefined
  /**
   * The first delivery with another payload under the same key. Default: for requests with an `Idempotency-Key`, the same
   * request with every number and text of its JSON changed.
   */
  readonly otherPayload?: Delivery | undefined
  /**
   * Whether all answers to the same request must be the same. Default: for requests with an `Idempotency-Key`.
   */
  readonly sameResponse?: boolean | undefined
  /** Longest lease that the handler holds, milliseconds: how long a paused process stays away. Default 1_000. */
  readonly leaseMs?: number | undefined
  /**
   * So long after the last thing that was new, tries that fail mean that no try will help, milliseconds. Longer than any
   * step of the handler takes. Default three leases, at least 3_000.
   */
  readonly settleMs?: number | undefined
}

/** Gives a drill file its types; returns it unchanged. */
export function defineDrill<P extends DrillProvider = DrillProvider>(file: DrillFile<P>): DrillFile<P> {
  return file
}
