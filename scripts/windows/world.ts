/**
 * World: what a process leaves outside of itself, looked at behind each of its steps, and its death at one of them.
 *
 * The database is compared row by row, whatever a statement's name makes believe: a select that calls a function may
 * change something, and an update may find nothing. Publishes, acknowledgements and calls are taken as they are answered.
 */
import { createHash } from 'node:crypto'
import type { DrillPlace } from '../../src/drill/file/format.ts'
import type { Decide } from '../../src/drill/process/link.ts'
import type { Boundary } from '../../src/drill/run/boundary.ts'
import type { Actor, Scene } from '../../src/drill/run/scene.ts'
import type { Step } from '../../src/drill/wire/codec.ts'
import { type Death, Turn } from './found.ts'
import type { Look, Moment } from './moment.ts'

const TABLES = `
  select format('%I.%I', schemaname, tablename) as name from pg_catalog.pg_tables
  where schemaname not in ('pg_catalog', 'information_schema') order by 1`

export interface Looking {
  readonly moments: readonly Moment[]
  /** Whether the process died where it was to die. */
  readonly died: boolean
}

/** Makes the process of `actor` look at its database behind each of its steps, and die at `death`. */
export function lookBehind(actor: Actor, scene: Scene, death?: Death): Looking {
  const { gateway } = actor.process
  const decide = gateway.decide
  const { place } = scene.ground
  const moments: Moment[] = []
  const turn = death && new Turn(death)
  const ofStep = new WeakMap<Step, Boundary>()
  let died = false
  let before: ReadonlyMap<string, string> | undefined
  const beginning = digests(place).then((now) => {
    before = now
  })
  let queue: Promise<unknown> = beginning
  const look = async (): Promise<Look | undefined> => {
    const now = await digests(place)
    const changed = [...now].filter(([table, digest]) => before?.get(table) !== digest).map(([table]) => table)
    before = now
    if (changed.length === 0) return undefined
    return {
      digest: createHash('sha256')
        .update(JSON.stringify([...now]))
        .digest('hex'),
      changed,
    }
  }
  /** Takes it down. Nothing more happens in this process once it has come to its end. */
  const takeDown = async (moment: Moment): Promise<boolean> => {
    if (died) return true
    moments.push(moment)
    if (turn?.comesWith(moment) !== true) return false
    died = true
    const { side } = moment
    scene.note(actor.number, side === 'before' ? 'is killed before this leaves it' : 'is killed right behind this')
    await scene.awaits(scene.patience.hold(actor.process.kill()))
    return true
  }
  const looking: Decide = async (step, side) => {
    // The scene has named it when this returns.
    const decision = decide(step, side)
    const boundary = side === 'before' ? actor.watch.boundaries.at(-1) : ofStep.get(step)
    if (boundary === undefined) return decision
    ofStep.set(step, boundary)
    const what = step.calledItself ?? step.label
    // Nothing leaves before it is known what lay there.
    await beginning
    if (side === 'before') return (await takeDown({ what, boundary, side })) ? 'reset' : decision
    // Inside of a transaction nothing is outside yet, and what is behind it in the same trip may be on its way.
    const outside = step.kind === 'sql' && step.answer?.inTransaction !== true
    const looked = outside && !died ? queue.then(look) : undefined
    if (looked !== undefined) queue = looked.catch(() => {})
    return (await takeDown({ what, boundary, side, look: await looked })) ? 'reset' : decision
  }
  gateway.decide = looking
  return {
    moments,
    get died() {
      return died
    },
  }
}

async function digests(place: DrillPlace): Promise<ReadonlyMap<string, string>> {
  const names = (await place.query(TABLES)).map(({ name }) => String(name))
  if (names.length === 0) return new Map()
  // sql-built: names of tables as the database has quoted them.
  const each = names.map(
    (name) => `(select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from ${name} t)`,
  )
  const [row = {}] = await place.query(`select ${each.map((text, index) => `${text} as t${index}`).join(', ')}`)
  return new Map(names.map((name, index) => [name, String(row[`t${index}`])]))
}
