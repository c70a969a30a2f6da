import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import {
  answerOf,
  type Classified,
  classifyAnswer,
  classifyFailure,
  KEY_LIFETIME_ASSUMED_MS,
  keyLifetimeOf,
  providers,
} from '../../src/effect/provider/index.ts'

type Name = keyof typeof providers
interface Case {
  readonly of: Name
  readonly what: string
  readonly status: number
  readonly headers?: Record<string, string>
  readonly body?: unknown
  readonly kind: Classified['kind']
  readonly decides?: Classified['decides']
  readonly more?: Partial<Classified>
}

const REPLAYED = { 'Idempotent-Replayed': 'true' }
const stripe = (type: string, code?: string) => ({ error: { type, code, message: 'text' } })

const cases: readonly Case[] = [
  { of: 'stripeV1', what: 'success', status: 200, kind: 'applied', more: { isResult: true, replayed: false } },
  {
    of: 'stripeV1',
    what: 'a replayed success',
    status: 200,
    headers: REPLAYED,
    kind: 'applied',
    more: { replayed: true },
  },
  { of: 'stripeV1', what: 'a fresh 500', status: 500, kind: 'ambiguous', decides: 'attempt' },
  {
    of: 'stripeV1',
    what: 'a replayed 500 (B86)',
    status: 500,
    headers: REPLAYED,
    kind: 'storedFailure',
    decides: 'effect',
  },
  { of: 'stripeV1', what: 'a replayed 503 (B86)', status: 503, headers: REPLAYED, kind: 'storedFailure' },
  {
    of: 'stripeV1',
    what: 'a marker that says false',
    status: 500,
    headers: { 'idempotent-replayed': 'false' },
    kind: 'ambiguous',
  },
  {
    of: 'stripeV1',
    what: 'key in use (B87)',
    status: 409,
    body: stripe('idempotency_error', 'idempotency_key_in_use'),
    kind: 'inProgress',
    decides: 'attempt',
  },
  {
    of: 'stripeV1',
    what: 'key in use as 400',
    status: 400,
    body: stripe('idempotency_error', 'idempotency_key_in_use'),
    kind: 'inProgress',
  },
  { of: 'stripeV1', what: 'a bare 409 (B87)', status: 409, kind: 'inProgress' },
  {
    of: 'stripeV1',
    what: 'another body',
    status: 400,
    body: JSON.stringify(stripe('idempotency_error')),
    kind: 'mismatch',
    decides: 'effect',
  },
  {
    of: 'stripeV1',
    what: 'a declined card',
    status: 402,
    body: stripe('card_error', 'card_declined'),
    kind: 'refused',
    decides: 'effect',
  },
  {
    of: 'stripeV1',
    what: 'invalid parameters',
    status: 400,
    body: stripe('invalid_request_error'),
    kind: 'refused',
    decides: 'attempt',
  },
  {
    of: 'stripeV1',
    what: 'a replayed refusal',
    status: 400,
    headers: REPLAYED,
    body: stripe('invalid_request_error'),
    kind: 'refused',
    decides: 'effect',
  },
  { of: 'stripeV1', what: 'no credentials', status: 401, kind: 'refused', decides: 'attempt' },
  {
    of: 'stripeV1',
    what: 'too many requests',
    status: 429,
    headers: { 'Retry-After': '7' },
    kind: 'transient',
    decides: 'attempt',
    more: { retryAfterMs: 7_000 },
  },
  { of: 'stripeV2', what: 'a 500, which a repeat continues', status: 500, kind: 'ambiguous' },
  { of: 'stripeV2', what: 'another body', status: 400, body: stripe('idempotency_error'), kind: 'mismatch' },
  {
    of: 'paypal',
    what: 'the second of two at once',
    status: 409,
    body: { name: 'RESOURCE_CONFLICT', details: [{ issue: 'PREVIOUS_REQUEST_IN_PROGRESS' }] },
    kind: 'inProgress',
  },
  {
    of: 'paypal',
    what: 'the same as 422',
    status: 422,
    body: { name: 'UNPROCESSABLE_ENTITY', details: [{ issue: 'PREVIOUS_REQUEST_IN_PROGRESS' }] },
    kind: 'inProgress',
  },
  {
    of: 'paypal',
    what: 'an id used before',
    status: 422,
    body: { name: 'UNPROCESSABLE_ENTITY', details: [{ issue: 'PAYPAL_REQUEST_ID_PREVIOUSLY_USED' }] },
    kind: 'mismatch',
  },
  {
    of: 'paypal',
    what: 'an instrument that was declined',
    status: 422,
    body: { name: 'UNPROCESSABLE_ENTITY', details: [{ issue: 'INSTRUMENT_DECLINED' }] },
    kind: 'refused',
  },
  {
    of: 'adyen',
    what: 'in progress',
    status: 422,
    headers: { 'transient-error': 'true' },
    body: { errorCode: '704' },
    kind: 'inProgress',
  },
  { of: 'adyen', what: 'in progress, as a number', status: 409, body: { errorCode: 704 }, kind: 'inProgress' },
  { of: 'adyen', what: 'a transient error', status: 422, headers: { 'transient-error': 'true' }, kind: 'transient' },
  {
    of: 'adyen',
    what: 'a 500 that calls itself transient',
    status: 500,
    headers: { 'transient-error': 'true' },
    kind: 'ambiguous',
  },
  {
    of: 'adyen',
    what: 'a refusal',
    status: 422,
    headers: { 'transient-error': 'false' },
    body: { errorCode: '101' },
    kind: 'refused',
  },
  {
    of: 'square',
    what: 'another body',
    status: 400,
    body: { errors: [{ code: 'IDEMPOTENCY_KEY_REUSED' }] },
    kind: 'mismatch',
  },
  {
    of: 'square',
    what: 'a declined card',
    status: 400,
    body: { errors: [{ category: 'PAYMENT_METHOD_ERROR', code: 'CARD_DECLINED' }] },
    kind: 'refused',
    decides: 'effect',
  },
  {
    of: 'square',
    what: 'too many requests',
    status: 429,
    body: { errors: [{ code: 'RATE_LIMITED' }] },
    kind: 'transient',
  },
  {
    of: 'braintree',
    what: 'success',
    status: 200,
    body: { data: { chargePaymentMethod: { transaction: { id: 'x' } } } },
    kind: 'applied',
  },
  {
    of: 'braintree',
    what: 'a validation error',
    status: 200,
    body: { errors: [{ extensions: { errorClass: 'VALIDATION' } }] },
    kind: 'refused',
    decides: 'attempt',
  },
  {
    of: 'braintree',
    what: 'an internal error in a 200',
    status: 200,
    body: { errors: [{ extensions: { errorClass: 'INTERNAL' } }] },
    kind: 'ambiguous',
  },
  {
    of: 'braintree',
    what: 'a limit',
    status: 200,
    body: { errors: [{ extensions: { errorClass: 'RESOURCE_LIMIT' } }] },
    kind: 'transient',
  },
  {
    of: 'gocardless',
    what: 'an object made before',
    status: 409,
    body: {
      error: {
        type: 'invalid_state',
        errors: [{ reason: 'idempotent_creation_conflict', links: { conflicting_resource_id: 'PM123' } }],
      },
    },
    kind: 'applied',
    decides: 'effect',
    more: { existingId: 'PM123', isResult: false },
  },
  {
    of: 'gocardless',
    what: 'another conflict',
    status: 409,
    body: { error: { type: 'invalid_state', errors: [{ reason: 'mandate_cancelled' }] } },
    kind: 'refused',
  },
  {
    of: 'shopify',
    what: 'success',
    status: 200,
    body: { data: { refundCreate: { refund: { id: 1 }, userErrors: [] } } },
    kind: 'applied',
  },
  {
    of: 'shopify',
    what: 'in progress',
    status: 200,
    body: { data: { refundCreate: { userErrors: [{ code: 'IDEMPOTENCY_CONCURRENT_REQUEST' }] } } },
    kind: 'inProgress',
  },
  {
    of: 'shopify',
    what: 'other parameters',
    status: 200,
    body: { errors: [{ extensions: { code: 'IDEMPOTENCY_KEY_PARAMETER_MISMATCH' } }] },
    kind: 'mismatch',
  },
  {
    of: 'shopify',
    what: 'a first attempt that failed (B86)',
    status: 200,
    body: { data: { refundCreate: { userErrors: [{ code: 'IDEMPOTENCY_PREVIOUS_ATTEMPT_FAILED' }] } } },
    kind: 'storedFailure',
  },
  {
    of: 'shopify',
    what: 'an error of the user',
    status: 200,
    body: { data: { refundCreate: { userErrors: [{ message: 'no' }] } } },
    kind: 'refused',
  },
  {
    of: 'shopify',
    what: 'throttling in a 200',
    status: 200,
    body: { errors: [{ extensions: { code: 'THROTTLED' } }] },
    kind: 'transient',
  },
  {
    of: 'aws',
    what: 'other parameters, in XML',
    status: 400,
    body: '<Response><Errors><Error><Code>IdempotentParameterMismatch</Code></Error></Errors></Response>',
    kind: 'mismatch',
  },
  {
    of: 'aws',
    what: 'other parameters, in JSON',
    status: 400,
    body: { __type: 'IdempotentParameterMismatchException' },
    kind: 'mismatch',
  },
  { of: 'aws', what: 'throttling', status: 400, body: { __type: 'ThrottlingException' }, kind: 'transient' },
  {
    of: 'aws',
    what: 'a transaction in progress',
    status: 400,
    body: { __type: 'TransactionInProgressException' },
    kind: 'inProgress',
  },
  {
    of: 'aws',
    what: 'a failure with the code of throttling',
    status: 503,
    body: { __type: 'RequestLimitExceeded' },
    kind: 'ambiguous',
  },
  {
    of: 'effectivelyOnce',
    what: 'in progress',
    status: 409,
    headers: { 'retry-after': '2' },
    body: { code: 'OPERATION_IN_PROGRESS' },
    kind: 'inProgress',
    more: { retryAfterMs: 2_000 },
  },
  {
    of: 'effectivelyOnce',
    what: 'an unresolved commit',
    status: 503,
    body: { code: 'COMMIT_UNRESOLVED' },
    kind: 'inProgress',
  },
  {
    of: 'effectivelyOnce',
    what: 'a result that is not kept',
    status: 409,
    body: { code: 'RESULT_UNAVAILABLE' },
    kind: 'applied',
    more: { isResult: false },
  },
  {
    of: 'effectivelyOnce',
    what: 'an unknown outcome',
    status: 409,
    body: { code: 'OUTCOME_UNKNOWN' },
    kind: 'ambiguous',
  },
  {
    of: 'effectivelyOnce',
    what: 'a parked operation',
    status: 409,
    body: { code: 'OPERATION_PARKED' },
    kind: 'ambiguous',
  },
  {
    of: 'effectivelyOnce',
    what: 'proven not applied',
    status: 409,
    body: { code: 'NOT_APPLIED' },
    kind: 'refused',
    decides: 'effect',
  },
  {
    of: 'effectivelyOnce',
    what: 'another request',
    status: 422,
    body: { code: 'IDEMPOTENCY_KEY_REUSED' },
    kind: 'mismatch',
  },
  { of: 'effectivelyOnce', what: 'a busy server', status: 503, body: { code: 'TOO_BUSY' }, kind: 'ambiguous' },
  { of: 'generic', what: 'a redirect', status: 307, kind: 'ambiguous' },
  { of: 'generic', what: 'a request time-out', status: 408, kind: 'ambiguous' },
  { of: 'generic', what: 'too early', status: 425, kind: 'transient' },
  { of: 'generic', what: 'not found', status: 404, kind: 'refused', decides: 'attempt' },
  { of: 'generic', what: 'a gateway time-out', status: 504, kind: 'ambiguous' },
  { of: 'generic', what: 'a body that is no JSON', status: 502, body: '<html>', kind: 'ambiguous' },
]

test.each(cases)('$of: $what is $kind', ({ of, status, headers, body, kind, decides, more }) => {
  const bytes =
    body === undefined ? undefined : new TextEncoder().encode(typeof body === 'string' ? body : JSON.stringify(body))
  for (const answer of [
    { status, headers, body },
    { status, headers: new Headers(headers), body: bytes },
  ]) {
    expect(classifyAnswer(providers[of], answer)).toMatchObject({
      kind,
      status,
      ...(decides === undefined ? {} : { decides }),
      ...more,
    })
  }
})

test.each(Object.keys(providers) as Name[])('I11: %s never takes a fresh 5xx for an end', (name) => {
  for (const status of [500, 501, 502, 503, 504, 520, 599]) {
    expect(classifyAnswer(providers[name], { status }).kind).toBe('ambiguous')
  }
})

test.each([
  ['5', undefined, 5_000],
  ['Mon, 30 Nov 2026 18:00:30 GMT', 'Mon, 30 Nov 2026 18:00:00 GMT', 30_000],
  ['Mon, 30 Nov 2026 17:59:30 GMT', 'Mon, 30 Nov 2026 18:00:00 GMT', 0],
  ['Mon, 30 Nov 2026 18:00:30 GMT', undefined, undefined],
  ['Mon, 30 Nov 2036 18:00:30 GMT', 'Mon, 30 Nov 2026 18:00:00 GMT', 86_400_000],
  ['1e3', undefined, undefined],
  ['-1', undefined, undefined],
  ['2026-11-30', undefined, undefined],
])('Retry-After %j beside Date %j is %j milliseconds', (retryAfter, date, expected) => {
  const headers = { 'retry-after': retryAfter, ...(date === undefined ? {} : { date }) }
  expect(classifyAnswer(providers.generic, { status: 429, headers }).retryAfterMs).toBe(expected)
})

test.each([
  [
    'stripe',
    { statusCode: 402, headers: {}, raw: { type: 'card_error', code: 'card_declined' }, type: 'StripeCardError' },
    'refused',
  ],
  [
    'stripe, key in use',
    { statusCode: 409, headers: {}, raw: { type: 'idempotency_error', code: 'idempotency_key_in_use' } },
    'inProgress',
  ],
  [
    'axios',
    { code: 'ERR_BAD_REQUEST', response: { status: 400, headers: {}, data: { error: { type: 'idempotency_error' } } } },
    'mismatch',
  ],
  [
    'got',
    { code: 'ERR_NON_2XX_3XX_RESPONSE', response: { statusCode: 500, headers: { 'idempotent-replayed': 'true' } } },
    'storedFailure',
  ],
])('an answer that %s throws is read as an answer', (_client, fields, kind) => {
  expect(classifyFailure(providers.stripeV1, Object.assign(new Error('text'), fields)).kind).toBe(kind)
})

test('an answer that the AWS SDK throws is read as an answer', () => {
  const thrown = Object.assign(new Error('text'), { name: 'ThrottlingException', $metadata: { httpStatusCode: 400 } })
  expect(classifyFailure(providers.aws, thrown)).toMatchObject({ kind: 'transient', codes: ['ThrottlingException'] })
})

test.each([undefined, null, 'text', 7, new Error('text'), { status: 'paid' }, { status: 42 }, { code: 20 }])(
  'I11: %j, thrown, carries no answer and leaves the outcome open',
  (thrown) => {
    expect(answerOf(thrown)).toBeUndefined()
    expect(classifyFailure(providers.generic, thrown)).toMatchObject({ kind: 'ambiguous', decides: 'attempt' })
  },
)

const connect = (code: string) => Object.assign(new Error('text'), { code, syscall: 'connect' })
const read = (code: string) => Object.assign(new Error('text'), { code, syscall: 'read' })
const fetchFailed = (cause: unknown) => new TypeError('fetch failed', { cause })

test.each([
  ['a refused connection', connect('ECONNREFUSED'), 'transient'],
  ['the same under fetch', fetchFailed(connect('ECONNREFUSED')), 'transient'],
  [
    'every address refused',
    fetchFailed(new AggregateError([connect('ECONNREFUSED'), connect('EHOSTUNREACH')])),
    'transient',
  ],
  [
    'one address that reset',
    fetchFailed(new AggregateError([connect('ECONNREFUSED'), read('ECONNRESET')])),
    'ambiguous',
  ],
  ['no such name', connect('ENOTFOUND'), 'transient'],
  [
    'a time-out of connecting',
    fetchFailed(Object.assign(new Error('text'), { code: 'UND_ERR_CONNECT_TIMEOUT' })),
    'transient',
  ],
  ['a time-out of the system while connecting', connect('ETIMEDOUT'), 'transient'],
  ['a time-out of the system while reading', read('ETIMEDOUT'), 'ambiguous'],
  ['a reset', read('ECONNRESET'), 'ambiguous'],
  ['a broken pipe', Object.assign(new Error('text'), { code: 'EPIPE', syscall: 'write' }), 'ambiguous'],
  ['a closed socket', fetchFailed(Object.assign(new Error('text'), { code: 'UND_ERR_SOCKET' })), 'ambiguous'],
  [
    'a time-out for headers',
    fetchFailed(Object.assign(new Error('text'), { code: 'UND_ERR_HEADERS_TIMEOUT' })),
    'ambiguous',
  ],
  ['an abort', new DOMException('text', 'AbortError'), 'ambiguous'],
  ['a time-out of ours', new DOMException('text', 'TimeoutError'), 'ambiguous'],
  [
    'a connection error of stripe',
    Object.assign(new Error('text'), { type: 'StripeConnectionError', detail: connect('ECONNREFUSED') }),
    'transient',
  ],
])('%s is %s', (_what, thrown, kind) => {
  expect(classifyFailure(providers.stripeV1, thrown)).toMatchObject({ kind, decides: 'attempt', status: undefined })
})

test('a chain of causes that never ends is given up', () => {
  const error: { cause?: unknown } = {}
  error.cause = error
  expect(classifyFailure(providers.generic, error).kind).toBe('ambiguous')
})

test('real failures of fetch: refused is certain, a socket that ends after the request is not', async () => {
  const server = http.createServer((request) => request.resume().on('end', () => request.socket.destroy()))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const thrown = async () =>
    fetch(url, { method: 'POST', body: '{}' }).then(
      () => undefined,
      (error: unknown) => error,
    )
  expect(classifyFailure(providers.generic, await thrown()).kind).toBe('ambiguous')
  await new Promise((resolve) => server.close(resolve))
  expect(classifyFailure(providers.generic, await thrown())).toMatchObject({
    kind: 'transient',
    codes: ['ECONNREFUSED'],
  })
})

test('B90: a lifetime that is not published is the shortest one that is, and for ever is for ever', () => {
  const published = Object.values(providers)
    .filter(({ name }) => name !== 'aws')
    .flatMap(({ keyLifetimeMs }) => keyLifetimeMs ?? [])
  expect(KEY_LIFETIME_ASSUMED_MS).toBe(Math.min(...published))
  expect(keyLifetimeOf(providers.square)).toBe(KEY_LIFETIME_ASSUMED_MS)
  expect(keyLifetimeOf({ ...providers.square, keyLifetimeMs: null })).toBeNull()
  expect(keyLifetimeOf(providers.stripeV1)).toBe(86_400_000)
})
