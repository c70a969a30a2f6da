/**
 * All profiles by name; here those that are not of payment providers.
 *
 * @module
 */

import { adyen, braintree, gocardless, paypal, square, stripeV1, stripeV2 } from './payment-profiles.ts'
import type { ProviderProfile } from './profile.ts'

const DAY_MS = 86_400_000

const shopify: ProviderProfile = {
  name: 'shopify',
  title: 'Shopify GraphQL Admin API',
  key: { in: 'directive', name: '@idempotent(key:)', lengthMax: 64, charset: 'visible-ascii' },
  storedFailures: 'refuses',
  replays: 'current',
  codesAt: ['errors.*.extensions.code', 'data.*.userErrors.*.code'],
  rules: [
    { kind: 'inProgress', codes: ['IDEMPOTENCY_CONCURRENT_REQUEST'] },
    { kind: 'mismatch', codes: ['IDEMPOTENCY_KEY_PARAMETER_MISMATCH'] },
    { kind: 'storedFailure', codes: ['IDEMPOTENCY_PREVIOUS_ATTEMPT_FAILED'] },
    { kind: 'transient', codes: ['THROTTLED'] },
    { kind: 'ambiguous', codes: ['INTERNAL_SERVER_ERROR', 'TIMEOUT'] },
    { kind: 'refused', status: [200, 299], has: 'data.*.userErrors.*' },
    { kind: 'refused', status: [200, 299], has: 'errors.*' },
  ],
  lookUp: {
    by: 'reference',
    how: 'Put your reference into a note, tag or metafield that the mutation sets, and query it.',
  },
  notes: [
    'Mandatory for refunds and inventory from version 2026-04; other mutations take the key as an argument, or none.',
    'After a failed first attempt the provider wants a new key: look up first, so that the new key is not a second refund.',
    'The longest key is not published; 64 characters are assumed.',
  ],
  sources: [
    { fact: 'directive', at: 'https://shopify.dev/docs/api/usage/idempotent-requests' },
    { fact: 'codes, what to do for each', at: 'https://shopify.dev/docs/api/usage/implementing-idempotency' },
  ],
}

const aws: ProviderProfile = {
  name: 'aws',
  title: 'AWS client tokens',
  key: { in: 'body', name: 'ClientToken', lengthMax: 64, charset: 'visible-ascii' },
  keyLifetimeMs: 600_000,
  storedFailures: 'unknown',
  replays: 'current',
  codesAt: ['__type', 'code', 'Code', 'Error.Code'],
  rules: [
    {
      kind: 'mismatch',
      codes: [
        'IdempotentParameterMismatch',
        'IdempotentParameterMismatchException',
        'IdempotencyParameterMismatchException',
      ],
    },
    { kind: 'inProgress', codes: ['TransactionInProgressException'] },
    {
      kind: 'transient',
      status: [400, 499],
      codes: [
        'Throttling',
        'ThrottlingException',
        'ThrottledException',
        'RequestLimitExceeded',
        'RequestThrottled',
        'RequestThrottledException',
        'TooManyRequestsException',
        'ProvisionedThroughputExceededException',
      ],
    },
    // A conflict with a resource, unless one of the codes above says more.
    { kind: 'refused', status: 409 },
  ],
  lookUp: {
    by: 'key',
    how: 'Most `Describe` and `List` calls give the token back or filter by it; else tag the resource and filter by the tag.',
  },
  notes: [
    'Each service has its own time: DynamoDB 10 minutes (and 36 characters), EC2 24 hours after the instance has ended. The shortest is assumed.',
    'SDKs make a token of their own when none is given, a new one for each call: give ours.',
    'The same token in another region is another request.',
  ],
  sources: [
    {
      fact: '64 ASCII characters, IdempotentParameterMismatch',
      at: 'https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html',
    },
    {
      fact: 'DynamoDB: 10 minutes, 36 characters',
      at: 'https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_TransactWriteItems.html',
    },
  ],
}

const effectivelyOnce: ProviderProfile = {
  name: 'effectively-once',
  title: "A route guarded by this package's HTTP adapters",
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 255, charset: 'bare' },
  keyLifetimeMs: DAY_MS,
  storedFailures: 'continues',
  replays: 'first',
  replayMarker: { name: 'idempotent-replayed', value: 'true' },
  codesAt: ['code'],
  rules: [
    { kind: 'mismatch', codes: ['IDEMPOTENCY_KEY_REUSED'] },
    { kind: 'inProgress', codes: ['OPERATION_IN_PROGRESS', 'COMMIT_UNRESOLVED'] },
    { kind: 'refused', codes: ['NOT_APPLIED'], decides: 'effect' },
    { kind: 'applied', codes: ['RESULT_UNAVAILABLE'] },
    { kind: 'ambiguous', codes: ['OUTCOME_UNKNOWN', 'KEY_EXPIRED', 'OPERATION_PARKED'] },
  ],
  lookUp: { by: 'key', how: 'Repeat with the same key, or read the status resource that `Location` of a 202 names.' },
  notes: [
    'A route may set another retention: state it. The profile assumes the 24 hours for which answers are kept by default.',
  ],
  sources: [{ fact: 'codes', at: 'docs/errors.md' }],
}

const generic: ProviderProfile = {
  name: 'generic',
  title: 'An HTTP API with the Idempotency-Key header',
  key: { in: 'header', name: 'Idempotency-Key', lengthMax: 64, charset: 'bare' },
  storedFailures: 'unknown',
  replays: 'first',
  replayMarker: { name: 'idempotent-replayed', value: 'true' },
  codesAt: ['code', 'error.code', 'error.type'],
  rules: [],
  lookUp: { by: 'none', how: 'Say in `reconcile` how to ask.' },
  notes: [
    'State what your provider publishes: `{ ...providers.generic, name: "acme-pay", keyLifetimeMs: 86_400_000 }`.',
    '422 is taken as a refusal of the attempt: with a frozen request, another payload cannot have been ours.',
  ],
  sources: [
    {
      fact: 'the header, 409 while in progress',
      at: 'https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/',
    },
  ],
}

/** Names of the profiles. */
export type ProviderName =
  | 'stripeV1'
  | 'stripeV2'
  | 'paypal'
  | 'adyen'
  | 'square'
  | 'braintree'
  | 'gocardless'
  | 'shopify'
  | 'aws'
  | 'effectivelyOnce'
  | 'generic'

/** Profiles by name. Spread one to change what is different for you. */
export const providers: Readonly<Record<ProviderName, ProviderProfile>> = {
  stripeV1,
  stripeV2,
  paypal,
  adyen,
  square,
  braintree,
  gocardless,
  shopify,
  aws,
  effectivelyOnce,
  generic,
}
