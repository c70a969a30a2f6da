/**
 * Profiles of payment providers, from what they publish. Where a provider is silent, the profile is cautious: keys are short,
 * lifetimes are the shortest published, and an answer that could mean two things means the one that calls nobody again.
 *
 * @module
 */

import type { ProviderProfile } from './profile.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000

const STRIPE_KEYS = 'https://docs.stripe.com/api/idempotent_requests'
const STRIPE_ERRORS = 'https://docs.stripe.com/error-low-level'

export const stripeV1: ProviderProfile = {
  name: 'stripe-v1',
  title: 'Stripe API v1',
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 255, charset: 'visible-ascii' },
  keyLifetimeMs: DAY_MS,
  storedFailures: 'replays',
  replays: 'first',
  replayMarker: { name: 'idempotent-replayed', value: 'true' },
  codesAt: ['error.code', 'error.type', 'error.decline_code'],
  rules: [
    { kind: 'inProgress', codes: ['idempotency_key_in_use'] },
    { kind: 'mismatch', codes: ['idempotency_error'] },
    { kind: 'transient', status: 429 },
    // A declined card is told by the code that executes the request: with this key nothing has gone through before.
    { kind: 'refused', status: 402, decides: 'effect' },
  ],
  lookUp: {
    by: 'reference',
    how: 'Put your operation into `metadata`, then list objects created since the first attempt and compare. Search is seconds behind, so it proves what it finds and not what it misses.',
  },
  notes: [
    'A 500 is stored once execution began, and every repeat gets it: look up what happened, then use a new key only if it did not.',
    'Invalid parameters, conflicts, 401 and 429 are answered before the key is looked up and are not stored.',
    'Keys count per account and mode (live, test).',
  ],
  sources: [
    { fact: 'header, length, at least 24 hours, 500s are replayed, parameters are compared', at: STRIPE_KEYS },
    { fact: 'Idempotent-Replayed; what is decided before the key; 409 for a running request', at: STRIPE_ERRORS },
    { fact: 'idempotency_error, idempotency_key_in_use', at: 'https://docs.stripe.com/api/errors' },
  ],
}

export const stripeV2: ProviderProfile = {
  name: 'stripe-v2',
  title: 'Stripe API v2',
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 255, charset: 'visible-ascii' },
  keyLifetimeMs: 30 * DAY_MS,
  storedFailures: 'continues',
  replays: 'current',
  codesAt: ['error.code', 'error.type'],
  rules: [
    { kind: 'inProgress', codes: ['idempotency_key_in_use'] },
    { kind: 'mismatch', codes: ['idempotency_error'] },
  ],
  lookUp: {
    by: 'key',
    how: 'Repeat the request with the same key: finished work is not repeated, unfinished work is continued.',
  },
  notes: [
    'A failed request is continued by a repeat with the same key, so its answer may change from failure to success.',
  ],
  sources: [
    { fact: 'successes are not repeated, failures are continued', at: STRIPE_KEYS },
    { fact: '30 days', at: 'https://docs.stripe.com/api-v2-overview#idempotency' },
  ],
}

export const paypal: ProviderProfile = {
  name: 'paypal',
  title: 'PayPal REST',
  key: { in: 'header', name: 'PayPal-Request-Id', lengthMax: 108, charset: 'visible-ascii' },
  keyLifetimeMs: 3 * HOUR_MS,
  storedFailures: 'continues',
  replays: 'current',
  codesAt: ['name', 'details.*.issue'],
  rules: [
    { kind: 'inProgress', codes: ['PREVIOUS_REQUEST_IN_PROGRESS'] },
    { kind: 'mismatch', codes: ['DUPLICATE_REQUEST_ID', 'PAYPAL_REQUEST_ID_PREVIOUSLY_USED'] },
    { kind: 'transient', codes: ['RATE_LIMIT_REACHED'] },
  ],
  lookUp: {
    by: 'key',
    how: 'Repeat with the same id inside its time, or read the order or payment; put your reference into `custom_id` or `invoice_id` and search transactions by it.',
  },
  notes: [
    'The id is kept 3 hours by the vault, 6 by orders (72 on request), 45 days by refunds: the shortest is assumed. Give `keyLifetimeMs` for the API that you call.',
    'A repeat gets the latest status, not the first answer: a payment may be refunded by now.',
    'Not every API takes the id. Payouts are told apart by `sender_batch_id`.',
  ],
  sources: [
    {
      fact: 'header, latest status, the second of two at once may fail',
      at: 'https://developer.paypal.com/reference/guidelines/idempotency/',
    },
    { fact: 'length and times', at: 'https://developer.paypal.com/api/rest/requests/' },
    {
      fact: 'PAYPAL_REQUEST_ID_PREVIOUSLY_USED',
      at: 'https://developer.paypal.com/api/payment-tokens/v3/errors/paypal_request_id_previously_used',
    },
  ],
}

export const adyen: ProviderProfile = {
  name: 'adyen',
  title: 'Adyen',
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 64, charset: 'visible-ascii' },
  keyLifetimeMs: 7 * DAY_MS,
  storedFailures: 'unknown',
  replays: 'first',
  // The header names the key in every answer to a request that had one, so it marks no replay.
  codesAt: ['errorCode'],
  rules: [
    { kind: 'inProgress', codes: ['704'] },
    { kind: 'transient', status: [400, 499], header: { name: 'transient-error', value: 'true' } },
  ],
  lookUp: {
    by: 'reference',
    how: 'Webhooks carry `merchantReference` and `pspReference`; without one, look the reference up in the Customer Area or in reports.',
  },
  notes: [
    'The pages have named 7 and 31 days: the shorter is taken.',
    'Keys are kept per company account and per region: a repeat must go to the same region.',
    'A refusal by the bank is an answer of success with `resultCode: Refused`: look at it.',
  ],
  sources: [
    {
      fact: 'header, 64 characters, validity, 704, transient-error',
      at: 'https://docs.adyen.com/development-resources/api-idempotency/',
    },
  ],
}

export const square: ProviderProfile = {
  name: 'square',
  title: 'Square',
  key: { in: 'body', name: 'idempotency_key', lengthMax: 45, charset: 'visible-ascii' },
  storedFailures: 'unknown',
  replays: 'first',
  codesAt: ['errors.*.code', 'errors.*.category'],
  rules: [
    { kind: 'mismatch', codes: ['IDEMPOTENCY_KEY_REUSED'] },
    { kind: 'transient', codes: ['RATE_LIMITED'] },
    { kind: 'refused', status: [400, 499], codes: ['PAYMENT_METHOD_ERROR'], decides: 'effect' },
  ],
  lookUp: {
    by: 'list',
    how: 'Put your reference into `reference_id`, then list payments since the first attempt and compare.',
  },
  notes: [
    'Several APIs allow 45 characters, others more; behaviour differs between APIs.',
    'How long keys are kept is not published.',
  ],
  sources: [
    {
      fact: 'body member, first success is repeated, error for another request',
      at: 'https://developer.squareup.com/docs/build-basics/common-api-patterns/idempotency',
    },
  ],
}

export const braintree: ProviderProfile = {
  name: 'braintree',
  title: 'Braintree GraphQL',
  key: { in: 'body', name: 'variables.input.apiRequestKey', lengthMax: 64, charset: 'visible-ascii' },
  keyLifetimeMs: 30 * DAY_MS,
  storedFailures: 'unknown',
  replays: 'current',
  codesAt: ['errors.*.extensions.errorClass'],
  rules: [
    { kind: 'transient', codes: ['RESOURCE_LIMIT'] },
    { kind: 'ambiguous', codes: ['INTERNAL', 'SERVICE_AVAILABILITY', 'UNKNOWN'] },
    // VALIDATION is also the answer while the first request runs, and for another payload: it decides one attempt only.
    { kind: 'refused', status: [200, 299], has: 'errors.*' },
  ],
  lookUp: {
    by: 'key',
    how: 'Repeat with the same key: the transaction is given in its current state. Or search transactions by `orderId`.',
  },
  notes: [
    'A transaction that the processor declined exists: the answer is one of success, with a status to look at.',
    'The key excludes duplicate checking of transactions.',
    'The longest key is not published; 64 characters are assumed.',
  ],
  sources: [
    {
      fact: '30 days, current state, VALIDATION while in flight or for other input',
      at: 'https://developer.paypal.com/braintree/graphql/reference/types/charge-payment-method-input',
    },
    { fact: 'at most once', at: 'https://developer.paypal.com/braintree/graphql/integration_guides/idempotency' },
  ],
}

export const gocardless: ProviderProfile = {
  name: 'gocardless',
  title: 'GoCardless',
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 64, charset: 'visible-ascii' },
  storedFailures: 'unknown',
  replays: 'reference',
  codesAt: ['error.errors.*.reason', 'error.type'],
  existingIdAt: 'error.errors.*.links.conflicting_resource_id',
  rules: [
    { kind: 'applied', codes: ['idempotent_creation_conflict'] },
    { kind: 'transient', codes: ['rate_limit_exceeded'] },
    { kind: 'inProgress', codes: ['idempotency_key_in_use'] },
    // Other conflicts of state are refusals, not a request in flight.
    { kind: 'refused', status: 409 },
  ],
  lookUp: {
    by: 'key',
    how: 'Repeat with the same key: the conflict names the object (`existingId`); read it. Or list by `metadata` and creation time.',
  },
  notes: [
    'Only creations take a key.',
    'The body is not compared: read the object that exists and compare it with what you meant.',
    'The longest key and how long it is kept are not published.',
  ],
  sources: [
    {
      fact: 'header, 409 idempotent_creation_conflict, conflicting_resource_id',
      at: 'https://developer.gocardless.com/api-reference/#making-requests-idempotency-keys',
    },
    { fact: 'creations, failed requests may be repeated', at: 'https://gocardless.com/blog/idempotency-keys/' },
  ],
}
