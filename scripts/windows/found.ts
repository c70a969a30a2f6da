/**
 * Found: which windows a path has, out of the trace of one run of it.
 *
 * A window is a state of the world in which the process can die: what lies outside, and who was told. All deaths between two
 * changes of the world leave the same, so they are one window, however many statements lie there. It is tried at both of its
 * ends: right behind the step that began it, done and unanswered, and in front of the one that ends it, not sent.
 */
import { type Boundary, boundaryText } from '../../src/drill/run/boundary.ts'
import { type Window, windowName } from '../../src/drill/run/window.ts'
import type { Looks } from './world.ts'

export interface Death {
  readonly window: Window
  readonly name: string
}

export interface PathWindow {
  /** By the step that begins it. */
  readonly name: string
  /**
   * What had happened for good, and what would have happened next. Windows of several paths for which both are the same
   * are one.
   */
  readonly between: string
  /** One death, or one at each end. */
  readonly deaths: readonly Death[]
}

/**
 * The same step may change the same tables again and again: a renewal, the next of many messages. What lies behind it the
 * third time is as behind the second.
 */
const ROUNDS = 2

/** @param looks - What each boundary of the trace has left, in its order. */
export function windowsIn(trace: readonly Boundary[], looks: Looks): readonly PathWindow[] {
  const known = new Set<string>()
  const rounds = new Map<string, number>()
  const found: PathWindow[] = []
  const history: string[] = []
  let digest = 'as it was'
  let sent = 0
  let told = 0
  let open = { name: 'from the beginning', step: 'beginning', after: undefined as Death | undefined }
  let first: Death | undefined

  const close = (next: string | undefined, before: Death | undefined): void => {
    const state = `${digest} ${sent} ${told}`
    const round = (rounds.get(open.step) ?? 0) + 1
    rounds.set(open.step, round)
    const deaths = [open.after ?? first, before].filter((death) => death !== undefined)
    if (!known.has(state) && round <= ROUNDS && deaths.length > 0) {
      const between = [...history, `| ${next ?? 'nothing'}`].join(', ')
      found.push({
        name: open.name,
        between,
        deaths: [...new Map(deaths.map((death) => [death.name, death])).values()],
      })
    }
    known.add(state)
    first = undefined
  }
  for (const [index, boundary] of trace.entries()) {
    const { kind, label, answer, toldBefore, toldAfter = toldBefore } = boundary
    const look = kind === 'sql' ? looks[index] : undefined
    const lasts = kind === 'sql' ? look !== undefined : answer?.durable === true
    const before = deathAt(boundary, 'before')
    const step = [kind, label, ...(look?.changed ?? [])].join(' ')
    if (lasts && toldBefore > told) {
      // Nobody will deliver again what was told to be done.
      close('told', undefined)
      history.push('told')
      told = toldBefore
      open = { name: `told, before ${boundaryText(boundary)}`, step: `told ${step}`, after: undefined }
    }
    first ??= before
    if (!lasts) continue
    close(step, before)
    history.push(step)
    digest = look?.digest ?? digest
    sent += kind === 'sql' ? 0 : 1
    told = toldAfter
    open = { name: `behind ${boundaryText(boundary)}`, step, after: deathAt(boundary, 'after') }
  }
  close(undefined, undefined)
  return found
}

function deathAt({ kind, label, nth, position }: Boundary, side: 'before' | 'after'): Death {
  const window: Window = { fault: 'kill', at: { kind, label, nth, position, side } }
  return { window, name: windowName(window) }
}
