/**
 * Response: an answer as a whole, before it goes to a socket and after it comes out of the store.
 *
 * @module
 */

/** Names in lower case, in order; a name may repeat. */
export type HeaderList = readonly (readonly [name: string, value: string])[]

/** A whole answer: all of it is known before the first byte of it is sent. */
export interface WholeResponse {
  readonly status: number
  readonly headers: HeaderList
  readonly body: Uint8Array
}

/** Why an answer cannot be kept. */
export type UnstorableReason = 'too-big' | 'event-stream' | 'trailers'

/** What a handler has produced. Its start is held back in both cases. */
export type Produced =
  | { readonly kind: 'whole'; readonly response: WholeResponse }
  | {
      readonly kind: 'unstorable'
      readonly status: number
      readonly headers: HeaderList
      readonly reason: UnstorableReason
    }

export const NO_BODY: Uint8Array = new Uint8Array(0)

/** The first value of a header. */
export function headerOf(headers: HeaderList, name: string): string | undefined {
  return headers.find(([known]) => known === name)?.[1]
}

/** Kept by default, besides what a route adds. */
const KEPT: ReadonlySet<string> = new Set([
  'content-type',
  'content-language',
  'content-disposition',
  // There only when the handler itself encoded the body; a compressing layer works outside of what is kept.
  'content-encoding',
  'location',
  'link',
  'etag',
  'last-modified',
])

/** Never kept, whatever a route asks for: they belong to one connection, one caller or one moment. */
export const NEVER_KEPT: ReadonlySet<string> = new Set([
  'set-cookie',
  'set-cookie2',
  'www-authenticate',
  'proxy-authenticate',
  'authorization',
  'proxy-authorization',
  'connection',
  'keep-alive',
  'transfer-encoding',
  'te',
  'trailer',
  'upgrade',
  'date',
  'content-length',
  'vary',
  'age',
  'server-timing',
  'traceparent',
  'tracestate',
  'x-request-id',
])

const NEVER_KEPT_PREFIX = /^(access-control-|x-ratelimit-|ratelimit)/

/** Whether a route may ask for this header to be kept. */
export function mayBeKept(name: string): boolean {
  return !NEVER_KEPT.has(name) && !NEVER_KEPT_PREFIX.test(name)
}

/** The headers of an answer that every replay gets. */
export function keptHeaders(headers: HeaderList, extra: ReadonlySet<string>): HeaderList {
  return headers.filter(([name]) => KEPT.has(name) || (extra.has(name) && mayBeKept(name)))
}

/** Headers that other layers add to every answer, whatever it is: they go with the answer that takes its place, too. */
const OF_EVERY_ANSWER = /^(access-control-.*|vary|x-request-id)$/

/** The headers of an answer that do not belong to it alone. */
export function sharedHeaders(headers: HeaderList): HeaderList {
  return headers.filter(([name]) => OF_EVERY_ANSWER.test(name))
}

/** Each name once, with all its values, as header setters take them. */
export function groupedHeaders(headers: HeaderList): [name: string, value: string | string[]][] {
  const grouped = new Map<string, string[]>()
  for (const [name, value] of headers) grouped.set(name, [...(grouped.get(name) ?? []), value])
  return [...grouped].map(([name, values]) => [name, values.length === 1 ? (values[0] ?? '') : values])
}
