/**
 * Watch: follows the steps of one process, gives them their names, and does what a window asks for at one of them.
 *
 * @module
 */

import type { Decide, Decision, Side } from '../process/link.ts'
import type { Step } from '../wire/codec.ts'
import { type Boundary, type BoundaryName, sameBoundary } from './boundary.ts'

/** What happens at the armed boundary. */
export type Act = () => Decision | Promise<Decision>

export interface Watch {
  readonly decide: Decide
  readonly boundaries: readonly Boundary[]
  /** Whether the armed boundary was met. */
  readonly met: boolean
  arm(at: BoundaryName, side: Side, act: Act): void
}

export interface WatchOptions {
  /** How many deliveries have been told their end by now. */
  readonly told: () => number
  readonly onStep: (boundary: Boundary, side: Side) => void
}

export function watch({ told, onStep }: WatchOptions): Watch {
  const boundaries: Boundary[] = []
  const ofStep = new WeakMap<Step, Boundary>()
  let armed: { readonly at: BoundaryName; readonly side: Side; readonly act: Act } | undefined
  let met = false

  const begin = (step: Step): Boundary => {
    const alike = boundaries.filter(({ kind, label }) => kind === step.kind && label === step.label)
    const position = boundaries.filter(({ kind }) => kind === step.kind).length + 1
    const boundary: Boundary = {
      kind: step.kind,
      label: step.label,
      nth: alike.length + 1,
      position,
      toldBefore: told(),
    }
    boundaries.push(boundary)
    ofStep.set(step, boundary)
    return boundary
  }
  return {
    boundaries,
    get met() {
      return met
    },
    arm(at, side, act) {
      armed = { at, side, act }
    },
    decide(step, side) {
      const boundary = side === 'before' ? begin(step) : ofStep.get(step)
      // Asked for before the watch began.
      if (boundary === undefined) return 'pass'
      if (side === 'after') {
        boundary.answer = step.answer
        boundary.toldAfter = told()
      }
      onStep(boundary, side)
      if (armed === undefined || met || armed.side !== side || !sameBoundary(armed.at, boundary)) return 'pass'
      met = true
      return armed.act()
    },
  }
}
