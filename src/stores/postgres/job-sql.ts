/**
 * What the statements of leased operations are made of: names, rows of values, the owner's comparison.
 *
 * @module
 */

import type { Lease } from '../../store/job.ts'
import { bytesText, ELEMENT_TYPES, PgArray } from './array.ts'
import type { PgStatement } from './handle.ts'
import { statementName } from './statement-name.ts'

export const CLOCK = 'pg_catalog.clock_timestamp()'
export const MS = `interval '1 millisecond'`

export const ageMs = (instant: string): string => `(extract(epoch from ${CLOCK} - ${instant}) * 1000)::float8`
export const leftMs = (instant: string): string => `(extract(epoch from ${instant} - ${CLOCK}) * 1000)::float8`

/** What is read of an unfinished operation `o`. */
export const RECORD: string =
  'o.id, o.scope, o.state, o.token, o.fence, o.fingerprint_mode, o.fingerprint_key, o.fingerprint, o.kind, ' +
  `o.kind_version, o.payload, ${leftMs('o.lease_until')} as lease_left_ms, ${leftMs('o.due_at')} as due_in_ms, ` +
  `o.claims, o.failures, o.reason, ${ageMs('o.created_at')} as age_ms`

/** Columns of a statement's values: their types by their names. */
export type ValueTypes = Readonly<Record<string, string>>

/** A column of many rows, as it is sent. */
interface ValueColumn {
  readonly type: string
  readonly alike: boolean
}

/** Columns of a statement over many rows. */
export interface ValueColumns {
  readonly types: ValueTypes
  readonly columns: readonly ValueColumn[]
}

/**
 * @param alike - Columns that always have a value, in most statements the same one in all rows. It then travels once: where a
 *   row has none, the first one's counts.
 */
export function valueColumns(types: ValueTypes, alike: readonly string[] = []): ValueColumns {
  const columns = Object.entries(types).map(([name, type]) => ({ type, alike: alike.includes(name) }))
  return { types, columns }
}

/**
 * Rows of values `u`, numbered by `n` from 1. The parameters are arrays from `$1` on. The planner must not see how long they are:
 * it would make a plan of its own for each short one, which costs more than to run it.
 */
export function valueRows({ types, columns }: ValueColumns): string {
  const names = Object.keys(types)
  const unnested = Object.values(types).map((type, index) => `pg_catalog.unnest((select $${index + 1}::${type}[]))`)
  const values = Object.entries(types).map(([name, type], index) =>
    columns[index]?.alike === true ? `coalesce(v.${name}, ($${index + 1}::${type}[])[1]) as ${name}` : `v.${name}`,
  )
  return `(select ${values.join(', ')}, v.n from rows from (${unnested.join(', ')}) with ordinality as v(${names.join(', ')}, n)) u`
}

/** The same columns as arguments of a function of ours that takes an array for each. */
export function valueArrays({ types }: ValueColumns): string {
  return Object.values(types)
    .map((type, index) => `$${index + 1}::${type}[]`)
    .join(', ')
}

/** The same of one row. The parameters are its values. */
export function valueRow(types: ValueTypes): string {
  const columns = Object.entries(types).map(([name, type], index) => `$${index + 1}::${type} as ${name}`)
  return `(select ${columns.join(', ')}, 1 as n) u`
}

/** That `o` is owned by a live lease. */
export function ownedBy(id: string, token: string, fence: string): string {
  return `o.id = ${id} and o.token = ${token} and o.fence = ${fence} and o.state = 'processing' and o.lease_until > ${CLOCK}`
}
export const OWNED_BY_ROW: string = ownedBy('u.id', 'u.token', 'u.fence')
export const OWNED: string = ownedBy('$1::uuid', '$2::uuid', '$3::bigint')

export type Prepared = Omit<PgStatement, 'values'>

/** A statement without its values. `columns` of its answer, where they can be read as text. */
export function prepared(schema: string, name: string, body: string, columns?: readonly string[]): Prepared {
  // sql-built: statements are made with texts of their files only; every value is a parameter.
  const statement = { name: statementName(schema, `job_${name}`), text: `/* effectively-once:job.${name} */ ${body}` }
  return columns === undefined ? statement : { ...statement, columns }
}

export function valued(statement: Prepared, values: unknown[]): PgStatement {
  return { ...statement, values }
}

export function leaseValues({ id, token, fence }: Lease): unknown[] {
  return [id, token, String(fence)]
}

/** Rows of values as one array for each column. The server fills up what is shorter than the longest. */
export function columnsOf(rows: readonly (readonly unknown[])[], { columns }: ValueColumns): unknown[] {
  return columns.map(({ type, alike }, column) => {
    const values = rows.map((row) => row[column])
    const [first] = values
    if ((alike || first === null) && values.every((value) => value === first)) values.length = first === null ? 0 : 1
    return isElementType(type) ? arrayOf(type, values) : values
  })
}

function isElementType(type: string): type is PgArray['type'] {
  return type in ELEMENT_TYPES
}

function arrayOf(type: PgArray['type'], values: readonly unknown[]): unknown {
  if (values.every((value) => typeof value === 'string' || value instanceof Uint8Array))
    return new PgArray(type, values)
  return values.map((value) => (value instanceof Uint8Array ? bytesText(value) : value))
}

/** Positions that a statement has answered; null when there is none. */
export function positionsOf(done: unknown): ReadonlySet<number> {
  return new Set(typeof done === 'string' ? done.split(',').map(Number) : [])
}
