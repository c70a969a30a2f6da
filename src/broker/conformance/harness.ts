/**
 * What a broker adapter brings to its conformance suite: a fresh broker for each case, and the faults it can make.
 *
 * @module
 */

import assert from 'node:assert/strict'
import type { Capabilities, ConformanceCase } from '../../shared/conformance.ts'
import { pause } from '../../shared/waiting.ts'
import type { Broker, Delivery, OutgoingMessage, Publisher, PublishResult, Source } from '../contract.ts'

/** One broker, empty, that nothing else uses. */
export interface BrokerSetup {
  readonly broker: Broker
  /** Declares a queue that takes these topics and returns it as a source. */
  queue(topics: readonly string[], options?: { readonly lengthMax?: number | undefined }): Promise<Source>
  /** Drops every connection as a failing network does; new ones can be made at once. Need: `disconnect`. */
  disconnect(): Promise<void>
  /** Blocks or unblocks publishing connections. Need: `block`. */
  block(on: boolean): Promise<void>
  /** Most payload bytes that the broker takes. Need: `size-limit`. */
  readonly payloadBytesMax: number
  /** Removes what the case declared and closes what it left open. */
  close(): Promise<void>
}

/**
 * Needs of cases are faults and limits that not every harness can make: `disconnect`, `length-limit`, `size-limit`,
 * `block`.
 */
export interface BrokerHarness extends Capabilities {
  open(): Promise<BrokerSetup>
}

export type BrokerCase = ConformanceCase<BrokerHarness>

/** Bound for whatever a case waits for, milliseconds. */
export const CASE_TIMEOUT_MS = 15_000
/** Publish timeout that cases use when they expect answers. */
export const PUBLISH_TIMEOUT_MS = 5_000

/** Runs `body` on a fresh set-up and closes it, whatever happens. */
export async function withSetup(harness: BrokerHarness, body: (setup: BrokerSetup) => Promise<void>): Promise<void> {
  const setup = await harness.open()
  try {
    await body(setup)
  } finally {
    await setup.close()
  }
}

/** A publisher that is ready; the set-up does not close it, so the case does. */
export async function openPublisher(
  setup: BrokerSetup,
  publishTimeoutMs: number = PUBLISH_TIMEOUT_MS,
): Promise<Publisher> {
  const publisher = setup.broker.openPublisher({ publishTimeoutMs })
  await publisher.ready(AbortSignal.timeout(CASE_TIMEOUT_MS))
  return publisher
}

let messages = 0

/** A message with an id of its own. */
export function message(topic: string, members: Partial<OutgoingMessage> = {}): OutgoingMessage {
  messages += 1
  return {
    id: `message-${messages}-${Math.random().toString(36).slice(2)}`,
    topic,
    orderingKey: null,
    payload: `{"number":${messages}}`,
    contentType: 'application/json',
    headers: {},
    createdAtMs: 1_700_000_000_000 + messages,
    ...members,
  }
}

/** Publishes one message and waits for its result; a second result of the same message fails the case. */
export function publish(publisher: Publisher, outgoing: OutgoingMessage): Promise<PublishResult> {
  return new Promise((resolve, reject) => {
    let results = 0
    let returned = false
    publisher.publish(outgoing, (result) => {
      results += 1
      if (!returned) reject(new assert.AssertionError({ message: 'settled was called before publish returned' }))
      if (results > 1) reject(new assert.AssertionError({ message: 'settled was called twice' }))
      // Results that follow in the same turn must still be seen.
      setImmediate(() => resolve(result))
    })
    returned = true
  })
}

/** What a subscription handed over, in order. */
export interface Received {
  readonly deliveries: Delivery[]
  readonly lost: Delivery[]
}

/** Collectors for a subscription's callbacks. */
export function collector(): Received & {
  onDelivery(delivery: Delivery): void
  onLost(deliveries: readonly Delivery[]): void
} {
  const deliveries: Delivery[] = []
  const lost: Delivery[] = []
  return {
    deliveries,
    lost,
    onDelivery: (delivery) => {
      deliveries.push(delivery)
    },
    onLost: (gone) => {
      lost.push(...gone)
    },
  }
}

/** Polls until the condition holds; fails the case after CASE_TIMEOUT_MS. */
export async function eventually(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + CASE_TIMEOUT_MS
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`not within ${CASE_TIMEOUT_MS} ms: ${what}`)
    await pause(5)
  }
}

/** Long enough for a delivery that must not come to have come, where no event can tell. Milliseconds. */
export const QUIET_MS = 150

/** A signal for bounded calls of a case. */
export function caseSignal(): AbortSignal {
  return AbortSignal.timeout(CASE_TIMEOUT_MS)
}
