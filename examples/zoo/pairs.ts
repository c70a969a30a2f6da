/** The pairs of the zoo: what the drill says of each mistake, and the window in which it shows. The twin passes. */

export interface Pair {
  /** `NAME.ts` has the mistake, `NAME.fixed.ts` is its twin. */
  readonly name: string
  readonly verdict: 'DUPLICATE' | 'LOST' | 'STUCK' | 'RESPONSE DIFFERS'
  readonly window: string
}

export const pairs: readonly Pair[] = [
  { name: 'ack-before-commit', verdict: 'LOST', window: 'kill after amqp:1:ack' },
  { name: 'cached-500', verdict: 'STUCK', window: 'deadlock before sql:2:insert into orders' },
  { name: 'check-then-insert', verdict: 'DUPLICATE', window: 'delivered twice before sql:2:insert into orders' },
  { name: 'claim-without-lease', verdict: 'STUCK', window: 'kill after sql:1:insert into runs' },
  { name: 'commit-then-publish', verdict: 'LOST', window: 'kill before amqp:1:publish order-created' },
  { name: 'completion-by-id', verdict: 'DUPLICATE', window: 'paused beyond the lease before sql:3:update jobs' },
  { name: 'cursor-by-max-id', verdict: 'LOST', window: 'delivered in another order' },
  { name: 'delta-without-row', verdict: 'DUPLICATE', window: 'kill after sql:1:update accounts' },
  { name: 'half-a-retry', verdict: 'LOST', window: 'serialization failure before sql:4:insert into payouts' },
  {
    name: 'lease-without-fence',
    verdict: 'DUPLICATE',
    window: 'paused beyond the lease before sql:3:insert into payouts',
  },
  { name: 'mark-before-publish', verdict: 'LOST', window: 'kill before amqp:1:publish events' },
  { name: 'mark-in-another-transaction', verdict: 'LOST', window: 'kill after sql:1:insert into processed' },
  { name: 'new-key-on-retry', verdict: 'DUPLICATE', window: 'kill after http:POST /v1/charges' },
  { name: 'no-provider-key', verdict: 'DUPLICATE', window: 'kill after http:POST /v1/charges' },
  { name: 'provider-in-transaction', verdict: 'DUPLICATE', window: 'kill before sql:4:COMMIT' },
  { name: 'publish-before-commit', verdict: 'DUPLICATE', window: 'kill before sql:3:COMMIT' },
  { name: 'query-not-in-fingerprint', verdict: 'LOST', window: 'other payload under the same key' },
  { name: 'random-key', verdict: 'DUPLICATE', window: 'kill after sql:1:insert into payouts' },
  { name: 'response-before-commit', verdict: 'LOST', window: 'kill before sql:3:COMMIT' },
  { name: 'scope-without-tenant', verdict: 'LOST', window: 'delivery 2 behind delivery 1' },
  { name: 'shared-marks', verdict: 'LOST', window: 'delivery 2 behind delivery 1' },
  { name: 'swallowed-error', verdict: 'LOST', window: 'serialization failure before sql:3:update customers' },
  { name: 'timestamp-in-key', verdict: 'DUPLICATE', window: 'kill after sql:1:insert into invoices' },
  { name: 'ttl-shorter-than-redelivery', verdict: 'DUPLICATE', window: 'delivered again after retention' },
]
