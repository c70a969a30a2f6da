/**
 * Found: which windows a path has, out of what runs of it without faults have done.
 *
 * A window is a state of the world in which the process can die: what lies outside, and who was told. All deaths between two
 * changes of the world leave the same, so they are one window, however many statements lie there. It is tried at both of its
 * ends: right behind the change that began it, unanswered, and in front of the step that ends it, not sent.
 *
 * Changes are told apart by what is asked and which tables are others behind it, and places are counted in changes: a poll
 * that finds nothing moves no window. What only few runs do, or more often than others (a
 * renewal on a slow machine), belongs to the time that a run took and not to the path: it begins and ends no window.
 */
import { type Boundary, boundaryText } from '../../src/drill/run/boundary.ts'
import { changeOf, type Moment } from './moment.ts'

/** Something behind which a window begins: the first step, the nth change of its name, or a delivery that was told its end. */
export type Mark =
  | { readonly kind: 'beginning' }
  | { readonly kind: 'change'; readonly change: string; readonly nth: number }
  | { readonly kind: 'told'; readonly told: number }

export interface Death {
  readonly name: string
  readonly since: Mark
  /** In front of the first step since then that asks for this; undefined = right behind the change itself. */
  readonly before?: string | undefined
}

export interface PathWindow {
  /** By what begins it. */
  readonly name: string
  /** Between which two changes it lies: the same in every run that has it. */
  readonly place: string
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

/** Windows that most of these runs have, with the deaths that most of them have, named as in the first one that has them. */
export function windowsIn(runs: readonly (readonly Moment[])[]): readonly PathWindow[] {
  const usual = usualChanges(runs)
  const all = runs.flatMap((moments) => windowsOf(moments, usual))
  const inMost = (one: Death): boolean =>
    2 * all.filter(({ deaths }) => deaths.some((death) => isSame(death, one))).length > runs.length
  const found = new Map<string, PathWindow>()
  for (const window of all) {
    const known = found.get(window.place) ?? { ...window, deaths: [] }
    const more = window.deaths.filter((one) => inMost(one) && !known.deaths.some((death) => isSame(death, one)))
    found.set(window.place, { ...known, deaths: [...known.deaths, ...more] })
  }
  return [...found.values()].filter(({ deaths }) => deaths.length > 0)
}

/** Whether a run that was not struck could have had a death. @param among - The runs out of which it was found. */
export function has(moments: readonly Moment[], death: Death, among: readonly (readonly Moment[])[]): boolean {
  return windowsOf(moments, usualChanges(among)).some(({ deaths }) => deaths.some((one) => isSame(one, death)))
}

const isSame = (a: Death, b: Death): boolean => a.before === b.before && markText(a.since) === markText(b.since)

/** How often most runs make each change at least. */
function usualChanges(runs: readonly (readonly Moment[])[]): ReadonlyMap<string, number> {
  const ofRuns = runs.map((moments) => {
    const times = new Map<string, number>()
    for (const change of moments.map(changeOf)) {
      if (change !== undefined) times.set(change, (times.get(change) ?? 0) + 1)
    }
    return times
  })
  const changes = new Set(ofRuns.flatMap((times) => [...times.keys()]))
  const middle = Math.floor(runs.length / 2)
  const usual = (change: string): number =>
    ofRuns.map((times) => times.get(change) ?? 0).toSorted((a, b) => b - a)[middle] ?? 0
  return new Map([...changes].map((change) => [change, usual(change)]))
}

function windowsOf(moments: readonly Moment[], usual: ReadonlyMap<string, number>): readonly PathWindow[] {
  const known = new Set<string>()
  const rounds = new Map<string, number>()
  const times = new Map<string, number>()
  const found: PathWindow[] = []
  const history: string[] = []
  let digest = 'as it was'
  let sent = 0
  let told = 0
  let since: Mark = { kind: 'beginning' }
  let name = 'from the beginning'
  let behind: Death | undefined
  /** Steps that were begun since the window began. */
  let begun = new Map<Boundary, Moment>()

  const close = (next: string, ended?: Boundary): void => {
    const state = `${digest} ${sent} ${told}`
    const round = (rounds.get(roundOf(since)) ?? 0) + 1
    rounds.set(roundOf(since), round)
    const [first] = begun.values()
    const last = ended && begun.get(ended)
    const deaths = [behind ?? (first && deathBefore(first, since)), last && deathBefore(last, since)].filter(
      (death) => death !== undefined,
    )
    if (!known.has(state) && round <= ROUNDS && deaths.length > 0) {
      found.push({
        name,
        place: `${markText(since)} | ${next}`,
        between: [...history, `| ${next}`].join(', '),
        deaths: [...new Map(deaths.map((death) => [death.name, death])).values()],
      })
    }
    known.add(state)
    begun = new Map()
  }
  for (const moment of moments) {
    const { boundary, side, look } = moment
    if (side === 'before') {
      begun.set(boundary, moment)
      continue
    }
    const change = changeOf(moment)
    if (change === undefined) continue
    const nth = (times.get(change) ?? 0) + 1
    times.set(change, nth)
    if (nth > (usual.get(change) ?? 0)) continue
    if (boundary.toldBefore > told) {
      // Nobody will deliver again what was told to be done.
      const late = [...begun].filter(([{ toldBefore }]) => toldBefore > told)
      close('told')
      history.push('told')
      told = boundary.toldBefore
      since = { kind: 'told', told }
      name = `told, before ${boundaryText(boundary)}`
      behind = undefined
      begun = new Map(late)
    }
    close(change, boundary)
    history.push(change)
    digest = look?.digest ?? digest
    sent += boundary.kind === 'sql' ? 0 : 1
    told = Math.max(told, boundary.toldAfter ?? told)
    since = { kind: 'change', change, nth }
    name = `behind ${boundaryText(boundary)}`
    behind = { name: `kill after ${boundaryText(boundary)}`, since }
  }
  close('nothing')
  return found
}

const deathBefore = ({ boundary, what }: Moment, since: Mark): Death => ({
  name: `kill before ${boundaryText(boundary)}`,
  since,
  before: what,
})

function markText(mark: Mark): string {
  if (mark.kind === 'change') return `${mark.change} ${mark.nth}`
  return mark.kind === 'told' ? `told ${mark.told}` : 'beginning'
}

/** What lies behind the second of many is as behind the third, whichever of them it is. */
const roundOf = (mark: Mark): string => (mark.kind === 'change' ? mark.change : markText(mark))

/** Follows a run to the place of one death. */
export class Turn {
  readonly #death: Death
  readonly #times = new Map<string, number>()
  #since: boolean

  constructor(death: Death) {
    this.#death = death
    this.#since = death.since.kind === 'beginning'
  }

  /** Whether the process has to die at this moment; called with each of them, in their order. */
  comesWith(moment: Moment): boolean {
    const { since, before } = this.#death
    const { boundary, side } = moment
    if (since.kind === 'told' && boundary.toldBefore >= since.told) this.#since = true
    if (side === 'before') return this.#since && before === moment.what
    const change = changeOf(moment)
    if (change === undefined) return false
    const nth = (this.#times.get(change) ?? 0) + 1
    this.#times.set(change, nth)
    if (since.kind !== 'change' || since.change !== change || since.nth !== nth) return false
    this.#since = true
    return before === undefined
  }
}
