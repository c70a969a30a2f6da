/**
 * Scene: one run. Its processes, what is delivered to them, and what everybody was told, until all is settled.
 *
 * @module
 */

import { setMaxListeners } from 'node:events'
import { bounded, pause } from '../../shared/waiting.ts'
import { type Drill, isMessage, isRequest } from '../file/checked.ts'
import type { Delivery } from '../file/format.ts'
import type { Ground } from '../place/ground.ts'
import type { HandlerProcess } from '../process/handler-process.ts'
import { type Boundary, boundaryText } from './boundary.ts'
import { type Attempt, attempt } from './deliver.ts'
import type { Ended } from './judge.ts'
import { Patience } from './patience.ts'
import { untilAcknowledged, untilSettled } from './settle.ts'
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
  /** See ./patience.ts. */
  readonly settleMs: number
  /** How often one process takes a step of this name when all is well. */
  readonly usual: (step: string) => number
  /** How a delivery ends when all is well. */
  readonly usualEnd: (delivery: number) => Ended | undefined
  readonly spawn: () => Promise<HandlerProcess>
  /** Hears of each process before anything is delivered to it. */
  readonly onActor: (actor: Actor) => void
}

/** Quiet for so long, and what was under way has ended. Milliseconds. */
const QUIET_MS = 80
/** Longest wait for quiet: a handler that polls is never quiet. */
const QUIET_MS_MAX = 1_000
const LOOK_MS = 20
/** A process that has waited so long for an answer is blocked by the one beside it. */
const BLOCKED_MS = 150
/** A process from which nothing has come for so long waits for the one beside it, if it is not just slow. */
const SILENT_MS = 1_000
/** Longest time that a process stands still for the one beside it. */
const BESIDE_MS_MAX = 10_000
/** So many times more often than usual, and a process that takes this step asks whether the one beside it is over. */
const POLLS = 3
/** Attempts in vain until a sender only waits for the one beside it. */
const ROUNDS = 3
/** More processes than that are one that crashes again and again, and nothing that they do is new. */
const NEW_PROCESSES = 5
const WATCH_MS = 50
/** Between two questions whether a process lives: what came late because everything was slow has come by then. */
const GRACE_MS = 250
/** Longest wait for the answer to that. */
const PING_MS = 10_000

export class Scene {
  readonly events: SceneEvent[] = []
  readonly actors: Actor[] = []
  readonly ended: Ended[] = []
  readonly patience: Patience
  readonly #options: SceneOptions
  readonly #givenUp = new AbortController()
  #closed = false
  #told = 0
  #starting: Promise<Actor> | undefined
  #delivering: Delivery | undefined
  /** What goes on besides the deliveries. */
  readonly #beside: Promise<unknown>[] = []

  constructor(options: SceneOptions) {
    this.#options = options
    this.patience = new Patience(options)
    // Each attempt listens, and there may be many.
    setMaxListeners(0, this.#givenUp.signal)
    void this.#watchOver()
  }

  get drill(): Drill {
    return this.#options.drill
  }

  get ground(): Ground {
    return this.#options.ground
  }

  /** Aborts when the run is given up: nothing will settle any more. */
  get givenUp(): AbortSignal {
    return this.#givenUp.signal
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
    if (number <= NEW_PROCESSES) this.patience.news()
    const asked = new Map<Boundary, SceneEvent>()
    const watching = watch({
      told: () => this.#told,
      onStep: (boundary, side) => {
        if (boundary.nth === 1 && number <= NEW_PROCESSES) this.patience.news()
        else if (side === 'before') this.patience.again(number, stepName(boundary))
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

  /** Delivers until it is settled, or given up. */
  async deliver(delivery: Delivery): Promise<void> {
    this.#delivering = delivery
    this.patience.begin()
    this.ended.push(isMessage(delivery) ? await untilAcknowledged(this, delivery) : await untilSettled(this, delivery))
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
      const onAgain = (): void => {
        rounds += 1
      }
      const settling = untilSettled(this, delivery, second, onAgain).then((ended) => {
        this.ended.push(ended)
        over = true
      })
      void this.awaits(settling)
    } else {
      first.process.gateway.abandonBroker()
      this.note(0, `the broker gives the message to process ${second.number}`)
    }
    const { gateway } = second.process
    const began = performance.now()
    while (!over && second.process.alive && performance.now() - began < BESIDE_MS_MAX) {
      const quietMs = performance.now() - Math.max(began, gateway.quietSince)
      if (rounds >= ROUNDS || this.#polls(second)) return
      // It waits for an answer that does not come, or it has acknowledged.
      if (quietMs > BLOCKED_MS && (gateway.waiting > 0 || rounds > 1 || isMessage(delivery))) return
      if (quietMs > SILENT_MS && (await bounded(second.process.ping(), PING_MS)).kind === 'done') return
      await pause(LOOK_MS)
    }
  }

  #polls({ watch: { boundaries } }: Actor): boolean {
    return boundaries.some((boundary) => boundary.nth > this.#options.usual(stepName(boundary)) + POLLS)
  }

  /** One attempt at one process. */
  async attempt(actor: Actor, delivery: Delivery): Promise<Attempt> {
    const event = this.note(actor.number, isRequest(delivery) ? requestText(delivery) : 'the job')
    const result = await attempt(actor.process, delivery, this.givenUp)
    if (result.kind !== 'again') this.told()
    this.note(actor.number, result.kind === 'again' ? result.reason : result.answer, event)
    return result
  }

  /** Whether a delivery is refused with this answer when all is well. */
  isUsualRefusal(delivery: number, answer: string): boolean {
    const usual = this.#options.usualEnd(delivery)
    return usual?.kind === 'refused' && usual.answer === answer
  }

  /** A delivery was told its end. */
  told(): void {
    this.#told += 1
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
    this.#closed = true
    await Promise.all(this.actors.map(({ process }) => process.close()))
  }

  async #watchOver(): Promise<void> {
    while (!this.#closed) {
      await pause(WATCH_MS)
      if (this.#starting === undefined) await this.#askTheSilent()
      if (this.patience.over) return this.#givenUp.abort()
    }
  }

  /** A process that has starved looks like one that waits for ever, until it is asked. */
  async #askTheSilent(): Promise<void> {
    const processes = this.actors.map(({ process }) => process)
    const living = processes.filter(({ alive }) => alive)
    const quietSince = Math.max(0, ...processes.map(({ gateway }) => gateway.quietSince))
    if (this.patience.silentMs(quietSince) < this.patience.settleMs) return
    for (const graceMs of [GRACE_MS, 0]) {
      const answers = await Promise.all(living.map((process) => bounded(process.ping(), PING_MS)))
      if (answers.some(({ kind }) => kind === 'timeout')) return
      await pause(graceMs)
    }
    const stillQuiet = living.every(({ alive, gateway }) => alive && gateway.quietSince <= quietSince)
    const owed = living.some(({ gateway }) => gateway.waiting > 0)
    if (stillQuiet && this.#starting === undefined) this.patience.silent(quietSince, owed)
  }
}

/** A step by what it is, not by how often it was taken. */
export const stepName = ({ kind, label }: Pick<Boundary, 'kind' | 'label'>): string => `${kind}:${label}`

function requestText({
  method = 'POST',
  path,
}: {
  readonly method?: string | undefined
  readonly path: string
}): string {
  return `${method} ${path} arrives`
}
