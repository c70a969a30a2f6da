/**
 * History: a resumed handler has to take the steps that its predecessor took.
 *
 * A step is known by its name and stored with its place. Code that was changed between two attempts, or that decides
 * by something it did not get from a step (the time, a random number, a flag), would skip what was done or do it twice
 * under another name. That is told as STEP_CHANGED instead. (PROTOCOL C12)
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import type { StepRecord, StepType } from '../store/job.ts'

/** Most steps of one operation. */
export const STEPS_MAX = 1_000
/** Longest name of a step, characters. */
export const STEP_NAME_MAX = 100

const NAME = /^[\w.:/-]+$/

/** A step that the handler has started in this attempt. */
export interface StartedStep {
  readonly name: string
  readonly position: number
  /** What an earlier attempt stored. */
  readonly stored: StepRecord | undefined
}

const NO_NAMES: ReadonlyMap<string, StepRecord> = new Map()
const NO_POSITIONS: ReadonlyMap<number, StepRecord> = new Map()

export class StepHistory {
  readonly #byName: ReadonlyMap<string, StepRecord>
  readonly #byPosition: ReadonlyMap<number, StepRecord>
  readonly #started: Set<string> = new Set()
  readonly #ordered: boolean

  /** @param ordered - Whether places are compared too; false when steps run beside each other. */
  constructor(stored: readonly StepRecord[], ordered: boolean) {
    this.#ordered = ordered
    // A first attempt has none.
    this.#byName = stored.length === 0 ? NO_NAMES : new Map(stored.map((step) => [step.name, step]))
    this.#byPosition = stored.length === 0 ? NO_POSITIONS : new Map(stored.map((step) => [step.position, step]))
  }

  /**
   * The handler starts a step.
   *
   * @throws {TypeError} A malformed name, or one that was used before in this attempt.
   * @throws {OnceError} STEP_CHANGED.
   */
  start(name: string, type: StepType): StartedStep {
    if (typeof name !== 'string' || name.length > STEP_NAME_MAX || !NAME.test(name)) {
      throw new TypeError(`a step's name takes 1 to ${STEP_NAME_MAX} of letters, digits and . : / _ -`)
    }
    if (this.#started.has(name)) throw new TypeError(`two steps have the name "${name}"; each name is used once`)
    if (this.#started.size >= STEPS_MAX) throw new TypeError(`an operation has at most ${STEPS_MAX} steps`)
    const position = this.#started.size
    this.#started.add(name)
    const stored = this.#byName.get(name)
    if (stored !== undefined && stored.type !== type) {
      throw changed(`step "${name}" is stored as ${stored.type}, and the code takes it as ${type}`)
    }
    const there = this.#byPosition.get(position)
    if (this.#ordered && there !== undefined && there.name !== name) {
      throw changed(`step ${position} is stored as "${there.name}", and the code takes "${name}" there`)
    }
    if (this.#ordered && stored !== undefined && stored.position !== position) {
      throw changed(`step "${name}" is stored at place ${stored.position}, and the code takes it at ${position}`)
    }
    return { name, position, stored }
  }

  /** The handler has returned. @throws {OnceError} STEP_CHANGED when it has left out a stored step. */
  end(): void {
    for (const name of this.#byName.keys()) {
      if (!this.#started.has(name)) throw changed(`step "${name}" is stored, and the code ended without it`)
    }
  }
}

function changed(what: string): OnceError {
  return new OnceError('STEP_CHANGED', `${what}; deploy the code that started it, or give it a version`)
}
