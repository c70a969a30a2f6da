/**
 * Story: the scenes of the demo, each a promise of the product shown on real processes that are really killed.
 *
 * @module
 */

import { isOnceError } from '../../shared/errors.ts'
import { pause } from '../../shared/waiting.ts'
import { type Child, startChild } from './child.ts'
import { projectingConsumer, type Told } from './projection.ts'
import { CREDIT_LIMIT, LEASE_MS, ORDER_AUDITED, placeOrder, type World, type WorldSettings } from './world.ts'

/** What the demo found; the JSON of `demo --json`. */
export interface DemoResult {
  /** Orders of the customer who sent the same request three times at once. */
  readonly orders: number
  /** Times the broker confirmed that order's message: at least 2 after the killed relay. */
  readonly published: number
  /** What the consumer reported for those deliveries, in order, the first two. */
  readonly applied: readonly string[]
  /** Projection rows of that order, after a consumer was killed between commit and acknowledgement too. */
  readonly projectionRows: number
  readonly unroutablePending: boolean
  readonly mismatchRefused: boolean
  readonly rejectionReplayed: boolean
  readonly broker: 'rabbitmq' | 'memory'
}

export interface Stage {
  readonly world: World
  readonly settings: WorldSettings
  readonly broker: DemoResult['broker']
  /** Starts a child process that can reach the broker. */
  readonly start: (name: 'relay-child' | 'consumer-child') => Child
  /** Starts what runs in this process; it is stopped when the story is cut off. */
  readonly run: (part: { start(): Promise<void>; stop(): Promise<void> }) => Promise<void>
  readonly say: (line: string) => void
}

/** Longest wait for one thing to happen, milliseconds. */
const PATIENCE_MS = 20_000
const POLL_MS = 20

/** Starts a child of the demo; the bridge is up to the caller. */
export function startDemoChild(name: 'relay-child' | 'consumer-child', settings: WorldSettings): Child {
  return startChild(name, settings)
}

/** Plays all scenes; throws when something does not happen in time. */
export async function play(stage: Stage): Promise<DemoResult> {
  const order = await threeAtOnce(stage)
  const published = await relayKilled(stage, order.messageId)
  const consumed = await consumerKilled(stage, order)
  const unroutablePending = await nobodyListens(stage)
  const rejectionReplayed = await rejectionAgain(stage)
  const mismatchRefused = await otherAmount(stage)
  const { broker } = stage
  return { orders: order.orders, published, ...consumed, unroutablePending, mismatchRefused, rejectionReplayed, broker }
}

interface PlacedOrder {
  readonly orders: number
  readonly orderId: string
  readonly messageId: string
}

async function threeAtOnce({ world, settings, say }: Stage): Promise<PlacedOrder> {
  say('1. Ada presses "order" and her phone sends the request three times at once, with one key.')
  const request = { customer: 'ada', amount: 42 }
  const outcomes = await Promise.all([1, 2, 3].map(() => placeOrder(world, settings.schema, 'ada-checkout-1', request)))
  const rows = await world.query(`select count(*)::int as n from "${settings.schema}".orders where customer = 'ada'`)
  const orders = Number(rows[0]?.['n'])
  const fresh = outcomes.filter((outcome) => !outcome.replayed).length
  const ids = new Set(outcomes.map((outcome) => outcome.value?.orderId))
  say(
    `   ${fresh} request ran, ${3 - fresh} got its stored answer; orders in the table: ${orders}, answers: ${ids.size}.`,
  )
  say('   The order and its event were committed in one transaction; the event waits in the outbox.')
  const first = outcomes[0]?.value
  if (first === undefined) throw new Error('the order was refused')
  return { orders, ...first }
}

async function relayKilled(stage: Stage, messageId: string): Promise<number> {
  const { world, say, run } = stage
  say('2. A relay process publishes the event. The broker confirms, and in that moment the relay is killed (SIGKILL).')
  const child = stage.start('relay-child')
  const ended = await within(child.ended, 'the relay to be killed')
  let published = child.lines.filter((line) => line.kind === 'confirmed' && line.messageId === messageId).length
  say(`   The relay ended with ${String(ended)}; confirmed so far: ${published}. Nobody marked the event as sent.`)
  say(`   Another relay takes over when the lease of the dead one ends (${LEASE_MS} ms).`)
  const counting = countingConfirms(world, messageId, () => {
    published += 1
  })
  const relay = world.once.relay({ broker: counting, leaseMs: LEASE_MS })
  await run(relay)
  await relay.drain(AbortSignal.timeout(PATIENCE_MS))
  await relay.stop()
  say(`   The event was sent again with the same id ${messageId}; confirmed: ${published} times.`)
  return published
}

function countingConfirms(world: World, messageId: string, confirmed: () => void): World['broker'] {
  return {
    name: world.broker.name,
    openPublisher(options) {
      const publisher = world.broker.openPublisher(options)
      return {
        get state() {
          return publisher.state
        },
        publish: (message, settled) =>
          publisher.publish(message, (result) => {
            if (result.kind === 'confirmed' && message.id === messageId) confirmed()
            settled(result)
          }),
        ready: (signal) => publisher.ready(signal),
        close: () => publisher.close(),
      }
    },
  }
}

async function consumerKilled(
  stage: Stage,
  order: PlacedOrder,
): Promise<Pick<DemoResult, 'applied' | 'projectionRows'>> {
  const { world, settings, say } = stage
  say(
    '3. The queue holds the event twice. A consumer process applies it, commits, and is killed before it acknowledges.',
  )
  const child = stage.start('consumer-child')
  const ended = await within(child.ended, 'the consumer to be killed')
  const told: Told[] = child.lines.flatMap((line) => (line.kind === 'consumed' ? [line] : []))
  const rows = () =>
    world.query(`select count(*)::int as n from "${settings.schema}".projection where order_id = $1`, [order.orderId])
  say(`   It ended with ${String(ended)}; projection rows: ${Number((await rows())[0]?.['n'])}.`)
  say('   Another consumer gets both copies again.')
  // The child is killed after the commit and before it can tell; what it committed is what it applied.
  if (told.length === 0 && Number((await rows())[0]?.['n']) === 1) {
    told.push({ messageId: order.messageId, result: 'applied' })
  }
  const consumer = projectingConsumer(world, settings.schema, (one) => told.push(one))
  await stage.run(consumer)
  await until(() => told.length >= 3, 'both copies to be recognised')
  await consumer.stop()
  const projectionRows = Number((await rows())[0]?.['n'])
  say(`   Deliveries: ${told.map((one) => one.result).join(', ')}. Projection rows: ${projectionRows}.`)
  return { applied: told.slice(0, 2).map((one) => one.result), projectionRows }
}

async function nobodyListens({ world, settings, say, run }: Stage): Promise<boolean> {
  say('4. An event is sent to a topic that no queue is bound to. The broker would take it and forget it.')
  await placeOrder(world, settings.schema, 'bob-checkout-1', { customer: 'bob', amount: 7, topic: ORDER_AUDITED })
  let returned = false
  const relay = world.once.relay({
    broker: world.broker,
    leaseMs: LEASE_MS,
    onEvent: (event) => {
      if (event.kind === 'parked' && event.reason === 'returned') returned = true
    },
  })
  await run(relay)
  await until(() => returned, 'the broker to return the message')
  await relay.stop()
  const { pending: view } = await relay.health()
  const pending = returned && view !== undefined && (view.oldestMs !== null || view.oldestParkedMs !== null)
  say(`   The broker returned it; it ${pending ? 'stays pending and is tried again' : 'WAS LOST'}.`)
  return pending
}

async function rejectionAgain({ world, settings, say }: Stage): Promise<boolean> {
  say(`5. Eve orders for more than her limit of ${CREDIT_LIMIT}, is refused, and tries again with the same key.`)
  const request = { customer: 'eve', amount: CREDIT_LIMIT + 1 }
  const first = await placeOrder(world, settings.schema, 'eve-checkout-1', request)
  const second = await placeOrder(world, settings.schema, 'eve-checkout-1', request)
  const rows = await world.query(`select count(*)::int as n from "${settings.schema}".orders where customer = 'eve'`)
  say(`   First: ${first.rejection?.code ?? first.state}. Again: ${second.rejection?.code ?? second.state}, replayed.`)
  return (
    first.state === 'rejected' &&
    second.state === 'rejected' &&
    second.replayed &&
    first.rejection.code === second.rejection.code &&
    Number(rows[0]?.['n']) === 0
  )
}

async function otherAmount({ world, settings, say }: Stage): Promise<boolean> {
  say("6. Ada's key comes again with another amount.")
  try {
    await placeOrder(world, settings.schema, 'ada-checkout-1', { customer: 'ada', amount: 43 })
    say('   It was ACCEPTED.')
    return false
  } catch (error) {
    if (!isOnceError(error, 'IDEMPOTENCY_KEY_REUSED')) throw error
    say(`   Refused: ${error.code}. A key names one intent.`)
    return true
  }
}

/** Whether everything that the demo promises holds. */
export function holds(result: DemoResult): boolean {
  return (
    result.orders === 1 &&
    result.published >= 2 &&
    result.applied[0] === 'applied' &&
    result.applied[1] === 'duplicate' &&
    result.projectionRows === 1 &&
    result.unroutablePending &&
    result.mismatchRefused &&
    result.rejectionReplayed
  )
}

async function until(condition: () => boolean, what: string): Promise<void> {
  const signal = AbortSignal.timeout(PATIENCE_MS)
  while (!condition()) {
    if (signal.aborted) throw new Error(`waited ${PATIENCE_MS} ms for ${what}`)
    await pause(POLL_MS)
  }
}

async function within<T>(promise: Promise<T>, what: string): Promise<T> {
  const signal = AbortSignal.timeout(PATIENCE_MS)
  const late = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(new Error(`waited ${PATIENCE_MS} ms for ${what}`)), { once: true })
  })
  return await Promise.race([promise, late])
}
