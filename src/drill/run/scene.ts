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
  /** The event that this one answers. */
  readonly answers?: SceneEvent | undefined
}

export interface SceneOptions {
  readonly drill: Drill
  readonly ground: Ground
  /** From the first delivery until all must be settled, milliseconds. */
  readonly settleMs: number
  readonly spawn: () => Promise<HandlerProcess>
  /** Hears of each process before anything is delivered to it. */
  readonly onActor: (actor: Actor) => void
}

/** Quiet for so long, and what was under way has ended. Milliseconds. */
const QUIET_MS = 80
/** Longest wait for quiet: a handler that polls is never quiet. */
const QUIET_MS_MAX = 1_000
const RETRY_MS = { first: 25, max: 400 }
const LOOK_MS = 20
/** How long an empty queue must stay empty: a broker gives back what a dead consumer held a moment later. */
const EMPTY_MS = { acknowledged: 40, otherwise: 500 }
/** A process that has waited so long for an answer is blocked by the one beside it. */
const BLOCKED_MS = 150
/** Longest time that a process stands still for the one beside it. */
const BESIDE_MS_MAX = 2_000

export class Scene {
  readonly events: SceneEvent[] = []
  readonly actors: Actor[] = []
  readonly ended: Ended[] = []
  readonly #options: SceneOptions
  #deadline: number | undefined
  #told = 0
  #starting: Promise<Actor> | undefined
  #delivering: Delivery | undefined
  /** What goes on besides the deliveries. */
  readonly #beside: Promise<unknown>[] = []

  constructor(options: SceneOptions) {
    this.#options = options
  }

  /** Nothing is counted before this has ended. */
  awaits<T>(work: Promise<T>): Promise<T> {
    this.#beside.push(work)
    return work
  }

  /** Tells the story on. */
  note(actor: number, text: string, answers?: SceneEvent): SceneEvent {
    const event: SceneEvent = { actor, text, answers }
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
    const { spawn, ground, drill, onActor } = this.#options
    const process = await spawn()
    try {
      await process.start(ground.route, ground.world, drill.deliveries.some(isRequest))
    } catch (error) {
      await process.close()
      throw error
    }
    const number = this.actors.length + 1
    const asked = new Map<Boundary, SceneEvent>()
    const watching = watch({
      told: () => this.#told,
      onStep: (boundary, side) => {
        if (side === 'before') asked.set(boundary, this.note(number, boundaryText(boundary)))
        const event = asked.get(boundary)
        if (event !== undefined && side === 'after') this.note(number, boundary.answer?.text ?? '', event)
      },
    })
    const actor: Actor = { number, process, watch: watching }
    // What belongs to starting is no step of a delivery.
    process.gateway.decide = watching.decide
    this.actors.push(actor)
    onActor(actor)
    return actor
  }

  /** Delivers until it is settled or the time is over. */
  async deliver(delivery: Delivery): Promise<void> {
    this.#delivering = delivery
    this.ended.push(isMessage(delivery) ? await this.#message(delivery) : await this.#until(delivery))
  }

  /**
   * Delivers what `first` is working on to another process, as happens when the first is believed to be dead. Resolves
   * when that is settled, or is blocked by what the first one holds.
   */
  async beside(first: Actor, second: Actor): Promise<void> {
    const delivery = this.#delivering
    if (delivery === undefined) return
    let over = false
    let rounds = 0
    if (!isMessage(delivery)) {
      const settling = this.#until(delivery, second, () => {
        rounds += 1
      }).then((ended) => {
        this.ended.push(ended)
        over = true
      })
      void this.awaits(settling)
    } else {
      first.process.gateway.abandonBroker()
      this.note(0, `the broker gives the message to process ${second.number}`)
    }
    const { gateway } = second.process
    const until = Math.min(performance.now() + BESIDE_MS_MAX, this.#endsAt())
    const began = performance.now()
    while (!over && performance.now() < until) {
      const quietMs = performance.now() - Math.max(began, gateway.quietSince)
      // Either it waits for an answer that does not come, or for us to send it again and again, or it has acknowledged.
      if (quietMs > BLOCKED_MS && (gateway.waiting > 0 || rounds > 1 || isMessage(delivery))) return
      await pause(LOOK_MS)
    }
  }

  /** One attempt at one process. */
  async attempt(actor: Actor, delivery: Delivery): Promise<Attempt> {
    const event = this.note(actor.number, isRequest(delivery) ? requestText(delivery) : 'the job')
    const result = await attempt(actor.process, delivery, this.#endsAt() - performance.now())
    if (result.kind !== 'again') this.#told += 1
    this.note(actor.number, result.kind === 'again' ? result.reason : result.answer, event)
    return result
  }

  async #until(delivery: Delivery, to?: Actor, onAgain: () => void = () => {}): Promise<Ended> {
    const number = this.#options.drill.deliveries.indexOf(delivery)
    let delayMs = RETRY_MS.first
    let told: string | undefined
    for (;;) {
      const result = await this.#attemptAt(to, delivery)
      if (result.kind !== 'again') {
        const { kind, answer } = result
        return kind === 'done'
          ? { delivery: number, kind, answer, reason: '' }
          : { delivery: number, kind, reason: answer }
      }
      const { afterMs, conflict } = result
      onAgain()
      const leftMs = this.#endsAt() - performance.now()
      // The end of the time may cut an attempt off that would have been told what the one before was told.
      const reason = leftMs <= 0 ? (told ?? result.reason) : result.reason
      told = reason
      if (afterMs !== undefined && afterMs > leftMs) return { delivery: number, kind: 'pending', reason }
      if (leftMs <= 0) return { delivery: number, kind: conflict === true ? 'conflict' : 'unsettled', reason }
      await pause(Math.min(afterMs ?? delayMs, leftMs))
      delayMs = Math.min(2 * delayMs, RETRY_MS.max)
    }
  }

  async #attemptAt(to: Actor | undefined, delivery: Delivery): Promise<Attempt> {
    try {
      return await this.attempt(to?.process.alive === true ? to : await this.current(), delivery)
    } catch (error) {
      return { kind: 'again', reason: inWords(error) }
    }
  }

  async #message(delivery: MessageDelivery): Promise<Ended> {
    const { vhost } = this.#options.ground
    if (vhost === undefined) throw new TypeError('a message needs a broker')
    const number = this.#options.drill.deliveries.indexOf(delivery)
    let reason = 'it is not acknowledged'
    let emptySince: number | undefined
    this.note(0, `a message is published to ${delivery.queue}`)
    await vhost.publish(delivery)
    while (performance.now() < this.#endsAt()) {
      await this.current().catch((error: unknown) => {
        reason = inWords(error)
      })
      const gateways = this.actors.map(({ process: { gateway, alive } }) => ({ gateway, alive }))
      const held = gateways.reduce((sum, { gateway, alive }) => sum + (alive ? gateway.unsettled : 0), 0)
      const acknowledged = gateways.reduce((sum, { gateway }) => sum + gateway.acknowledged, 0)
      const empty = gateways.some(({ alive }) => alive) && held === 0 && (await vhost.ready(delivery.queue)) === 0
      emptySince = empty ? (emptySince ?? performance.now()) : undefined
      const enoughMs = acknowledged >= vhost.published ? EMPTY_MS.acknowledged : EMPTY_MS.otherwise
      if (emptySince !== undefined && performance.now() - emptySince >= enoughMs) {
        this.#told += 1
        return { delivery: number, kind: 'done', reason: '' }
      }
      await pause(LOOK_MS)
    }
    return { delivery: number, kind: 'unsettled', reason }
  }

  /** Waits until nothing is under way any more in any process, within a bound. */
  async quiet(): Promise<void> {
    let until = performance.now() + QUIET_MS_MAX
    for (;;) {
      if (this.#beside.length > 0) {
        await Promise.all(this.#beside.splice(0))
        until = performance.now() + QUIET_MS_MAX
      }
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

  /** When all must be settled; the time begins with the first delivery. */
  #endsAt(): number {
    this.#deadline ??= performance.now() + this.#options.settleMs
    return this.#deadline
  }
}

function requestText({
  method = 'POST',
  path,
}: {
  readonly method?: string | undefined
  readonly path: string
}): string {
  return `${method} ${path} arrives`
}

const inWords = (error: unknown): string => (error instanceof Error ? error.message : String(error))
