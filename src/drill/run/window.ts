/**
 * Windows: from the trace of a run without faults, every place and way in which the handler is going to be hurt.
 *
 * Two windows are equal when the world outside of the process cannot be told apart and the process does not go on: a
 * death in front of the commit leaves the same as a death in front of any other statement of that transaction. Equal
 * windows count as found, and what one of them showed holds for all.
 *
 * @module
 */

import type { Drill } from '../file/checked.ts'
import type { Side } from '../process/link.ts'
import type { Boundary, BoundaryName } from './boundary.ts'
import { boundaryText } from './boundary.ts'

/** What is done to the handler at a boundary. */
export type BoundaryFault = 'kill'
export type Fault = 'none' | BoundaryFault

export interface Window {
  readonly fault: Fault
  readonly at?: (BoundaryName & { readonly position: number; readonly side: Side }) | undefined
}

export interface FoundWindow {
  readonly window: Window
  readonly name: string
  /** Name of the window whose run answers for this one too. */
  readonly equalTo?: string | undefined
}

const WORDS: Readonly<Record<Fault, string>> = { none: 'no fault', kill: 'kill' }

/** `kill before sql:3:insert into orders`. */
export function windowName({ fault, at }: Window): string {
  return at === undefined ? WORDS[fault] : `${WORDS[fault]} ${at.side} ${boundaryText(at)}`
}

export function windowsOf(_drill: Drill, trace: readonly Boundary[]): readonly FoundWindow[] {
  const found: FoundWindow[] = []
  const first = new Map<string, string>()
  const add = (window: Window, state?: string): void => {
    const name = windowName(window)
    const equalTo = state === undefined ? undefined : first.get(state)
    if (state !== undefined && equalTo === undefined) first.set(state, name)
    found.push({ window, name, ...(equalTo === undefined ? {} : { equalTo }) })
  }
  let lasting = 0
  for (const boundary of trace) {
    const { kind, label, nth, position, answer, toldBefore, toldAfter = toldBefore } = boundary
    const at = { kind, label, nth, position }
    add({ fault: 'kill', at: { ...at, side: 'before' } }, `dead ${lasting} ${toldBefore}`)
    if (answer === undefined) continue
    if (answer.durable) lasting += 1
    add({ fault: 'kill', at: { ...at, side: 'after' } }, `dead ${lasting} ${toldAfter}`)
  }
  return found
}
