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
  /** Whether every armed boundary was met. */
  readonly met: boolean
  /** The boundary at which the first fault struck. */
  readonly struckAt: Boundary | undefined
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
  const armed = new Set<{ readonly at: BoundaryName; readonly side: Side; readonly act: Act }>()
  let struckAt: Boundary | undefined

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
      return armed.size === 0
    },
    get struckAt() {
      return struckAt
    },
    arm(at, side, act) {
      armed.add({ at, side, act })
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
      for (const arm of armed) {
        if (arm.side !== side || !sameBoundary(arm.at, boundary)) continue
        armed.delete(arm)
        struckAt ??= boundary
        return arm.act()
      }
      return 'pass'
    },
  }
}
