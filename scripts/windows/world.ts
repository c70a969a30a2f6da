/**
 * World: what a trace leaves outside of its process, looked at behind each of its steps.
 *
 * The database is compared row by row, whatever a statement's name makes believe: a select that calls a function may
 * change something, and an update may find nothing. Publishes, acknowledgements and calls are taken as they are answered.
 */
import { createHash } from 'node:crypto'
import type { DrillPlace } from '../../src/drill/file/format.ts'
import type { HandlerProcess } from '../../src/drill/process/handler-process.ts'
import type { Decide } from '../../src/drill/process/link.ts'
import type { Step } from '../../src/drill/wire/codec.ts'

/** What lay outside behind a step. */
export interface Look {
  /** The same for the same rows. */
  readonly digest: string
  /** Tables with other rows than before. */
  readonly changed: readonly string[]
}

/** Looks behind the steps of one process, in the order in which they were begun; undefined = it changed nothing. */
export type Looks = readonly (Look | undefined)[]

const TABLES = `
  select format('%I.%I', schemaname, tablename) as name from pg_catalog.pg_tables
  where schemaname not in ('pg_catalog', 'information_schema') order by 1`

export interface Looking {
  readonly looks: Looks
  /** Looks no more; resolves when the last look is over. */
  end(): Promise<void>
}

/** Makes `process` look at the database of `place` behind each of its steps, from the moment its run listens to it. */
export function lookBehind(process: HandlerProcess, place: () => DrillPlace): Looking {
  const looks: (Look | undefined)[] = []
  const numbers = new WeakMap<Step, number>()
  const { gateway } = process
  const own = Object.getOwnPropertyDescriptor(gateway, 'decide')
  let before: ReadonlyMap<string, string> | undefined
  let queue: Promise<unknown> = Promise.resolve()
  let ended = false
  let beginning: Promise<void> = Promise.resolve()
  const look = async (): Promise<Look | undefined> => {
    const now = await digests(place())
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
  const looking =
    (decide: Decide): Decide =>
    async (step, side) => {
      // Nothing leaves before it is known what lay there.
      await beginning
      const decision = await decide(step, side)
      if (side === 'before') {
        numbers.set(step, looks.push(undefined) - 1)
        return decision
      }
      const number = numbers.get(step)
      // Inside of a transaction nothing is outside yet, and what is behind it in the same trip may be on its way.
      if (ended || number === undefined || step.kind !== 'sql' || step.answer?.inTransaction === true) return decision
      const looked = queue.then(look)
      queue = looked.catch(() => {})
      looks[number] = await looked
      return decision
    }
  Object.defineProperty(gateway, 'decide', {
    get: () => own?.get?.call(gateway) as Decide,
    set(next: Decide) {
      beginning = digests(place()).then((now) => {
        before = now
      })
      queue = beginning
      own?.set?.call(gateway, looking(next))
    },
  })
  return {
    looks,
    async end() {
      ended = true
      await queue
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
