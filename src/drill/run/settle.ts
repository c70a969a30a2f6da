/**
 * Settle: delivers one thing again and again, as clients, brokers and runners do, until nobody has to send it any more.
 *
 * @module
 */

import { pause } from '../../shared/waiting.ts'
import type { Delivery, MessageDelivery } from '../file/format.ts'
import type { Attempt } from './deliver.ts'
import type { Ended } from './judge.ts'
import type { Actor, Scene } from './scene.ts'

const RETRY_MS = { first: 25, max: 400 }
const LOOK_MS = 20
/** How long an empty queue must stay empty: a broker gives back what a dead consumer held a moment later. */
const EMPTY_MS = { acknowledged: 40, otherwise: 500 }

/**
 * Sends a request or does a job until its answer is final. A sender that is told when to come again comes sooner: that
 * asks more of the handler, and no run has to wait for it.
 *
 * @param to - The process to send to as long as it lives; default the latest.
 * @param onAgain - Hears of each attempt in vain.
 */
export async function untilSettled(
  scene: Scene,
  delivery: Delivery,
  to?: Actor,
  onAgain: () => void = () => {},
): Promise<Ended> {
  const { patience } = scene
  const number = scene.drill.deliveries.indexOf(delivery)
  let delayMs = RETRY_MS.first
  let before: Attempt | undefined
  let conflictAt: number | undefined
  for (;;) {
    const beganAt = patience.now
    let result = await attemptAt(scene, to, delivery)
    if (result.kind === 'done') return { delivery: number, kind: 'done', answer: result.answer, reason: '' }
    if (result.kind === 'refused') return refused(number, result.answer)
    // Told without any fault, it is no conflict with somebody else's attempt.
    if (result.conflict !== undefined && scene.isUsualRefusal(number, result.conflict)) {
      scene.told()
      return refused(number, result.conflict)
    }
    onAgain()
    // An attempt that was cut off would have been told what the one before was told.
    if (scene.givenUp.aborted && before?.kind === 'again') result = before
    before = result
    const { afterMs = 0, conflict, reason } = result
    if (afterMs > patience.settleMs) return { delivery: number, kind: 'pending', reason }
    patience.inVain(beganAt)
    conflictAt = conflict === undefined ? undefined : (conflictAt ?? beganAt)
    if (patience.over) {
      if (conflict === undefined) return { delivery: number, kind: 'unsettled', reason }
      // Every lease is over, so nobody works on the same any more: it is the last word.
      return { ...refused(number, conflict), vainMs: patience.now - (conflictAt ?? beganAt) }
    }
    await pause(delayMs, scene.givenUp)
    delayMs = Math.min(2 * delayMs, RETRY_MS.max)
  }
}

const refused = (delivery: number, answer: string): Ended => ({ delivery, kind: 'refused', answer, reason: answer })

async function attemptAt(scene: Scene, to: Actor | undefined, delivery: Delivery): Promise<Attempt> {
  try {
    return await scene.attempt(to?.process.alive === true ? to : await scene.current(), delivery)
  } catch (error) {
    return { kind: 'again', reason: inWords(error) }
  }
}

/** Publishes a message once and waits until its queue is empty and all is acknowledged. */
export async function untilAcknowledged(scene: Scene, delivery: MessageDelivery): Promise<Ended> {
  const { patience, drill, ground } = scene
  const { vhost } = ground
  if (vhost === undefined) throw new TypeError('a message needs a broker')
  const number = drill.deliveries.indexOf(delivery)
  let reason = 'it is not acknowledged'
  let emptySince: number | undefined
  let consumer: { readonly actor: Actor; readonly sinceAt: number } | undefined
  scene.note(0, `a message is published to ${delivery.queue}`)
  await vhost.publish(delivery)
  while (!patience.over) {
    const beganAt = patience.now
    try {
      const actor = await scene.current()
      // Whoever died with the message has tried in vain.
      if (consumer !== undefined && consumer.actor !== actor) patience.inVain(consumer.sinceAt)
      if (consumer?.actor !== actor) consumer = { actor, sinceAt: beganAt }
    } catch (error) {
      reason = inWords(error)
      patience.inVain(beganAt)
    }
    const gateways = scene.actors.map(({ process: { gateway, alive } }) => ({ gateway, alive }))
    const held = gateways.reduce((sum, { gateway, alive }) => sum + (alive ? gateway.unsettled : 0), 0)
    const acknowledged = gateways.reduce((sum, { gateway }) => sum + gateway.acknowledged, 0)
    const empty = gateways.some(({ alive }) => alive) && held === 0 && (await vhost.ready(delivery.queue)) === 0
    emptySince = empty ? (emptySince ?? performance.now()) : undefined
    const enoughMs = acknowledged >= vhost.published ? EMPTY_MS.acknowledged : EMPTY_MS.otherwise
    if (emptySince !== undefined && performance.now() - emptySince >= enoughMs) {
      scene.told()
      return { delivery: number, kind: 'done', reason: '' }
    }
    await pause(LOOK_MS)
  }
  return { delivery: number, kind: 'unsettled', reason }
}

const inWords = (error: unknown): string => (error instanceof Error ? error.message : String(error))
