/**
 * Fingerprint of an HTTP request: method, path, query, media type, content encoding, chosen headers, body.
 *
 * The principal is not in it (that is the scope, and tokens rotate between attempts), nor is anything that a
 * retry may change without meaning something else: tracing, dates, signatures, forwarding. A request that is
 * understood gets a form in which spelling makes no difference; whatever could be read in two ways is compared by
 * its bytes. So the worst error is a false mismatch, never the answer to another request.
 *
 * @module
 */

import { hash } from '../shared/crypto.ts'
import { choiceOption, describe, refuseUnknownOptions } from '../shared/options.ts'
import { canonicalText } from './canonical-text.ts'
import { canonicalJson, canonicalParsedJson } from './canonical-value.ts'
import { lengthPrefixed } from './fields.ts'
import { canonicalBytesMax, type Fingerprint, type FingerprintMode } from './fingerprint.ts'
import { formPairs, sortedByName } from './form.ts'
import { isJson, isToken, isUtf8, type MediaType, parseMediaType, trimmed } from './media-type.ts'
import { type MultipartPart, multipartParts } from './multipart.ts'

/** Node's `req.headers`, or anything that gives pairs, such as `Headers` of fetch. Names in any letter case. */
export type RequestHeaders =
  | Readonly<Record<string, string | readonly string[] | undefined>>
  | Iterable<readonly [name: string, value: string]>

/** What a fingerprint is taken of. At most one of `body`, `bodySha256`, `parsed` and `fields` is given. */
export interface FingerprintRequest {
  readonly method: string
  /** Path and query as received (`req.url`); a full URL is accepted, its origin is left out. */
  readonly target: string
  readonly headers: RequestHeaders
  /** The body's bytes as received, before anything parsed them. Absent = empty. */
  readonly body?: Uint8Array | undefined
  /** SHA-256 of a body that was streamed and never held as a whole; it is compared by its bytes. 32 bytes. */
  readonly bodySha256?: Uint8Array | undefined
  /** For frameworks that keep only what they parsed. Refused when parsing has visibly lost something. */
  readonly parsed?: unknown
  /** What stands for the body: the members that count, chosen by you. Members not in it are not protected. */
  readonly fields?: unknown
  /** The body is after decoding of its Content-Encoding (the framework inflated it). Default false. */
  readonly contentDecoded?: boolean | undefined
}

export interface RequestFingerprintOptions {
  /** Names of headers that change what the request means (API version, `prefer`, tenant). Default none. */
  readonly headers?: readonly string[] | undefined
  /** `application/x-www-form-urlencoded` by its bytes, or by its decoded pairs in order. Default `raw`. */
  readonly forms?: 'raw' | 'pairs' | undefined
  /** JSON bodies above this many bytes are compared by their bytes. Default 262_144; 0 to 67_108_864. */
  readonly canonicalBytesMax?: number | undefined
}

/**
 * Fingerprint of an HTTP request.
 *
 * @throws {TypeError} naming the argument: a missing method or target, a body that is not bytes, more than one kind
 *   of body, a header that must not count, and for `parsed` and `fields` what `canonicalJson` refuses.
 * @see docs/fingerprint.md
 * @example
 * requestFingerprint({ method: req.method, target: req.url, headers: req.headers, body: rawBody }, { headers: ['api-version'] })
 */
export function requestFingerprint(request: FingerprintRequest, options: RequestFingerprintOptions = {}): Fingerprint {
  const rules = checkedOptions(options)
  checkRequest(request)
  const headers = linesOf(request.headers, ['content-type', 'content-encoding', ...rules.headers])
  const type = contentType(headers.get('content-type') ?? [])
  const encodings = isDecoded(request) ? [] : contentEncodings(headers.get('content-encoding') ?? [])
  const body = bodyOf(request, encodings.length === 0 ? type.known : undefined, rules)
  const [path, query] = pathAndQuery(request.target)
  const fields = lengthPrefixed([
    LABEL_REQUEST,
    request.method.toUpperCase(),
    path,
    lengthPrefixed(sortedByName(formPairs(Buffer.from(query, 'utf8'))).flat()),
    lengthPrefixed(type.fields(body.form)),
    lengthPrefixed(encodings),
    lengthPrefixed(rules.headers.flatMap((name) => chosenHeader(name, headers.get(name)))),
    body.form,
    body.sha256,
  ])
  return { mode: body.mode, value: sha256(fields) }
}

/** Version 1. As the first field, with its length before it, it cannot be the beginning of another label. */
const LABEL_REQUEST = 'effectively-once fingerprint 1 request\n'

/** Change between attempts of one request, or belong to the scope: with them no retry would ever match. */
const NEVER_COUNTED: ReadonlySet<string> = new Set([
  'authorization',
  'proxy-authorization',
  'cookie',
  'idempotency-key',
  'date',
  'signature',
  'signature-input',
  'traceparent',
  'tracestate',
  'baggage',
  'x-request-id',
  'content-length',
  'connection',
])

interface Rules {
  /** Lower case, sorted, each once. */
  readonly headers: readonly string[]
  readonly forms: 'raw' | 'pairs'
  readonly canonicalBytesMax: number
}

function checkedOptions(options: RequestFingerprintOptions): Rules {
  refuseUnknownOptions('requestFingerprint', options, ['headers', 'forms', 'canonicalBytesMax'])
  const names = options.headers ?? []
  if (!Array.isArray(names)) throw new TypeError(`headers takes a list of header names, got ${describe(names)}`)
  return {
    headers: [...new Set(names.map(countedHeader))].sort(),
    forms: choiceOption('forms', options.forms, ['raw', 'pairs'], 'raw'),
    canonicalBytesMax: canonicalBytesMax(options.canonicalBytesMax),
  }
}

function countedHeader(name: string): string {
  if (typeof name !== 'string' || !isToken(name)) {
    throw new TypeError(`headers takes header names, got ${describe(name)}`)
  }
  const lower = name.toLowerCase()
  if (NEVER_COUNTED.has(lower)) {
    throw new TypeError(`headers: ${lower} differs between attempts or belongs to the scope, it cannot count`)
  }
  return lower
}

function checkRequest(request: FingerprintRequest): void {
  if (typeof request.method !== 'string' || !isToken(request.method)) {
    throw new TypeError(`request.method takes an HTTP method, got ${describe(request.method)}`)
  }
  if (typeof request.target !== 'string' || request.target === '') {
    throw new TypeError(`request.target takes path and query, got ${describe(request.target)}`)
  }
  if (typeof request.headers !== 'object' || request.headers === null) {
    throw new TypeError(`request.headers takes headers, got ${describe(request.headers)}`)
  }
  const { body, bodySha256, parsed, fields } = request
  if (body !== undefined && !(body instanceof Uint8Array)) {
    throw new TypeError(`request.body takes the bytes as received (a Uint8Array), got ${describe(body)}`)
  }
  if (bodySha256 !== undefined && !(bodySha256 instanceof Uint8Array && bodySha256.byteLength === 32)) {
    throw new TypeError(`request.bodySha256 takes 32 bytes, got ${describe(bodySha256)}`)
  }
  const given = [body, bodySha256, parsed, fields].filter((kind) => kind !== undefined).length
  if (given > 1) throw new TypeError('request takes one of body, bodySha256, parsed and fields')
}

/** What somebody has parsed or picked from was decoded before. */
function isDecoded(request: FingerprintRequest): boolean {
  return request.contentDecoded === true || request.parsed !== undefined || request.fields !== undefined
}

/** How the body entered the hash. `json` is the same for bytes and for a parsed object. */
type BodyForm = 'raw' | 'json' | 'multipart' | 'pairs' | 'fields'

interface Body {
  readonly form: BodyForm
  readonly mode: FingerprintMode
  readonly sha256: Uint8Array
}

/** `type` is undefined when it is not known how to read the body. */
function bodyOf(request: FingerprintRequest, type: MediaType | undefined, rules: Rules): Body {
  if (request.fields !== undefined) return body('fields', 'canonical', canonicalJson(request.fields))
  if (request.parsed !== undefined) return body('json', 'parsed', canonicalParsedJson(request.parsed))
  if (request.bodySha256 !== undefined) return { form: 'raw', mode: 'raw', sha256: request.bodySha256 }
  const bytes = request.body ?? EMPTY
  return (type === undefined ? undefined : understood(bytes, type, rules)) ?? body('raw', 'raw', bytes)
}

const EMPTY = new Uint8Array(0)

function body(form: BodyForm, mode: FingerprintMode, content: string | Uint8Array): Body {
  return { form, mode, sha256: sha256(content) }
}

/** Undefined when the bytes have no form in which spelling makes no difference. */
function understood(bytes: Uint8Array, type: MediaType, rules: Rules): Body | undefined {
  if (isJson(type)) {
    if (!isUtf8(type) || bytes.byteLength > rules.canonicalBytesMax) return undefined
    const canonical = canonicalText(bytes)
    return canonical.lossless ? body('json', 'canonical', canonical.json) : undefined
  }
  if (type.essence.startsWith('multipart/')) {
    const parts = multipartParts(bytes, type.parameters.get('boundary') ?? '')
    return parts === undefined ? undefined : body('multipart', 'canonical', multipartFields(parts))
  }
  if (type.essence === 'application/x-www-form-urlencoded' && rules.forms === 'pairs' && isUtf8(type)) {
    return body('pairs', 'canonical', lengthPrefixed(formPairs(bytes).flat()))
  }
  return undefined
}

function multipartFields(parts: readonly MultipartPart[]): Buffer {
  return lengthPrefixed(parts.flatMap((part) => [lengthPrefixed(part.headers.flat()), sha256(part.content)]))
}

interface ContentType {
  /** Undefined when there is none, or none that all readers understand the same way. */
  readonly known: MediaType | undefined
  fields(form: BodyForm): string[]
}

function contentType(lines: readonly string[]): ContentType {
  const [line] = lines
  const known = line === undefined || lines.length > 1 ? undefined : parseMediaType(line)
  if (known === undefined) return { known, fields: () => (lines.length === 0 ? [] : ['unread', ...lines]) }
  return {
    known,
    fields: (form) => [
      known.essence,
      ...[...known.parameters]
        // The boundary is spelling once the parts are known; before that it says how to read the bytes.
        .filter(([name]) => !(name === 'charset' && isUtf8(known)) && !(name === 'boundary' && form === 'multipart'))
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .flat(),
    ],
  }
}

function contentEncodings(lines: readonly string[]): string[] {
  return lines
    .flatMap((line) => line.split(','))
    .map((coding) => trimmed(coding).toLowerCase())
    .filter((coding) => coding !== '' && coding !== 'identity')
}

/** A header that is absent leaves no trace, so that choosing one more changes nothing for requests without it. */
function chosenHeader(name: string, lines: readonly string[] | undefined): string[] {
  return lines === undefined ? [] : [name, lines.join(', ')]
}

/** The lines of the headers that count, by name in lower case. */
function linesOf(headers: RequestHeaders, wanted: readonly string[]): Map<string, string[]> {
  const lines = new Map<string, string[]>()
  if (headers instanceof Headers) {
    // Going through all of them sorts them.
    for (const name of wanted) {
      const value = headers.get(name)
      if (value !== null) lines.set(name, [trimmed(value)])
    }
    return lines
  }
  const entries = isIterable(headers) ? headers : Object.entries(headers)
  for (const [name, value] of entries) {
    const lower = name.toLowerCase()
    if (value === undefined || !wanted.includes(lower)) continue
    const values = (typeof value === 'string' ? [value] : [...value]).map(trimmed)
    lines.set(lower, [...(lines.get(lower) ?? []), ...values])
  }
  return lines
}

function isIterable(headers: RequestHeaders): headers is Iterable<readonly [string, string]> {
  return Symbol.iterator in headers
}

const ORIGIN = /^[A-Za-z][A-Za-z0-9+.-]*:\/\/[^/?#]*/

function pathAndQuery(target: string): [path: string, query: string] {
  const local = target.replace(ORIGIN, '')
  const mark = local.indexOf('?')
  const path = mark === -1 ? local : local.slice(0, mark)
  return [path === '' ? '/' : path, mark === -1 ? '' : local.slice(mark + 1)]
}

function sha256(content: string | Uint8Array): Buffer {
  return hash('sha256', content, 'buffer')
}
