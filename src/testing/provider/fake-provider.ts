/**
 * A provider of effects that can be made to fail: a real HTTP server, and a ledger of what it really did.
 *
 * `POST /anything` with `{ amount, currency?, reference?, decline? }` applies an effect and answers with its object.
 * `GET /anything/id`, `GET /anything?reference=` and `GET /anything?starting_after=&limit=` look effects up. How keys are
 * treated follows one of the profiles in `providers`, so what callers learn here holds for the real one.
 *
 * @module
 */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { ProviderProfile } from '../../effect/provider/index.ts'
import { randomUUID } from '../../shared/crypto.ts'
import { choiceOption, integerOption, refuseUnknownOptions } from '../../shared/options.ts'
import type { ProviderEffect, ProviderRequest } from './book.ts'
import { type ControlCommand, obey } from './control.ts'
import type { ProviderFault, SeededFaults } from './fault.ts'
import { type LookUpSettings, look, PROVIDER_LOOK_UPS, type ProviderLookUp } from './look-up.ts'
import { type Mode, modeOf, PROVIDER_KEYS, type ProviderKeys } from './mode.ts'
import { type HeldFilter, type HeldRequest, Provider, type ProviderState } from './state.ts'
import type { WaitOptions } from './watch.ts'
import { type Ending, work } from './work.ts'

export interface FakeProviderOptions {
  /** How keys are treated. Default `stripe-v1`. */
  readonly keys?: ProviderKeys | undefined
  /** How effects can be asked for. Default `reference`. */
  readonly lookUp?: ProviderLookUp | undefined
  /** Effects are found this long after they were applied, milliseconds of the provider's own clock. Default 0. */
  readonly lookUpDelayMs?: number | undefined
  /** Faults drawn by a seed, besides those that are scripted. Default none. */
  readonly faults?: SeededFaults | undefined
}

/** A fake provider that runs. */
export interface FakeProvider {
  /** Base URL, without a slash at its end. */
  readonly url: string
  /** Where {@link remoteProvider} of another process reaches this one. Holds a random token. */
  readonly controlUrl: string
  /** The profile that it follows. */
  readonly profile: ProviderProfile
  /** What was really applied, oldest first. */
  effects(): readonly ProviderEffect[]
  /** How often it was applied, in all or with one reference. More than 1 for one reference is a double effect. */
  count(reference?: string): number
  /** The last 100_000 requests, oldest first. */
  requests(): readonly ProviderRequest[]
  /** Requests that are kept open. */
  held(): readonly HeldRequest[]
  /** Scripts faults; each takes its place behind those that wait already. */
  fault(...faults: readonly ProviderFault[]): void
  /** Takes back the scripted faults that were not met. */
  clearFaults(): void
  /** Moves the provider's own clock, whole milliseconds; it stands still otherwise. */
  advance(ms: number): void
  /** Lets held requests go on, whether or not their callers still wait. @returns how many. */
  release(filter?: HeldFilter): number
  /** The provider forgets a key, or all of them. */
  forget(key?: string): void
  /**
   * Waits until the state is as wanted; looks again at each change.
   *
   * @throws {Error} It was not within `timeoutMs` (default 10_000), with what the state was.
   */
  waitFor(reached: (state: ProviderState) => boolean, options?: WaitOptions): Promise<ProviderState>
  /** Ends the server and every connection. Held requests are released first. */
  stop(): Promise<void>
}

const BODY_MAX = 1_048_576

/**
 * Starts a fake provider on a free port of 127.0.0.1.
 *
 * @example
 * const provider = await fakeProvider({ keys: 'stripe-v1' })
 * provider.fault({ kind: 'answerLost', reference: 'order-7' })
 * // ... the code under test charges order-7, and retries with the same key ...
 * assert.equal(provider.count('order-7'), 1)
 * await provider.stop()
 */
export async function fakeProvider(options: FakeProviderOptions = {}): Promise<FakeProvider> {
  refuseUnknownOptions('fakeProvider', options, ['keys', 'lookUp', 'lookUpDelayMs', 'faults'])
  const mode = modeOf(choiceOption('keys', options.keys, PROVIDER_KEYS, 'stripe-v1'))
  const lookUpSettings: LookUpSettings = {
    lookUp: choiceOption('lookUp', options.lookUp, PROVIDER_LOOK_UPS, 'reference'),
    lookUpDelayMs: integerOption('lookUpDelayMs', options.lookUpDelayMs, { min: 0, max: 2 ** 40, default: 0 }),
  }
  const provider = new Provider(options.faults)
  const controlPath = `/control/${randomUUID()}`
  const sockets = new Set<Socket>()

  const server = createServer((request, response) => {
    const serve =
      request.url === controlPath ? control(provider, request) : effect(provider, mode, lookUpSettings, request)
    serve.then(
      (ending) => {
        send(response, ending, mode)
      },
      (error: unknown) => {
        // Only reading the request can fail: its caller has gone, or sent too much.
        if (response.headersSent) response.destroy()
        else response.writeHead(400).end(error instanceof Error ? error.message : '')
      },
    )
  })
  // A connection that is closed for being idle meets a request on its way: a fault that nobody has asked for.
  server.keepAliveTimeout = 0
  server.requestTimeout = 0
  // Callers that are killed in the middle of a request are what this server is for.
  server.on('clientError', (_error, socket) => socket.destroy())
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`

  return {
    url,
    controlUrl: url + controlPath,
    profile: mode.profile,
    effects: () => [...provider.book.effects],
    count: (reference) => provider.count(reference),
    requests: () => [...provider.book.requests],
    held: () => provider.state.held,
    fault: (...faults) => {
      for (const fault of faults) provider.fault(fault)
    },
    clearFaults: () => provider.script.clear(),
    advance: (ms) => provider.advance(ms),
    release: (filter = {}) => provider.release(filter),
    forget: (key) => provider.forget(key),
    async waitFor(reached, waiting = {}) {
      refuseUnknownOptions('waitFor', waiting, ['timeoutMs', 'signal'])
      const timeoutMs = integerOption('timeoutMs', waiting.timeoutMs, { min: 1, max: 600_000, default: 10_000 })
      await provider.watch.until(
        () => reached(provider.state),
        timeoutMs,
        () => told(provider),
        waiting.signal,
      )
      return provider.state
    },
    async stop() {
      provider.release({})
      const closed = new Promise((resolve) => server.close(resolve))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}

/** A request of a caller: written down, decided, and carried out. */
async function effect(
  provider: Provider,
  mode: Mode,
  settings: LookUpSettings,
  request: IncomingMessage,
): Promise<Ending> {
  const { book, script, watch } = provider
  const bytes = await read(request)
  const { pathname: path, searchParams: query } = new URL(request.url ?? '/', 'http://provider')
  const isRead = request.method === 'GET'
  const key = headerOf(request, mode.profile.key.name)
  const body = isRead ? undefined : objectOf(bytes)
  const named = isRead ? query.get('reference') : body?.['reference']
  const reference = typeof named === 'string' ? named : undefined
  const fault = script.take({ on: isRead ? 'lookUp' : 'write', key, reference })
  const number = book.open({ method: request.method ?? '', path, key, reference, fault: fault?.kind })
  watch.changed()
  const hold = () => provider.hold({ request: number, reference, key })
  const ending = isRead
    ? await look(book, settings, { path, query, fault, hold })
    : await work(book, mode, { number, path, key, bytes, body, fault, hold })
  book.close(
    number,
    ending.kind === 'answer' ? (ending.cut === undefined ? ending.answer.status : 'lost') : ending.kind,
    ending.kind === 'answer' && ending.replayed,
  )
  watch.changed()
  return ending
}

async function control(provider: Provider, request: IncomingMessage): Promise<Ending> {
  const content = await obey(provider, JSON.parse((await read(request)).toString('utf8')) as ControlCommand)
  return { kind: 'answer', answer: { status: 200, body: Buffer.from(JSON.stringify(content)) }, replayed: false }
}

function send(response: ServerResponse, ending: Ending, mode: Mode): void {
  if (ending.kind === 'silent') return
  if (ending.kind === 'lost' || ending.cut === 'whole') {
    response.destroy()
    return
  }
  const { answer, replayed, retryAfterSeconds } = ending
  const { replayMarker } = mode.profile
  response.setHeader('content-type', 'application/json')
  response.setHeader('content-length', answer.body.length)
  if (replayed && replayMarker !== undefined) response.setHeader(replayMarker.name, replayMarker.value ?? 'true')
  if (retryAfterSeconds !== undefined) response.setHeader('retry-after', retryAfterSeconds)
  response.writeHead(answer.status)
  if (ending.cut === undefined) response.end(answer.body)
  else response.write(answer.body.subarray(0, answer.body.length >> 1), () => response.destroy())
}

async function read(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length
    if (length > BODY_MAX) throw new Error(`a body has at most ${BODY_MAX} bytes here`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function headerOf(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name.toLowerCase()]
  return Array.isArray(value) ? value[0] : value
}

function objectOf(bytes: Buffer): Readonly<Record<string, unknown>> | undefined {
  try {
    const content = JSON.parse(bytes.toString('utf8')) as unknown
    return typeof content === 'object' && content !== null ? (content as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

/** The state in short, for a wait that was in vain. */
function told({ state }: Provider): string {
  const last = state.requests
    .slice(-5)
    .map(({ method, path, answer, fault }) => `${method} ${path} ${answer} ${fault ?? ''}`)
  return `${state.effects.length} effects, ${state.held.length} held, last requests: ${last.join('; ')}`
}
