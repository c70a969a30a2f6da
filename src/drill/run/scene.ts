/**
 * Scene: one run. Its processes, what is delivered to them, and what everybody was told, until all is settled.
 *
 * @module
 */

import { pause } from '../../shared/waiting.ts'
import { type Drill, isMessage, isRequest } from '../file/checked.ts'
import type { Delivery, MessageDelivery } from '../file/format.ts'
import type { Ground } from '../place/ground.ts'
import type { HandlerProcess } from '../process/handler-process.ts'
import { type Boundary, boundaryText } from './boundary.ts'
import { type Attempt, attempt } from './deliver.ts'
import type { Ended } from './judge.ts'
import { type Watch, watch } from './watch.ts'

/** One process in a run. */
export interface Actor {
  /** From 1, in the order of their start. */
  readonly number: number
  readonly process: HandlerProcess
  readonly watch: Watch
}

/** One thing that happened, for the story of the run. */
export interface SceneEvent {
  /** Process, or 0 for the outside. */
  readonly actor: number
  readonly text: string
  /** What it was answered, once it was. */
  answer?: string | undefined
}

/** Quiet for so long, and what was under way has ended. Milliseconds. */
const QUIET_MS = 80
/** Longest wait for quiet: a handler that polls is never quiet. */
const QUIET_MS_MAX = 1_000
const RETRY_MS_MAX = 400
/** So often a conflict without a time to come again is believed to go away. */
const LOOK_MS = 25
/** How long an empty queue must stay empty: a broker gives back what a dead consumer held a moment later. */
const EMPTY_MS = { acknowledged: 50, unknown: 500 }

export class Scene {
  readonly events: SceneEvent[] = []
  readonly actors: Actor[] = []
  #deadline: number | undefined
  readonly #drill: Drill
  readonly #ground: Ground
  readonly #settleMs: number
  readonly #spawn: () => Promise<HandlerProcess>
  #told = 0
  #starting: Promise<Actor> | undefined

  constructor(drill: Drill, ground: Ground, settleMs: number, spawn: () => Promise<HandlerProcess>) {
    this.#drill = drill
    this.#ground = ground
    this.#settleMs = settleMs
    this.#spawn = spawn
  }

  /** When all must be settled; the time begins with the first delivery. */
  get deadline(): number {
    this.#deadline ??= performance.now() + this.#settleMs
    return this.#deadline
  }

  /** Tells the story on. */
  note(actor: number, text: string): SceneEvent {
    const event: SceneEvent = { actor, text }
    this.events.push(event)
    return event
  }

  /** The process that deliveries go to: the latest one that lives, else a new one. @throws {Error} when it cannot start. */
  current(): Promise<Actor> {
    const living = this.actors.findLast(({ process }) => process.alive)
    if (living !== undefined) return Promise.resolve(living)
    this.#starting ??= this.start().finally(() => {
      this.#starting = undefined
    })
    return this.#starting
  }

  /** Starts one more process. */
  async start(): Promise<Actor> {
    const process = await this.#spawn()
    const number = this.actors.length + 1
    try {
      await process.start(this.#ground.route, this.#ground.world, this.#drill.deliveries.some(isRequest))
    } catch (error) {
      await process.close()
      throw error
    }
    const asked = new Map<Boundary, SceneEvent>()
    const watching = watch({
      told: () => this.#told,
      onStep: (boundary, side) => {
        if (side === 'before') asked.set(boundary, this.note(number, boundaryText(boundary)))
        const event = asked.get(boundary)
        if (event !== undefined && side === 'after') event.answer = boundary.answer?.text
      },
    })
    const actor: Actor = { number, process, watch: watching }
    // What belongs to starting is no step of a delivery.
    process.gateway.decide = watching.decide
    this.actors.push(actor)
    return actor
  }

  /** Delivers until it is settled or the time is over. */
  async deliver(delivery: Delivery): Promise<Ended> {
    return isMessage(delivery) ? this.#message(delivery) : this.#until(delivery)
  }

  /** One attempt at one process. */
  async attempt(actor: Actor, delivery: Delivery): Promise<Attempt> {
    const event = this.note(actor.number, `gets the ${isRequest(delivery) ? 'request' : 'job'}`)
    const result = await attempt(actor.process, delivery, this.deadline - performance.now())
    if (result.kind === 'again') {
      this.note(0, `the ${isRequest(delivery) ? 'client hears' : 'queue hears'}: ${result.reason}`)
    } else {
      this.#told += 1
      this.note(actor.number, `answers: ${result.answer}`)
    }
    event.answer = result.kind === 'again' ? 'to be repeated' : result.kind
    return result
  }

  async #until(delivery: Delivery): Promise<Ended> {
    let delayMs = 25
    let reason = 'it was not delivered'
    for (;;) {
      let result: Attempt
      try {
        result = await this.attempt(await this.current(), delivery)
      } catch (error) {
        result = { kind: 'again', reason: error instanceof Error ? error.message : String(error) }
      }
      if (result.kind !== 'again') return { kind: result.kind, answers: [result.answer], reason: '' }
      reason = result.reason
      const waitMs = result.afterMs ?? delayMs
      const leftMs = this.deadline - performance.now()
      if (result.afterMs !== undefined && waitMs > leftMs) return { kind: 'pending', answers: [], reason }
      if (leftMs <= 0) return { kind: 'unsettled', answers: [], reason }
      await pause(Math.min(waitMs, leftMs))
      delayMs = Math.min(2 * delayMs, RETRY_MS_MAX)
    }
  }

  async #message(delivery: MessageDelivery): Promise<Ended> {
    const { vhost } = this.#ground
    if (vhost === undefined) throw new TypeError('a message needs a broker')
    let reason = 'it is not acknowledged'
    await this.current().catch((error: Error) => {
      reason = error.message
    })
    await vhost.publish(delivery)
    this.note(0, `the message is published to ${delivery.queue}`)
    let emptySince: number | undefined
    while (performance.now() < this.deadline) {
      await this.current().catch((error: Error) => {
        reason = error.message
      })
      const living = this.actors.filter(({ process }) => process.alive)
      const unsettled = living.reduce((sum, { process }) => sum + process.gateway.unsettled, 0)
      const empty = living.length > 0 && unsettled === 0 && (await vhost.ready(delivery.queue)) === 0
      if (!empty) emptySince = undefined
      else emptySince ??= performance.now()
      if (emptySince !== undefined && performance.now() - emptySince >= EMPTY_MS.unknown) {
        this.#told += 1
        return { kind: 'done', answers: [], reason: '' }
      }
      await pause(LOOK_MS)
    }
    return { kind: 'unsettled', answers: [], reason }
  }

  /** Waits until nothing is under way any more in any process, within a bound. */
  async quiet(): Promise<void> {
    const until = performance.now() + QUIET_MS_MAX
    for (;;) {
      const now = performance.now()
      const busy = this.actors.some(
        ({ process: { alive, gateway } }) => alive && (gateway.waiting > 0 || now - gateway.quietSince < QUIET_MS),
      )
      if (!busy || now > until) return
      await pause(LOOK_MS)
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.actors.map(({ process }) => process.close()))
  }
}
